"""``seatrial drill``: plants faults one at a time and says whether each was caught, and named, by what, in what time.

    seatrial drill --short      those that need no model: seconds, for CI
    seatrial drill              all of them, with engines: the better part of an hour
    seatrial drill --aa N       N comparisons of this build with itself, each added to pipeline/drill/aa.jsonl as it
                                ends: stop it when you like and go on later

Exit code 0 if every fault was caught, else 1.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pipeline.drill.fault import Fault
from pipeline.errors import SeatrialError
from pipeline.files import atomic_write, write_json
from pipeline.params import Params, load_params
from pipeline.stage import Stage, run_main, say, stage

OUT = Path("reports/drill")
MINUTES = 5.0  # of one A/B within the drill


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="seatrial drill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="only faults that need no model")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this fault; may be repeated")
    parser.add_argument("--keep", action="store_true", help="keep the rows of drill.json whose faults are not run now")
    parser.add_argument("--list", action="store_true", help="name the faults and end")
    parser.add_argument("--json", action="store_true", help="with --list: as JSON; a drill leaves drill.json")
    parser.add_argument("--aa", type=int, metavar="N", help="compare this build with itself N times")
    parser.add_argument("--tier", help="whose artifact is served; default: release.candidate")
    parser.add_argument("--minutes", type=float, help="budget of one A/B; default: 5, with --aa the policy's")
    parser.add_argument("--items", type=int, default=2, help="items a scenario where answers are compared")
    parser.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT}")
    args = parser.parse_args()
    if args.minutes is not None and not args.minutes > 0:
        raise SeatrialError(f"--minutes is {args.minutes:g}, expected more than 0")
    params = load_params()
    if args.aa is not None:
        return _aa(params, args.aa, args.minutes, args.tier, args.out)
    from pipeline.drill import artifacts, evalsets, records

    short = [*records.FAULTS, *evalsets.FAULTS, *artifacts.FAULTS]
    if args.list:
        from pipeline.drill.engine import TABLE

        ids = [(f.id, f.part, f.what) for f in short] + [(x[0], x[1], x[2]) for x in TABLE]
        rows = [dict(zip(("id", "part", "what"), x, strict=True)) for x in ids]
        text = "\n".join(f"{id:20} {part:9} {what}" for id, part, what in ids)
        print(json.dumps({"schema_version": 1, "faults": rows}, indent=2) if args.json else text)
        return
    with tempfile.TemporaryDirectory(prefix="seatrial-drill-") as folder:
        if args.short:
            return _tell(_chosen(short, args.only), Path(folder), args.out, keep=args.keep)
        from pipeline.ab.sides import Project
        from pipeline.drill.engine import Engines, faults

        with stage("drill", measuring=True, note=False):
            engines = Engines(Project.here(params, args.tier), Path(folder), args.minutes or MINUTES, args.items)
            _tell(_chosen([*short, *faults(engines)], args.only), Path(folder), args.out, keep=args.keep)


def _chosen(faults: Iterable[Fault], only: list[str]) -> list[Fault]:
    known = {f.id: f for f in faults}
    if unknown := [x for x in only if x not in known]:
        raise SeatrialError(f"no planted fault {unknown[0]!r}; `seatrial drill --list` names them (--short has fewer)")
    return [f for f in known.values() if not only or f.id in only]


def _tell(faults: list[Fault], folder: Path, out: Path, *, keep: bool) -> None:
    """Runs them; the table is written after each, so that a drill that is stopped leaves what it has seen."""
    from pipeline.drill.run import Result, as_json, drill, markdown, row_of, rows_in

    again = {f.id for f in faults}
    rows = [r for r in rows_in(out / "drill.json") if r["id"] not in again] if keep else []

    def tell(r: Result) -> None:
        caught, named = "caught" if r.seen.caught else "MISSED", "named" if r.seen.named else "not named"
        say(f"drill: {r.fault.id}: {caught}, {named}, {r.seen.by} ({r.seconds:.1f} s): {r.seen.said[:160]}")
        rows.append(row_of(r))
        write_json(out / "drill.json", as_json(rows))
        atomic_write(out / "drill.md", markdown(rows))

    results = drill(faults, folder, tell)
    print(markdown(rows))
    if not all(r.seen.caught for r in results):
        raise SystemExit(1)


def _aa(params: Params, times: int, minutes: float | None, tier: str | None, out: Path) -> None:
    from pipeline.ab.compare import compare_builds
    from pipeline.ab.sides import Project, side_of
    from pipeline.drill import aa

    if times < 1:
        raise SeatrialError(f"--aa is {times}, expected at least 1")
    policy = params.ab if minutes is None else params.ab.model_copy(update={"budget_minutes": minutes})
    project = Project.here(params, tier)
    with stage("drill", measuring=True, note=False) as s:
        for number in range(times):
            done = len(aa.read())
            side = side_of(str(Path("artifacts") / project.tier), project)
            seed = params.load.seed + 1000 * done  # other traffic in each comparison
            progress = Stage("drill", f"aa {number + 1}/{times}")
            value = compare_builds(side, side, policy, seed, out / "aa" / "rounds", progress)
            write_json(out / "aa" / f"{done + 1:04d}.json", value)
            if value["looks"]["taken"] or value["broken_off"] is not None:
                aa.add(aa.of(value))
                s.say(f"A/A {number + 1} of {times}: {value['verdict']} after {value['minutes']:.1f} minutes")
            else:  # it could not have held: counted, it would make false holds look rarer
                s.say(f"A/A {number + 1} of {times}: not counted: {value['reason']}")
    found = aa.summary(aa.read())
    print("nothing was compared yet" if found is None else found.text())


if __name__ == "__main__":
    run_main(main)
