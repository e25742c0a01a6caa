"""What stands behind the figures: memory ledger, provenance, derived facts, time of the stages, limits of the run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pipeline.report import numbers as say
from pipeline.report.inputs import Json, RunData, TierData
from pipeline.report.servers import gap_lines
from pipeline.report.summary import header_of
from pipeline.report.tiers import TierFigures, Value, pick

MIB = 1024**2


@dataclass(frozen=True)
class MemoryRow:
    """Planned against measured for one tier; None of a figure: not measured, ``reason`` says why."""

    tier: str
    planned: dict[str, Value]
    measured: dict[str, Value]


def memory_rows(run: RunData, figures: dict[str, TierFigures]) -> list[MemoryRow]:
    rows = []
    for name, tier in run.tiers.items():
        why = tier.why("plan")
        planned = {
            key: pick(tier.plan, "ledger", key, reason=why)
            for key in (
                "weights_bytes",
                "activation_bytes",
                "kv_pool_bytes",
                "total_bytes",
                "kv_bytes_per_token",
                "num_blocks",
                "kv_pool_tokens",
                "requests_that_fit",
                "max_model_len",
            )
        }
        measured = {
            key: pick(tier.server, "info", "memory", key, reason=tier.why("server"))
            for key in ("weights_bytes", "kv_pool_bytes", "device_reserved_bytes")
        }
        measured["rss_start"] = pick(tier.server, "info", "memory", "rss_bytes", reason=tier.why("server"))
        measured["rss_end"] = pick(tier.server, "info_after", "memory", "rss_bytes", reason=tier.why("server"))
        measured["rss_peak"] = figures[name].rss_bytes
        measured["blocks_peak_share"] = _occupancy(tier)
        rows.append(MemoryRow(name, planned, measured))
    return rows


def _occupancy(tier: TierData) -> Value:
    """The largest share of the KV pool's blocks that was in use in any sample of the load test."""
    if tier.samples is None:
        return Value(None, tier.why("samples"))
    shares = [
        used / total
        for used, total in zip(
            tier.samples["kv_blocks_used"].to_list(), tier.samples["kv_blocks_total"].to_list(), strict=True
        )
        if say.is_number(used) and say.is_number(total) and total
    ]
    if not shares and "kv_usage_share" in tier.samples.columns:  # a server that tells the share alone
        shares = [float(v) for v in tier.samples["kv_usage_share"].to_list() if say.is_number(v)]
    return Value(max(shares)) if shares else Value(None, "the server does not report its blocks")


def memory_bars(rows: list[MemoryRow]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows for the stacked bars: the plan's parts; the measured parts and what else the processes hold, or where a GPU
    computes, what they hold of its memory."""
    out: list[dict[str, Any]] = []
    labels: list[str] = []

    def add(label: str, parts: list[tuple[str, float | None]]) -> None:
        known = [(p, v) for p, v in parts if v is not None]
        if not known:
            return
        labels.append(label)
        order = ["weights", "activations", "KV pool", "rest"]
        out.extend(
            {"label": label, "part": p, "mib": round(v / MIB, 2), "order": order.index(p)} for p, v in known if v > 0
        )

    for row in rows:
        plan, have = row.planned, row.measured
        add(
            f"{row.tier}, planned",
            [
                ("weights", plan["weights_bytes"].value),
                ("activations", plan["activation_bytes"].value),
                ("KV pool", plan["kv_pool_bytes"].value),
            ],
        )
        weights, pool = have["weights_bytes"].value, have["kv_pool_bytes"].value
        device = have["device_reserved_bytes"].value  # where there is one, weights and pool lie there
        peak = have["rss_peak"].value if device is None else device
        # Pages of the pool that no request has touched are allocated but not resident: the rest can be below zero.
        rest = peak - weights - pool if None not in (weights, pool, peak) and peak and weights and pool else None
        add(f"{row.tier}, measured", [("weights", weights), ("KV pool", pool), ("rest", rest)])
    return out, labels


@dataclass(frozen=True)
class TupleRow:
    tier: str
    cells: list[tuple[str, str, bool] | None]  # name, digest, differs from the reference
    measured_eval: str
    measured_load: str
    machine: str


TUPLE_HEAD = ["model", "engine", "quantisation", "evalset", "workload"]


def four_tuples(run: RunData) -> list[TupleRow]:
    """The identities of every tier, marked where they differ from the reference's."""

    def digests(tier: str) -> list[tuple[str, str] | None]:
        quality, load = (header_of(run.tiers.get(tier), p) for p in ("eval", "load"))
        one = quality or load
        named = [getattr(one, k, None) for k in TUPLE_HEAD[:3]]
        named += [quality.workload if quality else None, load.workload if load else None]
        return [(n.name, n.digest) if n else None for n in named]

    base = digests(run.reference)
    rows = []
    for tier in run.tiers:
        cells: list[tuple[str, str, bool] | None] = []
        for mine, theirs in zip(digests(tier), base, strict=True):
            cells.append((*mine, theirs is not None and mine[1] != theirs[1]) if mine else None)
        quality, load = (header_of(run.tiers[tier], p) for p in ("eval", "load"))
        one = load or quality
        rows.append(
            TupleRow(
                tier,
                cells,
                say.moment(quality.measured_at) if quality else say.ABSENT,
                say.moment(load.measured_at) if load else say.ABSENT,
                one.machine.machine_class if one else "unknown",
            )
        )
    return rows


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for k, v in value.items() for pair in _flat(v, f"{prefix}.{k}" if prefix else str(k))]
    if isinstance(value, list) and all(isinstance(v, str | int | float) for v in value):
        return [(prefix, ", ".join(map(str, value)) or "none")]
    return [(prefix, value if isinstance(value, str) else json.dumps(value))]


