"""Who answered for each tier, and what that server could not do: what was not measured for want of it, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.gate.rules.health import is_foreign
from pipeline.report.inputs import RunData, TierData
from pipeline.report.summary import header_of

PREFIX = "not measurable here"


@dataclass(frozen=True)
class Gap:
    """``what`` was not measured, or is not what it is elsewhere; ``why``, with the capability that is lacking."""

    what: str
    why: str


@dataclass(frozen=True)
class Served:
    """``foreign``: another engine than the bundled one; ``software``: what it says of itself; ``metrics``: whose names
    its /metrics has, or why nothing is told by them; ``restarts``: in words.
    """

    tier: str
    engine: str
    foreign: bool
    software: str
    metrics: str
    gaps: list[Gap]
    restarts: list[str]


def servers(run: RunData) -> list[Served]:
    """One a tier that has a result; empty where only the bundled engine answered and nothing is lacking."""
    found = [s for t in run.tiers.values() if (s := _served(t)) is not None]
    return found if any(s.foreign or s.gaps or s.restarts for s in found) else []


def _served(tier: TierData) -> Served | None:
    header = header_of(tier, "load") or header_of(tier, "eval")
    if header is None:
        return None
    told = _mapping((tier.load or {}).get("server_metrics"))
    software = _mapping(header.engine_derived.get("software"))
    foreign = is_foreign(header)
    version = f"{software.get('name')} {software.get('version')}" if software else "does not say"
    return Served(
        tier=tier.name,
        engine=header.engine.name,
        foreign=foreign,
        software=version if foreign else "bundled",
        metrics=str(told.get("family") or told.get("reason") or "not kept"),
        gaps=list(_gaps(tier, foreign)),
        restarts=[
            str(_mapping(r).get("words"))
            for part in (told, _mapping((tier.eval or {}).get("server")))
            for r in part.get("restarts") or []
        ],
    )


def _gaps(tier: TierData, foreign: bool) -> Iterator[Gap]:
    for name, entry in _mapping((tier.eval or {}).get("not_measurable_by")).items():
        found = _mapping(entry)
        kinds = ", ".join(map(str, found.get("kinds") or [])) or "some"
        count = found.get("items")
        yield Gap(f"{kinds} tasks: {count} items skipped", _why(found.get("why"), str(name)))
    for name, entry in _mapping((tier.load or {}).get("not_comparable")).items():
        what, colon, why = str(entry).partition(": ")
        yield Gap(what if colon else str(name), _why(why if colon else what, str(name)))
    told = _mapping((tier.load or {}).get("server_metrics"))
    if foreign and tier.load is not None:
        yield Gap("memory: weights, KV pool, resident", f"{PREFIX}: the server does not say what it holds")
        if told.get("reason"):
            yield Gap("causes of latency and of throughput", f"{PREFIX}: {told['reason']}")
        stages = [_mapping(s) for s in _mapping(told.get("stages")).values()]
        missing = dict.fromkeys(str(why) for s in stages for why in _mapping(s.get("missing")).values())
        if missing:
            yield Gap("parts of the diagnosis", f"{PREFIX}: {'; '.join(missing)}")


def _why(text: Any, capability: str) -> str:
    said = str(text or f"the server lacks {capability}")
    return said if said.startswith(PREFIX) else f"{PREFIX}: {said}"


def _mapping(value: Any) -> dict[str, Any]:
    """What another version or a hand wrote may be something else: then it says nothing."""
    return value if isinstance(value, dict) else {}


def gap_lines(run: RunData) -> list[str]:
    """For the list of holes: one line a gap of each tier."""
    return [f"{s.tier}: {g.what}: {g.why}." for s in servers(run) for g in s.gaps]
