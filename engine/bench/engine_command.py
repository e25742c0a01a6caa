"""``engine``: ours, transformers and any other engine on the same requests, one at a time, alternating in rounds.

seatrial bench engine --artifact artifacts/int8 --http --transformers artifacts/base --quick
seatrial bench engine --artifact artifacts/int8 --artifact avx2=artifacts/int8 --set avx2:isa=avx2 --only A,C16
seatrial bench engine --artifact artifacts/int8 --against "llama=llama-server -m M.gguf --port {port}" --base llama
"""

from __future__ import annotations

import argparse
import signal
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from markupsafe import Markup

from engine.bench import page, report
from engine.bench.engines import contenders, plots, profile, samples, tables
from engine.bench.engines import workloads as work
from engine.bench.engines.ceilings import PEAKS, meter
from engine.bench.engines.engine import Engine, EngineError
from engine.bench.engines.figures import Result, Spread, results_of, spread_of
from engine.bench.engines.piped import PipedEngine
from engine.bench.engines.rotation import Measured, measure, say, start_all
from engine.bench.engines.shares import Share, is_decode, share_of
from engine.bench.engines.workloads import Workload
from engine.bench.errors import BenchError
from engine.bench.files import check_writable
from engine.bench.machine import machine_facts, other_load, source_digest
from engine.bench.metrics import Figure
from engine.bench.options import at_least
from engine.bench.show import Table
from engine.cpus import available_cpus

HELP = "ours against transformers and other engines: latency, throughput, memory, shares of the machine's ceilings"
BUSY_SHARE = 0.5  # of the cores, wanted by other processes in the last minute
QUICK_ROUNDS = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{__doc__}\nWorkloads: {work.__doc__}"
    contenders.add_options(parser)
    parser.add_argument("--only", help=f"workloads, comma-separated (default: {','.join(work.DEFAULT)})")
    parser.add_argument("--workloads", type=Path, help="a file of workloads instead of drawn ones")
    parser.add_argument("--seed", type=int, default=0, help="of lengths and token ids (default 0)")
    parser.add_argument("--vocab", type=at_least(2), help="token ids are below this (default: as the models say)")
    parser.add_argument("--skip", action="append", default=[], metavar="ENGINE:WORKLOAD", help="leave out such runs")
    parser.add_argument("--rounds", type=at_least(1), help="counted runs of each engine on each workload (default 5)")
    parser.add_argument("--warm-up", type=at_least(0), default=1, help="rounds before, not counted (default 1)")
    parser.add_argument("--quick", action="store_true", help=f"{' and '.join(work.QUICK)} only, {QUICK_ROUNDS} rounds")
    parser.add_argument("--base", help="engine that ratios are to (default: the first that is not ours)")
    parser.add_argument("--limit-s", type=at_least(0.1, float), default=900.0, help="for one run (default 900)")
    parser.add_argument("--start-limit-s", type=at_least(0.1, float), default=300.0, help="to be ready (default 300)")
    parser.add_argument(
        "--profile", action="store_true", help="also where the time of a step of each --artifact goes, after the rounds"
    )
    parser.add_argument("--out", type=Path, default=Path("reports/bench-engine"), help="folder of page and results")


@dataclass(frozen=True)
class Contender:
    """An engine as the page names it."""

    name: str
    about: str
    against: str | None


