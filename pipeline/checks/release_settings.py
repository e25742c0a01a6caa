"""Sets params.yaml to what a release is judged by: the `release` load profile and the `release` policy.

Comments and order of the file stay. Run it where the file may change: in a workflow, or before a release's own commit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.errors import SeatrialError
from pipeline.files import atomic_write
from pipeline.params import PARAMS, load_params
from pipeline.stage import run_main, say

SETTINGS = {"load": ("profile", "release"), "gate": ("policy", "release")}


def for_release(text: str) -> str:
    """
    Raises:
        SeatrialError: a section or its key is not where params.yaml has it: at the margin, and two spaces in.
    """
    lines, wanted = text.split("\n"), dict(SETTINGS)
    section = None
    for number, line in enumerate(lines):
        if line and not line[0].isspace() and not line.startswith("#"):
            section = line.partition(":")[0]
        if section in wanted and line.startswith(f"  {wanted[section][0]}:"):
            key, value = wanted.pop(section)
            lines[number] = f"  {key}: {value}"
    if wanted:
        missing = ", ".join(f"{s}.{key}" for s, (key, _) in wanted.items())
        raise SeatrialError(f"{PARAMS} has no {missing} on a line of its own; write it there")
    return "\n".join(lines)


def main(path: Path = PARAMS) -> None:
    argparse.ArgumentParser(prog="python -m pipeline.checks.release_settings", description=__doc__).parse_args()
    atomic_write(path, for_release(path.read_text(encoding="utf-8")))
    params = load_params(path)
    say(f"{path}: load.profile {params.load.profile}, gate.policy {params.gate['policy']}")


if __name__ == "__main__":
    run_main(main)
