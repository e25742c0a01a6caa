"""``python -m pipeline.report``: the stage that writes the scorecard, metrics.json, the plots and the summary."""

from __future__ import annotations

from pathlib import Path

from pipeline.params import load_params
from pipeline.stage import run_main, stage


def main() -> None:
    params = load_params()
    with stage("scorecard", note=False) as s:
        from pipeline.report.build import build

        summary = build(Path(), params)
        s.say(f"{summary.word} ({summary.candidate}): reports/scorecard.html")


if __name__ == "__main__":
    run_main(main)
