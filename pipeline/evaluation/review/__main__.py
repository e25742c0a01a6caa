"""Answers for people to rate: draw them blinded, and read the ratings back.

seatrial review sample --candidate results/int8/eval --baseline results/bf16/eval --out review/2026-W49
seatrial review import review/2026-W49 ratings-1.csv ratings-2.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.evaluation.review.ratings import REPORT, import_ratings
from pipeline.evaluation.review.sample import write_sample
from pipeline.stage import run_main


def main(argv: Sequence[str] | None = None) -> None:
    """
    Raises:
        SeatrialError: see the functions behind the subcommands.
    """
    parser = argparse.ArgumentParser(
        "seatrial review", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    c = commands.add_parser("sample", help="a form for raters and the key to it")
    c.add_argument("--candidate", type=Path, required=True, help="results/TIER/eval of the candidate")
    c.add_argument("--baseline", type=Path, required=True, help="results/TIER/eval of the release in service")
    c.add_argument("--items", type=int, default=30, help="items to draw; each has an answer of both; default 30")
    c.add_argument("--seed", type=int, default=0)
    c.add_argument("--out", type=Path, required=True, help="folder to make; key.json is not for raters")
    c = commands.add_parser("import", help=f"raters' files -> {REPORT}")
    c.add_argument("sample", type=Path, help="the folder with key.json")
    c.add_argument("ratings", type=Path, nargs="+", help="one CSV a rater")
    given = parser.parse_args(argv)
    if given.command == "sample":
        named = [("candidate", given.candidate), ("baseline", given.baseline)]
        n = write_sample(named, given.out, given.items, given.seed)
        print(f"{given.out}: {n} answers to rate; give raters form.html (or form.csv), keep key.json")
        return
    outcome = import_ratings(given.sample, given.ratings)
    for name, found in outcome["criteria"].items():
        print(f"{name}: {_said(found)}")


def _said(found: dict[str, Any]) -> str:
    """One criterion in a line."""
    figures = "no ratings of both releases"
    if found["difference"] is not None:
        within = "" if found["interval"] is None else " ({:+.2f} to {:+.2f})".format(*found["interval"])
        means = f"candidate {found['candidate_mean']:.2f}, baseline {found['baseline_mean']:.2f}"
        figures = f"{means}, {found['difference']:+.2f}{within}"
    agreement = "undefined" if found["alpha"] is None else f"{found['alpha']:.2f}"
    return f"{figures}; alpha {agreement}{'; ' + found['problem'] if found['problem'] else ''}"


if __name__ == "__main__":
    run_main(main)
