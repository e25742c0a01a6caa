"""Whether production requests are due to be rotated into the regression set: a reminder, never a red check.

    python -m pipeline.checks.rotation --week 2026-W49

The week is given, so that the answer can be had for any; a workflow gives the present one.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pipeline.errors import SeatrialError
from pipeline.evaluation.health import week_index
from pipeline.evaluation.items import EVALSETS, Evalset, is_week, load_evalset
from pipeline.params import load_params
from pipeline.stage import run_main


def reminder(evalset: Evalset, week: str) -> str | None:
    """What is due in ``week``; None if nothing is."""
    plan = evalset.manifest.rotation
    if plan is None:
        return None
    newest = max((i.week for i in evalset.items if i.origin == "production"), default=None)
    command = f"`seatrial evalset rotate --week {week} --requests LOG`"
    if newest is None:
        left = week_index(plan.waived_until) - week_index(week)
        when = f"waived for {left} more weeks" if left >= 0 else "its waiver has expired, so the check fails"
        return f"{evalset.manifest.name} has no production requests yet ({when}): {command}"
    age = week_index(week) - week_index(newest)
    if age < 1:
        return None
    stale = " and are stale, so the check fails" if age > plan.stale_after_weeks else ""
    return f"the newest production requests of {evalset.manifest.name} are {age} weeks old{stale}: {command}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether production requests are due to be rotated.")
    parser.add_argument("--week", required=True, help="ISO week that counts as now: $(date +%%G-W%%V)")
    week = parser.parse_args().week
    if not is_week(week):
        raise SeatrialError(f"--week is {week!r}; expected an ISO week such as 2026-W49")
    said = reminder(load_evalset(EVALSETS / load_params().evaluation.evalset), week)
    print(said or "no rotation is due")
    if said and (path := os.environ.get("GITHUB_STEP_SUMMARY")):
        print(f"::warning title=Rotation is due::{said}")
        with Path(path).open("a", encoding="utf-8") as f:
            f.write(f"🟡 {said}\n")


if __name__ == "__main__":
    run_main(main)