def derived_facts(run: RunData) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """What the engine derived from its settings, tier by tier: (tiers, [(fact, value of each tier)]).

    The memory ledger is left out; it has a table of its own.
    """
    facts: dict[str, dict[str, str]] = {}
    tiers = []
    for name, tier in run.tiers.items():
        info = (tier.server or {}).get("info") or {}
        derived = info.get("derived")
        if not isinstance(derived, dict):
            header = header_of(tier, "load") or header_of(tier, "eval")
            derived = header.engine_derived if header else {}
        if not derived:
            continue
        tiers.append(name)
        for key, value in _flat({k: v for k, v in derived.items() if k != "ledger"}):
            facts.setdefault(key, {})[name] = value
    return tiers, [(key, [by.get(t, "–") for t in tiers]) for key, by in facts.items()]


@dataclass(frozen=True)
class StageNote:
    label: str
    wall_s: float | None
    peak_bytes: float | None
    began_at: str


def stage_notes(run: RunData) -> list[StageNote]:
    """One entry a stage. The note of an earlier scorecard is left out: this run's own is not written yet."""
    notes = []
    for n in run.stages:
        if n.get("stage") == "scorecard":
            continue
        label = f"{n.get('stage')}@{n['tier']}" if n.get("tier") else str(n.get("stage"))
        wall, peak = n.get("wall_s"), n.get("peak_rss_bytes")
        notes.append(
            StageNote(
                label,
                float(wall) if say.is_number(wall) and wall is not None else None,
                float(peak) if say.is_number(peak) and peak is not None else None,
                str(n.get("began_at") or ""),
            )
        )
    return notes


def _reuse(run: RunData) -> list[str]:
    as_of = str((run.verdict or {}).get("as_of") or "")
    old = []
    for name, tier in run.tiers.items():
        for part in ("eval", "load"):
            header = header_of(tier, part)
            if header and as_of and header.measured_at[:10] < as_of[:10]:
                old.append(f"{'quality' if part == 'eval' else 'load'} of {name} on {header.measured_at[:10]}")
    return [f"Reused from an earlier day: {', '.join(old)}."] if old else []


