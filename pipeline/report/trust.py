"""Can this gate be trusted: what each rule can detect at its sample size, how often identical builds were held, and
what became of planted faults. Nothing is claimed beyond what was counted; what was not counted says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pipeline.drill import aa as identical
from pipeline.drill import power as slowed
from pipeline.drill import resampled as drawn_again
from pipeline.drill.aa import Summary
from pipeline.drill.comparisons import Planted, read
from pipeline.errors import SeatrialError
from pipeline.evaluation.items import EVALSETS
from pipeline.gate.explain import power_of, sizes_at_hand
from pipeline.gate.policy import read_policy
from pipeline.report import numbers as say
from pipeline.report.inputs import Json, RunData
from pipeline.report.records import OF_THE_RUN


@dataclass(frozen=True)
class Power:
    """One rule of the policy: what it takes to pass it, and what it can tell at this run's size."""

    id: str
    kind: str
    blocking: bool
    lines: list[str]


@dataclass(frozen=True)
class Slowdown:
    """One that was planted into A/B comparisons: how many were measured, and what drawing them again gives."""

    planted: Planted
    measured: slowed.Power | None
    drawn: drawn_again.Share | None

    @property
    def measured_interval(self) -> str:
        return _interval(self.measured.interval if self.measured else None)

    @property
    def drawn_interval(self) -> str:
        return _interval(self.drawn.held_interval if self.drawn else None)


@dataclass(frozen=True)
class Trust:
    """Each part, or the reason why there is none."""

    policy: str
    margin: str  # of the A/B, within which a slowdown ships
    rules: list[Power]
    rules_reason: str
    aa: Summary | None
    aa_reason: str
    planted: list[Slowdown]
    planted_reason: str
    resampled: drawn_again.Resampled | None
    resampled_reason: str
    drill: Json | None
    drill_reason: str

    @property
    def missed(self) -> list[Json]:
        """Faults that were not caught, then those that were caught and not named."""
        faults = (self.drill or {}).get("faults") or []
        return sorted(faults, key=lambda f: (bool(f.get("caught")), bool(f.get("named"))))

    @property
    def aa_interval(self) -> str:
        return _interval(self.aa.false_holds if self.aa else None)

    @property
    def nothing_planted(self) -> drawn_again.Share | None:
        """Of identical builds, drawn again."""
        return next((s for s in (self.resampled.shares if self.resampled else ()) if s.planted is None), None)

    @property
    def nothing_planted_interval(self) -> str:
        return _interval(self.nothing_planted.held_interval if self.nothing_planted else None)


def _interval(of: tuple[float, float] | None) -> str:
    return say.ABSENT if of is None else f"{say.share(of[0])} … {say.share(of[1])}"


def trust_of(run: RunData) -> Trust:
    rules, why = _rules(run)
    aa, aa_why = _aa(run)
    resampled, resampled_why = _resampled(run)
    planted, planted_why = _planted(run, resampled)
    drill, drill_why = _drill(run)
    policy = str((run.verdict or {}).get("policy") or run.params.gate.get("policy") or "unknown")
    return Trust(
        policy=policy,
        margin=f"{run.params.ab.margin_percent:g} %",
        rules=rules,
        rules_reason=why,
        aa=aa,
        aa_reason=aa_why,
        planted=planted,
        planted_reason=planted_why,
        resampled=resampled,
        resampled_reason=resampled_why,
        drill=drill,
        drill_reason=drill_why,
    )


def _rules(run: RunData) -> tuple[list[Power], str]:
    try:
        policy = read_policy(run.params.gate, run.params.measured)
    except SeatrialError as e:
        return [], str(e)
    sizes = sizes_at_hand(
        run.params.evaluation.evalset, run.candidate, results=run.root / "results", evalsets=run.root / EVALSETS
    )
    here = f"{run.root}/"
    found = []
    for r in policy.rules:
        lines = [line.replace(here, "") for line in power_of(r, policy, sizes)]
        found.append(Power(r.id, r.kind, r.severity == "blocking", lines))
    return found, ""


def _aa(run: RunData) -> tuple[Summary | None, str]:
    try:
        found = identical.summary(read(run.root / identical.RECORD))
    except SeatrialError as e:
        return None, str(e).replace(f"{run.root}/", "")
    none = "no record yet: identical builds have not been compared with each other; `seatrial drill --aa N` does it"
    return found, "" if found else none


def _resampled(run: RunData) -> tuple[drawn_again.Resampled | None, str]:
    try:
        found = drawn_again.read(run.root / drawn_again.RECORD, run.root / identical.RECORD, run.params.ab)
    except SeatrialError as e:
        return None, str(e).replace(f"{run.root}/", "")
    return (
        found,
        "" if found else "never drawn again from the pairs that were measured; `seatrial drill --resample` does",
    )


def _planted(run: RunData, resampled: drawn_again.Resampled | None) -> tuple[list[Slowdown], str]:
    try:
        measured = {p.planted: p for p in slowed.summary(read(run.root / slowed.RECORD))}
    except SeatrialError as e:
        return [], str(e).replace(f"{run.root}/", "")
    drawn = {s.planted: s for s in (resampled.shares if resampled else ()) if s.planted is not None}
    every = sorted({*measured, *drawn}, key=lambda p: (p.part, p.percent))
    none = "no record yet: `seatrial drill --power N --slower decode:10` compares a build with itself made slower"
    return [Slowdown(p, measured.get(p), drawn.get(p)) for p in every], "" if every else none


def _drill(run: RunData) -> tuple[Json | None, str]:
    path = OF_THE_RUN["drill"]
    try:
        value: Any = json.loads((run.root / path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        none = "no table yet: no drill was run here; `seatrial drill --short` takes seconds, `seatrial drill` an hour"
        return None, none
    except (OSError, ValueError) as e:
        return None, f"{path} cannot be read ({e}); run `seatrial drill` again"
    if not isinstance(value, dict) or not isinstance(value.get("faults"), list):
        return None, f"{path} holds no table of faults; run `seatrial drill` again"
    return value, ""