def main(arguments: argparse.Namespace) -> None:
    began_at, began_load = datetime.now(UTC).isoformat(timespec="seconds"), other_load()
    if began_load > BUSY_SHARE * available_cpus():
        say(f"the machine is busy (load average {began_load}): expect noise, or come back later")
    engines = contenders.contenders(arguments)
    base = contenders.base_of(engines, arguments.base)
    chosen = _workloads(arguments)
    skipped = _skipped(arguments.skip, engines, chosen)
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else 5)
    check_writable(arguments.out)
    ceiling_meter, no_ceilings = meter(available_cpus(), contenders.device_of(arguments))
    measured = Measured()
    previous = signal.signal(signal.SIGTERM, _interrupted)
    try:
        ready = start_all(engines, measured, arguments.start_limit_s)
        if not ready:
            raise BenchError("no engine could be started: " + "; ".join(measured.missing()))
        measure(
            ready,
            chosen,
            measured,
            rounds=rounds,
            warm_up=arguments.warm_up,
            limit_s=arguments.limit_s,
            skipped=skipped,
            meter=ceiling_meter,
        )
        profiles = (
            _profiles(ready, measured, arguments.limit_s) if arguments.profile and not measured.interrupted else {}
        )
    finally:
        for engine in engines:
            engine.stop()
        signal.signal(signal.SIGTERM, previous)
    setting = {
        "schema_version": 1,
        "kind": "engines",
        "began_at": began_at,
        "machine": machine_facts(),
        "load_average_1min": {"before": began_load, "after": other_load()},
        "engine_source_sha256": source_digest(),
        "seed": None if arguments.workloads else arguments.seed,
        "rounds": rounds,
        "warm_up_rounds": arguments.warm_up,
        "base": base,
        "ceilings_absent_because": no_ceilings or None,
    }
    _report(
        arguments.out, engines, chosen, measured, base, ceiling_meter.names if ceiling_meter else {}, profiles, setting
    )
    if measured.missing():
        raise BenchError(f"{'; '.join(measured.missing())}; what was measured is in {arguments.out}")


def _profiles(engines: list[Engine], measured: Measured, limit_s: float) -> dict[str, dict[str, profile.StepProfile]]:
    """Of ours, in process; one that gives none is among what is missing."""
    found = {}
    for engine in engines:
        if isinstance(engine, PipedEngine) and engine.kind == contenders.OURS and engine.name not in measured.failures:
            say(f"profile, {engine.name}")
            try:
                found[engine.name] = profile.profile(engine, limit_s)
            except EngineError as e:
                measured.failures[engine.name] = str(e)
            except KeyboardInterrupt:
                measured.interrupted = True
                say("interrupted: what is complete is written")
                break
    return found


