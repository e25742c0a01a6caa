"""``seatrial diagnose RUN [--against RUN]``: why a run is slow or wrong, in a fixed order, from the engine's own logs.

RUN is a tier of results/, a folder like it, or the folder of one load test (as a round of reports/ab/rounds).
"""

from __future__ import annotations

import argparse
import json

from pipeline.stage import run_main


def main() -> None:
    parser = argparse.ArgumentParser(prog="seatrial diagnose", description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--against", help="the run that it is held against; without it the largest parts are named")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    args = parser.parse_args()

    from pipeline.diagnosis.inputs import read_run_folder
    from pipeline.diagnosis.walk import as_json, text, walk

    run = read_run_folder(args.run)
    against = None if args.against is None else read_run_folder(args.against)
    findings = walk(run, against)
    print(json.dumps(as_json(run, against, findings), indent=2) if args.json else text(findings))


if __name__ == "__main__":
    run_main(main)
