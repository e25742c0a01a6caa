"""Can this gate be trusted: what each rule can detect at its sample size, how often identical builds were held, and
what became of planted faults. Nothing is claimed beyond what was counted; what was not counted says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pipeline.drill.aa import RECORD, Summary, read, summary
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
class Trust:
    """Each part, or the reason why there is none."""

    policy: str
    rules: list[Power]
    rules_reason: str
    aa: Summary | None
    aa_reason: str
    drill: Json | None
    drill_reason: str

    @property
    def missed(self) -> list[Json]:
        """Faults that were not caught, then those that were caught and not named."""
        faults = (self.drill or {}).get("faults") or []
        return sorted(faults, key=lambda f: (bool(f.get("caught")), bool(f.get("named"))))

    @property
    def aa_interval(self) -> str:
        if self.aa is None:
            return say.ABSENT
        low, high = self.aa.false_holds
        return f"{say.share(low)} … {say.share(high)}"


def trust_of(run: RunData) -> Trust:
    rules, why = _rules(run)
    aa, aa_why = _aa(run)
    drill, drill_why = _drill(run)
    policy = str((run.verdict or {}).get("policy") or run.params.gate.get("policy") or "unknown")
    return Trust(policy, rules, why, aa, aa_why, drill, drill_why)


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
        found = summary(read(run.root / RECORD))
    except SeatrialError as e:
        return None, str(e).replace(f"{run.root}/", "")
    none = "no record yet: identical builds have not been compared with each other; `seatrial drill --aa N` does it"
    return found, "" if found else none


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