def _interrupted(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def _workloads(arguments: argparse.Namespace) -> list[Workload]:
    if arguments.workloads is not None:
        known = work.read(arguments.workloads)
        default = list(known)
    else:
        known = work.draw(arguments.seed, contenders.vocab_of(arguments))
        default = list(work.QUICK if arguments.quick else work.DEFAULT)
    names = default if arguments.only is None else [n.strip() for n in arguments.only.split(",") if n.strip()]
    return work.choose(known, names)


def _skipped(texts: list[str], engines: list[Engine], chosen: list[Workload]) -> set[tuple[str, str]]:
    found = set()
    for text in texts:
        name, _, workload = text.rpartition(":")
        if name not in {e.name for e in engines} or workload not in {w.name for w in chosen}:
            raise BenchError(f"--skip {text!r}, expected ENGINE:WORKLOAD with one of each that takes part")
        found.add((name, workload))
    return found


def _report(
    out: Path,
    engines: list[Engine],
    chosen: list[Workload],
    measured: Measured,
    base: str,
    instructions: dict[str, str],
    profiles: dict[str, dict[str, profile.StepProfile]],
    setting: dict[str, Any],
) -> None:
    reference = contenders.reference_of(engines)
    names = [e.name for e in engines]
    shown, panels, said, found, shares = list[Table](), list[page.Panel](), list[str](), dict[str, list[Result]](), []
    done = [w for w in chosen if any(run for runs in measured.runs[w.name].values() for run in runs)]
    for workload in done:
        results = results_of(workload, measured.runs[workload.name], base, reference if is_decode(workload) else None)
        found[workload.name] = results
        shown += [
            tables.figures_table(workload, results, reference),
            *filter(None, [tables.ratios_table(workload, results, base)]),
        ]
        title, drawn = plots.bars(workload, results, names)
        panels.append(page.Panel(title, Markup(drawn)))
        if is_decode(workload):
            title, drawn = plots.bars(workload, results, names, "ttft_ms")
            panels.append(page.Panel(title, Markup(drawn)))
        said += tables.findings(workload, results, base)
        facts = [(r, measured.facts[r.engine]) for r in results]
        got = [share_of(workload, r, f, measured.ceilings) for r, f in facts]
        shares += [(workload.name, s) for s in got if s is not None]
    ceilings = _ceilings(measured)
    shown += filter(None, [tables.shares_table(shares, ceilings, instructions)])
    shown += [profile.table(name, cases) for name, cases in profiles.items()]
    said += [f"Missing: {why}." for why in measured.missing()] + [f"{note}." for note in measured.notes()]
    report.show(shown, said)
    groups = [page.Group("Side by side", "Bar: median of the rounds. Points: each round.", panels)]
    if profiles:
        drawings = [profile.layers_chart(name, cases) for name, cases in profiles.items()]
        layers = [page.Panel(title, Markup(drawn)) for title, drawn in drawings]
        groups.append(page.Group("A step by layer", "Of ours, in process.", layers, profile.legend()))
    sides = [
        Contender(e.name, f"{e.kind}: {tables.described(measured.facts[e.name])}", None if e.name == base else base)
        for e in engines
        if e.name in measured.facts
    ]
    lead = f"The same requests for every engine, {setting['rounds']} round(s), one engine at a time in turning order."
    facts_shown = _facts(chosen, setting)
    html = page.render("Engines compared", lead, ", ".join(names), sides, said, shown, groups, facts_shown)
    samples.write(out, measured.runs)
    whole = _results(engines, done, measured, found, shares, ceilings, instructions, said)
    report.write(out, html, setting | whole | {"profiles": profile.as_results(profiles)})


def _ceilings(measured: Measured) -> dict[str, Spread]:
    if not measured.ceilings:
        return {}
    peaks = [p for p in PEAKS if p in measured.ceilings[0].gops]
    return {
        "memory read": spread_of([Figure(c.read_gb_per_s) for c in measured.ceilings]),
        **{f"{p} peak": spread_of([Figure(c.gops[p]) for c in measured.ceilings]) for p in peaks},
    }


def _facts(chosen: list[Workload], setting: dict[str, Any]) -> list[tuple[str, str]]:
    machine, load = setting["machine"], setting["load_average_1min"]
    drawn = "from a file" if setting["seed"] is None else f"drawn, seed {setting['seed']}"
    return [
        ("workloads", f"{'; '.join(map(str, chosen))} ({drawn}); greedy, to the last token"),
        ("rounds", f"{setting['rounds']}, after {setting['warm_up_rounds']} not counted"),
        ("engines", "each started once and kept, idle, while another works"),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['os']}"),
        ("instructions", ", ".join(machine["isa"])),
        ("other load", f"load average {load['before']} before, {load['after']} after, this run included"),
        ("our source", f"sha256 {setting['engine_source_sha256'][:12]}"),
        ("began", setting["began_at"]),
    ]


def _results(
    engines: list[Engine],
    chosen: list[Workload],
    measured: Measured,
    found: dict[str, list[Result]],
    shares: list[tuple[str, Share]],
    ceilings: dict[str, Spread],
    instructions: dict[str, str],
    said: list[str],
) -> dict[str, Any]:
    return {
        "engines": [
            {"name": e.name, "kind": e.kind, **asdict(measured.facts[e.name])}
            for e in engines
            if e.name in measured.facts
        ],
        "ceilings": {
            "instructions": instructions,
            "rounds": [asdict(c) for c in measured.ceilings],
            "spreads": {k: v._asdict() for k, v in ceilings.items()},
        },
        "workloads": [
            {
                "name": w.name,
                "requests": len(w.jobs),
                "prompt_tokens": w.prompt_tokens,
                "output_tokens": w.output_tokens,
                "sha256": w.digest,
                "engines": [_result(r) for r in found[w.name]],
            }
            for w in chosen
        ],
        "shares": [
            {"workload": name, **asdict(s), "achieved": s.achieved._asdict(), "share": s.share._asdict()}
            for name, s in shares
        ],
        "missing": measured.missing(),
        "findings": said,
    }


def _result(result: Result) -> dict[str, Any]:
    return {
        "name": result.engine,
        "spreads": {k: v._asdict() for k, v in result.spreads.items()},
        "rounds": {k: [f._asdict() for f in v] for k, v in result.rounds.items()},
        "ratios": {k: asdict(v) for k, v in result.ratios.items()},
        "agreement_tokens": result.agreement,
    }
