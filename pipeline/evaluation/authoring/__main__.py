"""Writes the items of an evalset again, or records a changed content as a new version.

python -m pipeline.evaluation.authoring --out evalsets/core --seed 20261129
python -m pipeline.evaluation.authoring --out evalsets/core --record 2 --what "More long documents" --week 2026-W49
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.evaluation.authoring import SEED, WEEK
from pipeline.evaluation.authoring.build import write_items
from pipeline.evaluation.items import EVALSETS, content_digest
from pipeline.evaluation.versions import record, recorded_digest
from pipeline.stage import run_main, say


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.evaluation.authoring",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=EVALSETS / "core", help="folder of the evalset")
    parser.add_argument("--seed", type=int, default=SEED, help=f"default {SEED}, the shipped one")
    parser.add_argument("--week", default=WEEK, help=f"ISO week of the items or of the new version; default {WEEK}")
    parser.add_argument("--record", metavar="VERSION", help="do not write items; record the present content as VERSION")
    parser.add_argument("--what", help="with --record: what changed, for the changelog")
    given = parser.parse_args(argv)
    if given.record:
        if not given.what:
            parser.error("--record needs --what, a sentence for the changelog")
        record(given.out, given.record, given.week, given.what)
        say(f"{given.out}: recorded version {given.record}")
        return
    if given.what:
        parser.error("--what goes with --record")
    written = write_items(given.out, given.seed, given.week)
    say(f"{given.out}: {sum(written.values())} items in {len(written)} files")
    digest = content_digest(given.out)
    if recorded_digest(given.out) != digest:
        say(f"content digest {digest[:12]} is not the recorded one; `--record VERSION --what ...` makes it a version")


if __name__ == "__main__":
    run_main(main)
