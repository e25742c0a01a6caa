"""Figures of one policy, each a table entry: name, title, unit, which direction is better, formula.

Formulas take the records of one or of several runs of the same workload and pool their raw samples; an absent figure
is None with a reason. Percentiles are nearest ranks of raw samples (Hyndman and Fan 1996, definition 1), refused where
fewer than 1 / (1 - q) samples would make them another name for the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

from engine.bench.drive import RunRecord, Step

Records = Sequence[RunRecord]


class Figure(NamedTuple):
    """A number, or None and why there is none."""

    value: float | None
    reason: str | None = None


@dataclass(frozen=True)
class Metric:
    """``compared``: whether a ratio to another policy means something (a count that is often 0 has none)."""

    name: str
    title: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    formula: Callable[[Records], Figure]
    compared: bool = True


# Samples


def ttft_s(records: Records) -> list[float]:
    """Seconds from due to first token of every request. (A run in which one fails has no record.)"""
    return [times[0] - due for r in records for due, times in zip(r.due_s, r.token_s, strict=True)]


def itl_s(records: Records) -> list[float]:
    """Every gap between two tokens of a request, pooled over the requests: a mean of each would hide stalls."""
    return [b - a for r in records for times in r.token_s for a, b in pairwise(times)]


def min_samples(q: float) -> int:
    return math.ceil(1 / (1 - Fraction(str(q))))


def nearest_rank(samples: Sequence[float], q: float) -> float:
    ordered = sorted(samples)
    return ordered[max(math.ceil(Fraction(str(q)) * len(ordered)), 1) - 1]


# Formulas


def _percentile(q: float, samples: Callable[[Records], list[float]], records: Records) -> Figure:
    found = samples(records)
    if len(found) < min_samples(q):
        return Figure(None, f"P{100 * q:g} needs {min_samples(q)} samples, there are {len(found)}")
    return Figure(1000 * nearest_rank(found, q))


def _longest(records: Records) -> Figure:
    gaps = itl_s(records)
    return Figure(1000 * max(gaps)) if gaps else Figure(None, "no request has two tokens")


def _ratio(above: float, below: float, reason: str) -> Figure:
    return Figure(above / below) if below > 0 else Figure(None, reason)


def _tokens_per_s(records: Records) -> Figure:
    return _ratio(sum(len(t) for r in records for t in r.token_s), sum(r.end_s for r in records), "no time passed")


def _tokens_per_busy_s(records: Records) -> Figure:
    return _ratio(sum(len(t) for r in records for t in r.token_s), _busy_s(records), "no step ran the model")


def _busy_s(records: Records) -> float:
    return sum(s.duration_s for r in records for s in r.steps)


def _over_steps(records: Records, value: Callable[[RunRecord, Step], float]) -> Figure:
    """Mean over the steps that ran the model. Not weighted by their time: in a closed loop it then depends on the
    policy alone, not on how busy the machine was."""
    values = [value(r, s) for r in records for s in r.steps]
    return _ratio(sum(values), len(values), "no step ran the model")


def _occupancy(records: Records) -> Figure:
    return _over_steps(records, lambda r, s: s.batch_requests / r.slots)


def _held_slots(records: Records) -> Figure:
    return _over_steps(records, lambda r, s: s.running / r.slots)


def _batch_tokens(records: Records) -> Figure:
    return _over_steps(records, lambda _, s: s.batch_tokens)


def _busy_share(records: Records) -> Figure:
    return _ratio(_busy_s(records), sum(r.end_s for r in records), "no time passed")


def _step_share(part: str, records: Records) -> Figure:
    taken = sum(float(getattr(s, part)) for r in records for s in r.steps)
    return _ratio(taken, _busy_s(records), "no step ran the model")


def _count(key: str, records: Records) -> Figure:
    """Events in one run, the mean over the runs."""
    return _ratio(sum(r.stats[key] for r in records), len(records), "no run")


def reserved_bytes(record: RunRecord, step: Step) -> int:
    return step.reserved_blocks * record.block_bytes


def used_bytes(record: RunRecord, step: Step) -> float:
    """Keys and values that are there."""
    return step.used_tokens * record.block_bytes / record.block_size


def _reserved(records: Records) -> Figure:
    return _over_steps(records, reserved_bytes)


def _used(records: Records) -> Figure:
    return _over_steps(records, used_bytes)


def _peak_reserved(records: Records) -> Figure:
    found = [reserved_bytes(r, s) for r in records for s in r.steps]
    return Figure(max(found)) if found else Figure(None, "no step ran the model")


def _stranded(records: Records) -> Figure:
    return _over_steps(records, lambda r, s: s.stranded_blocks * r.block_bytes)


def _wasted_share(records: Records) -> Figure:
    reserved = sum(reserved_bytes(r, s) for r in records for s in r.steps)
    used = sum(used_bytes(r, s) for r in records for s in r.steps)
    return _ratio(reserved - used, reserved, "nothing was reserved")


def _waiting(records: Records) -> Figure:
    return _over_steps(records, lambda _, s: s.waiting)


METRICS = [
    Metric("output_tokens_per_s", "output, over the run", "tokens/s", "higher", _tokens_per_s),
    Metric("output_tokens_per_busy_s", "output, over step time", "tokens/s", "higher", _tokens_per_busy_s),
    *(
        Metric(f"{name}_p{100 * q:g}_ms", f"{name.upper()} P{100 * q:g}", "ms", "lower", partial(_percentile, q, of))
        for name, of in (("ttft", ttft_s), ("itl", itl_s))
        for q in (0.5, 0.95, 0.99)
    ),
    Metric("longest_gap_ms", "longest gap", "ms", "lower", _longest),
    Metric("batch_occupancy_share", "batch occupancy (computed / slots)", "share", "higher", _occupancy),
    Metric("held_slots_share", "slots held", "share", "neither", _held_slots),
    Metric("batch_tokens_mean", "size of a step", "tokens", "neither", _batch_tokens),
    Metric("waiting_mean", "queue", "requests", "lower", _waiting, compared=False),
    Metric("busy_share", "time in steps", "share", "neither", _busy_share),
    Metric("preemptions", "preemptions", "a run", "lower", partial(_count, "preemptions"), compared=False),
    Metric("recomputed_tokens", "computed again", "tokens a run", "lower", partial(_count, "recomputed_tokens"), False),
    *(
        Metric(
            f"allocation_failures_{cause}",
            f"failed allocations, {cause}",
            "a run",
            "lower",
            partial(_count, f"allocation_failures_{cause}"),
            compared=False,
        )
        for cause in ("exhausted", "fragmented")
    ),
    Metric("kv_reserved_bytes_mean", "KV reserved, mean", "bytes", "lower", _reserved),
    Metric("kv_reserved_bytes_peak", "KV reserved, peak", "bytes", "lower", _peak_reserved),
    Metric("kv_used_bytes_mean", "KV used, mean", "bytes", "neither", _used),
    Metric("kv_wasted_share", "KV reserved but not used", "share", "lower", _wasted_share),
    Metric("kv_stranded_bytes_mean", "KV free, not in one piece, mean", "bytes", "lower", _stranded, compared=False),
    *(
        Metric(f"{name}_share", f"step time: {title}", "share", "neither", partial(_step_share, part), compared=False)
        for name, title, part in (
            ("model", "model", "model_s"),
            ("scheduling", "arrivals, scheduling", "plan_s"),
            ("sampling", "sampling, books", "draw_s"),
        )
    ),
]
BY_NAME = {m.name: m for m in METRICS}
