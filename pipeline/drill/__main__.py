"""``seatrial drill``: plants faults one at a time and says whether each was caught, and named, by what, in what time.

    seatrial drill --short      those that need no model: seconds, for CI
    seatrial drill              all of them, with engines: the better part of an hour
    seatrial drill --aa N       N comparisons of this build with itself, each added to pipeline/drill/aa.jsonl as it
                                ends: stop it when you like and go on later
    seatrial drill --power N --slower prefill:10 --slower decode:10
                                N comparisons with each slowdown planted, in turn, added to pipeline/drill/power.jsonl
    seatrial drill --resample   what the gate would do, drawn again from the pairs of rounds of the A/A record

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
from pipeline.stage import run_main, say, stage

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
    parser.add_argument("--power", type=int, metavar="N", help="compare this build with one slowed down N times")
    parser.add_argument(
        "--slower", action="append", default=[], metavar="PART:PERCENT", help="for --power; may be repeated"
    )
    parser.add_argument("--resample", action="store_true", help="draw comparisons from the A/A record; no engine runs")
    parser.add_argument("--tier", help="whose artifact is served; default: release.candidate")
    parser.add_argument(
        "--minutes", type=float, help="budget of one A/B; default: 5, with --aa and --power the policy's"
    )
    parser.add_argument("--items", type=int, default=2, help="items a scenario where answers are compared")
    parser.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT}")
    args = parser.parse_args()
    if args.minutes is not None and not args.minutes > 0:
        raise SeatrialError(f"--minutes is {args.minutes:g}, expected more than 0")
    params = load_params()
    if args.aa is not None or args.power is not None:
        return _repeat(params, args)
    if args.slower:
        raise SeatrialError("--slower is for --power N")
    if args.resample:
        return _resample()
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


def _repeat(params: Params, args: argparse.Namespace) -> None:
    from pipeline.drill import aa, power
    from pipeline.drill.comparisons import Planted, read
    from pipeline.drill.repeat import planted_of, repeat

    option, times = ("--power", args.power) if args.aa is None else ("--aa", args.aa)
    if args.aa is not None and (args.power is not None or args.slower):
        raise SeatrialError("--aa plants nothing: leave --power and --slower out, or --aa")
    if times < 1:
        raise SeatrialError(f"{option} is {times}, expected at least 1")
    planted: list[Planted | None] = [None] if args.power is None else [planted_of(x) for x in args.slower]
    if not planted:
        raise SeatrialError("--power plants what --slower says: for instance --slower prefill:10 --slower decode:10")
    repeat(params, times, args.minutes, args.tier, planted, args.out)
    if args.power is None:
        found = aa.summary(read(aa.RECORD))
        print("nothing was compared yet" if found is None else found.text())
    else:
        print("\n".join(x.text() for x in power.summary(read(power.RECORD))) or "nothing was compared yet")


def _resample() -> None:
    from pipeline.drill import aa, resampled
    from pipeline.drill.comparisons import read
    from pipeline.drill.resample import resample

    comparisons = read(aa.RECORD)
    if not comparisons:
        raise SeatrialError(f"there is no A/A record ({aa.RECORD}); `seatrial drill --aa N` makes one")
    found = resample(comparisons, resampled.digest_of_record(aa.RECORD))
    write_json(resampled.RECORD, found.model_dump(mode="json"))
    print(resampled.text(found))


if __name__ == "__main__":
    run_main(main)
