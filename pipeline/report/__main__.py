"""``seatrial scorecard``: the stage that writes the scorecard, metrics.json, the plots and the summary.

seatrial scorecard                  the stage: reports/scorecard.html of the run in results/
seatrial scorecard --compare A B    two runs side by side: tiers, folders like results/TIER, or releases
seatrial scorecard --index          only the list of judged runs and releases, with their trends
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.params import load_params
from pipeline.stage import run_main, say, stage


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="seatrial scorecard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--compare", nargs=2, metavar=("A", "B"), help="write reports/compare.html of two runs")
    what.add_argument("--index", action="store_true", help="write .seatrial/runs/index.html")
    args = parser.parse_args()
    params = load_params()
    if args.compare:
        from pipeline.report.compare import write_comparison

        one, other = args.compare
        say(f"{one} and {other}: {write_comparison(one, other, params)}")
    elif args.index:
        from pipeline.report.history import write_index

        say(f"runs and releases: {write_index(Path())}")
    else:
        with stage("scorecard", note=False) as s:
            from pipeline.report.build import build

            summary = build(Path(), params)
            s.say(f"{summary.word} ({summary.candidate}): reports/scorecard.html")


if __name__ == "__main__":
    run_main(main)