def known_limits(run: RunData, figures: dict[str, TierFigures]) -> list[str]:
    """What a reader must know before quoting a figure of this run."""
    out: list[str] = []
    profiles = sorted({str(t.load["profile"]) for t in run.tiers.values() if t.load and t.load.get("profile")})
    if profiles and profiles != ["release"]:
        out.append(
            f"The load profile is {', '.join(profiles)}, not release: its stages are short, so tails are known only "
            "as far as the sample sizes carry, and slow drifts (leaks, fragmentation) cannot show."
        )
    sizes = [
        f"{stage} {min(seen)}–{max(seen)}" if min(seen) != max(seen) else f"{stage} {min(seen)}"
        for stage in run.stage_names()
        if (seen := [f.stages[stage].counts["requests"] for f in figures.values() if "requests" in _counts(f, stage)])
    ]
    if sizes:
        out.append(f"Requests in each load stage and tier: {', '.join(sizes)}.")
    partial = [n for n, t in run.tiers.items() if (t.eval or {}).get("partial")]
    if partial:
        out.append(
            f"The evaluation is partial ({', '.join(partial)}): evaluation.items is set in params.yaml. A partial "
            "evaluation is a smoke run and is never released."
        )
    for name, t in run.tiers.items():
        blind = (t.eval or {}).get("not_measurable")
        if blind:
            out.append(f"{blind} items of {name} could not be graded on this machine; they count as wrong.")
        client = (t.load or {}).get("client") or (t.run or {}).get("client") or {}
        if client.get("void"):
            out.append(
                f"The load run of {name} is void: {client.get('void_reason') or 'no reason given'}. "
                "Its latency is not evidence."
            )
        out += [
            f"While {name} was under {f['stage']}, {f['words']}."
            for f in (t.load or {}).get("findings") or []
            if f["kind"] == "host" and f["found"]
        ]
    machines = {h.machine.machine_class for t in run.tiers.values() if (h := header_of(t, "load"))}
    if len(machines) > 1:
        out.append(
            f"The tiers were measured on different machine classes ({'; '.join(sorted(machines))}); "
            "their latency must not be compared."
        )
    if run.verdict is not None and not run.verdict.get("baseline"):
        out.append(
            "There is no baseline yet: nothing has been released, so nothing here says whether latency got worse."
        )
    out += _reuse(run)
    return out


def holes(run: RunData, figures: dict[str, TierFigures]) -> list[str]:
    """What this run could not measure here, whatever its figures say: each with the reason."""
    out: list[str] = []
    machines = {h.machine.machine_class: h.machine for t in run.tiers.values() if (h := header_of(t, "load"))}
    if machines and not any(m.accelerators for m in machines.values()):
        out.append(
            f"Speed on a GPU is not measurable here: this run was made on {'; '.join(machines)}. Quality may be "
            "carried over, latency and throughput may not."
        )
    spans = [
        float(t.load["duration_s"]) for t in run.tiers.values() if t.load and say.is_number(t.load.get("duration_s"))
    ]
    if spans and max(spans) < 4 * 3600:
        out.append(
            "What shows only after hours (slow leaks, fragmentation): the longest load test took "
            f"{say.seconds(max(spans))}."
        )
    thin = [
        f"{name}: {stage}"
        for name, f in figures.items()
        if name == run.candidate
        for stage, s in f.stages.items()
        if s.latency["ttft_ms", "p99"].value is None
    ]
    if thin:
        out.append(f"P99 of TTFT, for too few requests: {', '.join(thin)}.")
    blind = (
        [
            str(f.get("words"))
            for f in (run.tiers[run.candidate].load or {}).get("findings") or []
            if f.get("found") is None and "kind" in f
        ]
        if run.candidate in run.tiers
        else []
    )
    if blind:
        looks = "One look" if len(blind) == 1 else f"{len(blind)} looks"
        out.append(f"{looks} over time could not be told either way; the first: {blind[0]}.")
    out += gap_lines(run)
    if run.review is None:
        out.append("How the answers read to people: nobody rated them (`seatrial review sample` draws a form).")
    if any(t.load for t in run.tiers.values()):
        out.append(
            "Traffic of real users: the load is drawn from the profile's distributions with a fixed seed; a prompt mix "
            "that it does not have was not tried."
        )
    return out


def _counts(figures: TierFigures, stage: str) -> Json:
    return dict(figures.stages[stage].counts) if stage in figures.stages else {}


def not_measured(run: RunData) -> list[str]:
    """Every input that is absent, once, with the reason."""
    reasons = list(run.missing.values())
    for tier in run.tiers.values():
        reasons += tier.missing.values()
    return list(dict.fromkeys(reasons))
