"""The control of the check: the same outermost command must be red on a planted fault and green on a clean run.

A gate that never says no cannot be told from one that has nothing to say. Nothing is measured: the records are made
up, in a folder of their own; rules, verdict, check and exit code are the real ones. Takes seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.stage import run_main, say

ROOT = Path(__file__).resolve().parents[2]
SLOWER = 60


def planted(row: dict[str, Any]) -> None:
    """Every first token so much later that no policy's limit holds."""
    shift = (row["token_times_s"][0] - row["due_s"]) * (SLOWER - 1)
    row["token_times_s"] = [t + shift for t in row["token_times_s"]]
    row |= {"first_token_s": row["token_times_s"][0], "first_byte_s": row["token_times_s"][0]}
    row["end_s"] = row["token_times_s"][-1]


def check_made_up(change: Callable[[dict[str, Any]], None] | None) -> tuple[int, str]:
    """(exit code, comment) of the check on a made-up trial, run as a workflow runs it: a process of its own."""
    from pipeline.drill.trial import CANDIDATE, judged, requests, write_load

    def plant(root: Path) -> None:
        rows = requests(1)
        for row in rows:
            (change or (lambda _row: None))(row)
        write_load(root, CANDIDATE, rows)

    with tempfile.TemporaryDirectory(prefix="seatrial-control-") as folder:
        root = Path(folder)
        judged(root, plant)
        env = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")} | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "pipeline.checks.pull_request", "--judged", "--no-ab"]
        code = subprocess.run(command, cwd=root, env=env, stdout=subprocess.DEVNULL).returncode
        return code, (root / "reports/check/comment.md").read_text(encoding="utf-8")


def main() -> None:
    for name, change, code, words in (
        ("planted fault", planted, 1, ("HOLD", "short_burst")),
        ("clean run", None, 0, ("SHIP",)),
    ):
        found, text = check_made_up(change)
        missing = [w for w in words if w not in text]
        if found != code or missing:
            raise SeatrialError(
                f"the control failed: a {name} came out with exit code {found}, expected {code}"
                + (f"; its comment lacks {missing[0]!r}" if missing else "")
                + ". No verdict of this check can be trusted until that is mended"
            )
        say(f"control: {name}: exit code {found}, as it must be")


if __name__ == "__main__":
    run_main(main)
