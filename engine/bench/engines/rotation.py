"""The rounds: every engine on every workload, one at a time, in an order that moves on by one each round.

Each engine is started once, before the first round, and kept, idle, while the others work: starting one takes longer
than most runs, and a model that has just been read from disk is not in the state that users meet. That nobody else
works is not taken on trust: the CPU time of the idle ones is looked at after every run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from engine.bench.engines.ceilings import Ceilings, Meter
from engine.bench.engines.engine import Engine, EngineError, Facts, Run
from engine.bench.engines.figures import METRICS
from engine.bench.engines.workloads import Workload

SETTLE_S = 0.3  # before a run: threads that spin after the work of the engine before
IDLE_SHARE, IDLE_S = 0.05, 0.1  # CPU time of the idle, of the run and at least: more is noted


@dataclass
class Measured:
    """``runs``: by workload, then by engine, a counted round each; None where a round is missing."""

    facts: dict[str, Facts] = field(default_factory=dict)
    runs: dict[str, dict[str, list[Run | None]]] = field(default_factory=dict)
    ceilings: list[Ceilings] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # by engine: why it is out
    busy_s: dict[str, float] = field(default_factory=dict)  # by engine: most CPU time during another's run
    interrupted: bool = False

    def notes(self) -> list[str]:
        """What engines said of their runs, and what was seen of them; each once."""
        said = {
            f"{name}: {note}": None
            for engines in self.runs.values()
            for name, runs in engines.items()
            for run in runs
            if run is not None
            for note in run.notes
        }
        seen = [f"{n}: was not idle: {s:.1f} s of CPU time during another's run" for n, s in self.busy_s.items()]
        return [*said, *seen]

    def missing(self) -> list[str]:
        ended = ["interrupted: what would have come after that is missing"] if self.interrupted else []
        return [*(f"{name}: {why}" for name, why in self.failures.items()), *ended]


def start_all(engines: list[Engine], measured: Measured, limit_s: float) -> list[Engine]:
    """Those that can work; the others are in ``measured.failures``."""
    for engine in engines:
        began = time.monotonic()
        try:
            measured.facts[engine.name] = engine.start(limit_s)
            say(f"{engine.name}: ready after {time.monotonic() - began:.1f} s")
        except EngineError as e:
            _fail(engine, measured, e)
    return [e for e in engines if e.name not in measured.failures]


def measure(
    engines: list[Engine],
    workloads: list[Workload],
    measured: Measured,
    *,
    rounds: int,
    warm_up: int,
    limit_s: float,
    skipped: Collection[tuple[str, str]] = (),
    meter: Meter | None = None,
) -> None:
    """Fills ``measured``. An engine that fails is ended and out; the rest goes on. ``skipped``: (engine, workload).
    An interrupt ends the rounds, not the command."""
    for w in workloads:
        measured.runs[w.name] = {e.name: [None] * rounds for e in engines if (e.name, w.name) not in skipped}
    began, total = time.monotonic(), rounds + warm_up
    try:
        for number in range(-warm_up, rounds):
            turned = engines[number % len(engines) :] + engines[: number % len(engines)]
            label = f"round {number + 1}/{rounds}" if number >= 0 else "warm-up, not counted"
            if meter is not None and number >= 0:
                measured.ceilings.append(meter.measure())
            for workload in workloads:
                for engine in turned:
                    if engine.name in measured.failures or engine.name not in measured.runs[workload.name]:
                        continue
                    run = _one(engine, engines, workload, measured, limit_s)
                    if run is not None:
                        say(f"{label}, {workload.name}, {engine.name}: {_in_short(workload, run)}")
                    if run is not None and number >= 0:
                        measured.runs[workload.name][engine.name][number] = run
            done = number + warm_up + 1
            if done < total:
                say(f"about {(time.monotonic() - began) / done * (total - done):.0f} s left")
    except KeyboardInterrupt:
        measured.interrupted = True
        say("interrupted: what is complete is written")


def _one(engine: Engine, engines: list[Engine], workload: Workload, measured: Measured, limit_s: float) -> Run | None:
    time.sleep(SETTLE_S)
    others = [e for e in engines if e is not engine and e.name not in measured.failures]
    before = [e.cpu_s() for e in others]
    began = time.monotonic()
    try:
        run = engine.run(workload, limit_s)
    except EngineError as e:
        _fail(engine, measured, e)
        return None
    took = time.monotonic() - began
    for other, at in zip(others, before, strict=True):
        now = other.cpu_s()
        if at is not None and now is not None and now - at > max(IDLE_S, IDLE_SHARE * took):
            measured.busy_s[other.name] = max(measured.busy_s.get(other.name, 0.0), now - at)
    return run


def _fail(engine: Engine, measured: Measured, error: EngineError) -> None:
    measured.failures[engine.name] = str(error)
    say(f"{engine.name} is out: {error}")
    engine.stop()


def _in_short(workload: Workload, run: Run) -> str:
    figures = {m.name: m.formula(workload, run).value for m in METRICS}
    shown = (("TTFT", "ttft_ms", "ms"), ("ITL", "itl_ms", "ms"), ("output", "output_tokens_per_s", "tok/s"))
    return ", ".join(
        f"{title} {value:.1f} {unit}" for title, name, unit in shown if (value := figures[name]) is not None
    )


def say(text: str) -> None:
    """One milestone line on standard error."""
    print(text, file=sys.stderr, flush=True)
