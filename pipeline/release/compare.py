"""Two releases side by side: what was changed, and what users meet differently."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.provenance import differing
from pipeline.release.card import FIGURES, figure_of
from pipeline.release.record import Release


@dataclass(frozen=True)
class Figure:
    """``change``: in points for accuracy, in percent for latency; None where the two cannot be compared."""

    name: str
    unit: str
    before: float | None
    after: float | None
    change: float | None


@dataclass(frozen=True)
class Diff:
    before: str
    after: str
    changed: list[str]
    confounded: bool
    identities: dict[str, tuple[str, str]]
    figures: list[Figure]
    turned_wrong: list[str]
    turned_right: list[str]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        return {"schema_version": 1, **asdict(self)}

    def lines(self) -> list[str]:
        """For a terminal."""
        parts = [f"{k}: {a} -> {b}" for k, (a, b) in self.identities.items()]
        out = [f"{self.before} -> {self.after}: {', '.join(self.changed) or 'the same build'} changed", *parts]
        if self.confounded:
            out.append("confounded: several changed at once, so no difference can be attributed to one")
        out += [_line(f) for f in self.figures]
        for word, items in (("wrong", self.turned_wrong), ("right", self.turned_right)):
            if items:
                more = f" and {len(items) - 8} more" if len(items) > 8 else ""
                out.append(f"{len(items)} answers turn {word}: {', '.join(items[:8])}{more}")
        return out + self.notes


def compare(before: Release, after: Release) -> Diff:
    """What users of ``before`` meet with ``after``. Latency of different machines or traffic is not compared."""
    changed = differing(before.evaluation, after.evaluation)
    notes = []
    same_set = "workload" not in changed
    figures, wrong, right = [], [], []
    if same_set:
        figures = _accuracy(before, after)
        both = sorted(before.scores.keys() & after.scores.keys())
        wrong = [i for i in both if after.scores[i] < before.scores[i]]
        right = [i for i in both if after.scores[i] > before.scores[i]]
    else:
        a, b = before.evaluation.workload.name, after.evaluation.workload.name
        notes.append(f"accuracy is not compared: {a} and {b} are different regression sets")
    if before.load.workload.digest != after.load.workload.digest:
        notes.append("latency is not compared: the traffic was another")
    elif before.load.machine.machine_class != after.load.machine.machine_class:
        notes.append("latency is not compared: it was measured on different classes of machine")
    else:
        figures += _latency(before, after)
    for release in (before, after):
        for w in release.waivers:
            notes.append(f"{release.name} has a waiver of {w['rule']} until {w['expires']} ({w['reason']})")
    if before.policy_digest != after.policy_digest:
        notes.append(f"judged by different rules: {before.policy} and {after.policy}")
    identities = {
        part: (getattr(before.evaluation, part).name, getattr(after.evaluation, part).name) for part in changed
    }
    return Diff(before.name, after.name, list(changed), len(changed) > 1, identities, figures, wrong, right, notes)


def _accuracy(before: Release, after: Release) -> list[Figure]:
    found = [_points("accuracy", _mean(before), _mean(after))]
    for name in sorted(before.scenarios.keys() & after.scenarios.keys()):
        a, b = (r.scenarios[name].get("accuracy") for r in (before, after))
        if a != b:
            found.append(_points(f"accuracy {name}", a, b))
    return found


def _points(name: str, a: float | None, b: float | None) -> Figure:
    """A scenario that could not be measured (no sandbox, no item answered) has no accuracy, and no change of it."""
    change = None if a is None or b is None else 100 * (b - a)
    return Figure(name, "%", None if a is None else 100 * a, None if b is None else 100 * b, change)


def _mean(release: Release) -> float:
    return sum(release.scores.values()) / max(1, len(release.scores))


def _latency(before: Release, after: Release) -> list[Figure]:
    out = []
    for stage in before.latency:
        if stage not in after.latency:
            continue
        for metric, q in FIGURES:
            a, b = (figure_of(r.latency[stage], metric, q) for r in (before, after))
            change = None if a is None or b is None or not a else 100 * (b / a - 1)
            out.append(Figure(f"{stage} {metric.upper()} {q.upper()}", "ms", a, b, change))
    return out


def _line(f: Figure) -> str:
    a, b = ("-" if v is None else f"{v:.1f}" for v in (f.before, f.after))
    change = "not compared" if f.change is None else f"{f.change:+.1f} {'points' if f.unit == '%' else '%'}"
    return f"{f.name:32} {a:>9} -> {b:>9} {f.unit:3} {change}"
