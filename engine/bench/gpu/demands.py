"""What a GPU has to show, held against what a run found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Found = dict[str, dict[str, Any]]  # by part, as parts.run_all leaves it


@dataclass(frozen=True)
class Demand:
    """``value`` of the parts' results raises LookupError or TypeError where there is none."""

    name: str
    value: Callable[[Found], float]
    limit: float
    better: Literal["high", "low"]

    def judged(self, found: Found) -> dict[str, Any]:
        try:
            value = float(self.value(found))
        except (LookupError, TypeError, ValueError) as e:
            return {
                "demand": self.name,
                "found": None,
                "limit": self.limit,
                "met": None,
                "reason": f"not measured: {e!r}",
            }
        met = value >= self.limit if self.better == "high" else value <= self.limit
        return {"demand": self.name, "found": value, "limit": self.limit, "met": met}


def _result(found: Found, part: str, *keys: str) -> Any:
    value = found[part]["result"]
    for key in keys:
        value = value[key]
    return value


def _least_share(prefix: str) -> Callable[[Found], float]:
    def value(found: Found) -> float:
        shares = _result(found, "kernels 8B decode", "share_of_ceiling")
        return min(float(v) for k, v in shares.items() if k.startswith(prefix) and not k.endswith("2048 rows"))

    return value


DEMANDS = (
    Demand("rows whose bits depend on their batch", lambda f: _result(f, "invariance", "rows_different"), 0, "low"),
    Demand("greedy divergences beyond bf16 rounding", lambda f: _result(f, "greedy", "beyond_rounding"), 0, "low"),
    Demand("drawn tokens that are not the host's", lambda f: _result(f, "draws", "different"), 0, "low"),
    Demand("decode attention, share of bandwidth", _least_share("attention decode"), 0.7, "high"),
    Demand("int4 products at batch 1-8, share of bandwidth", _least_share("products w4a16"), 0.7, "high"),
    Demand("int8 products at batch 1-8, share of bandwidth", _least_share("products w8a8"), 0.7, "high"),
    Demand(
        "prefill of 2,048 tokens, share of bf16 peak",
        lambda f: _result(f, "steps 8B bf16", "prefill", "share_of_bf16_peak"),
        0.6,
        "high",
    ),
    Demand(
        "decode step at batch 1, times of reading the weights",
        lambda f: _result(f, "steps 8B bf16", "decode", "times_of_reading_weights"),
        1.5,
        "low",
    ),
    Demand("C64, times transformers", lambda f: _result(f, "C64 135M", "ours_times_transformers"), 3.0, "high"),
)


def judge(found: Found) -> list[dict[str, Any]]:
    return [demand.judged(found) for demand in DEMANDS]


def table(judged: list[dict[str, Any]]) -> str:
    """Of plain text: what was demanded, what was found."""
    lines = []
    for entry in judged:
        value = "not measured" if entry["found"] is None else f"{entry['found']:.3g} (limit {entry['limit']:g})"
        met = {True: "met", False: "NOT MET", None: "open"}[entry["met"]]
        lines.append(f"{entry['demand']:<56} {value:<28} {met}")
    return "\n".join(lines)
