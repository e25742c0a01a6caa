"""``seatrial ab BASE CANDIDATE``: two builds in interleaved rounds on this machine; exit code 0 ship, 1 hold,
2 undecided.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pydantic import ValidationError

from pipeline.errors import SeatrialError
from pipeline.files import atomic_write, write_json
from pipeline.params import AbParams, load_params
from pipeline.stage import run_main, stage

OUT = Path("reports/ab")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # argparse ends with 2, which says "undecided"
        raise SeatrialError(f"{message}; `seatrial ab --help` lists what there is")


def main() -> None:
    from pipeline.ab import sides
    from pipeline.ab.trees import LOCK

    parser = _Parser(
        prog="seatrial ab", description=__doc__, epilog=sides.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("base")
    parser.add_argument("candidate")
    parser.add_argument("--tier", help="artifact of sides that name none; default: release.candidate")
    parser.add_argument("--profile", help="traffic of a round; default: ab.profile")
    parser.add_argument("--budget-minutes", type=float, help="default: ab.budget_minutes")
    parser.add_argument("--margin-percent", type=float, help="default: ab.margin_percent")
    parser.add_argument("--seed", type=int, help="of the first pair's traffic; default: load.seed")
    parser.add_argument("--quality", type=int, metavar="N", help="also compare answers to N items a scenario; 0: all")
    parser.add_argument("--lock", type=Path, default=LOCK, help="the lock file that names an environment")
    parser.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT}")
    parser.add_argument("--json", action="store_true", help="print ab.json instead of the table")
    args = parser.parse_args()

    params = load_params()
    changes = {k: v for k in ("profile", "budget_minutes", "margin_percent") if (v := getattr(args, k)) is not None}
    try:
        policy = AbParams.model_validate(params.ab.model_dump() | changes)
    except ValidationError as e:
        said = "; ".join(f"--{str(x['loc'][0]).replace('_', '-')} is {x['input']}: {x['msg']}" for x in e.errors())
        raise SeatrialError(said) from e
    with stage("ab", measuring=True, note=False) as s:
        from pipeline.ab.compare import compare_builds, without_answers
        from pipeline.ab.report import EXIT_CODES, markdown

        project = sides.Project.here(params, args.tier, args.lock)
        base, candidate = sides.with_equal_logs(*(sides.side_of(x, project) for x in (args.base, args.candidate)))
        seed = params.load.seed if args.seed is None else args.seed
        value = compare_builds(base, candidate, policy, seed, args.out / "rounds", s)
        if args.quality is not None and value["broken_off"] is None:
            from pipeline.ab.quality import compare_answers

            try:
                value["quality"] = compare_answers(
                    base, candidate, params, args.quality or None, args.out / "rounds", s
                )
            except SeatrialError as e:
                value |= without_answers(value["verdict"], value["reason"], e)
        write_json(args.out / "ab.json", value)
        atomic_write(args.out / "ab.md", markdown(value))
    print(json.dumps(value, indent=2) if args.json else markdown(value))
    raise SystemExit(EXIT_CODES[value["verdict"]])


if __name__ == "__main__":
    run_main(main)
