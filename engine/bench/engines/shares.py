"""What an engine gets out of the machine: the bytes of weights and the operations that its work needs at least, over
the time it took, as shares of the ceilings of the same round."""

from __future__ import annotations

from dataclasses import dataclass

from engine.bench.engines.ceilings import Ceilings
from engine.bench.engines.engine import Facts
from engine.bench.engines.figures import Result, Spread, spread_of
from engine.bench.engines.workloads import Workload
from engine.bench.metrics import Figure


@dataclass(frozen=True)
class Share:
    """``achieved`` in GB/s (decode) or GOP/s (prefill); ``share`` of ``ceiling``."""

    engine: str
    what: str
    achieved: Spread
    ceiling: str
    share: Spread


def is_decode(workload: Workload) -> bool:
    """One stream: each token reads every weight once."""
    return len(workload.jobs) == 1 and workload.output_tokens > 1


def is_prefill(workload: Workload) -> bool:
    return len(workload.jobs) == 1 and workload.output_tokens == 1


def share_of(workload: Workload, result: Result, facts: Facts, ceilings: list[Ceilings]) -> Share | None:
    """None where the workload or what the engine says of itself gives no such figure.

    Decode: bytes of weights that a step reads, over ITL. Prefill: 2 x weights of the layers x prompt tokens, over TTFT
    (the head computes one row, and attention is not counted).
    """
    if is_decode(workload) and facts.step_weight_bytes is not None:
        work, times, name = facts.step_weight_bytes / 1e9, result.rounds["itl_ms"], "memory read"
        highest = [c.read_gb_per_s for c in ceilings]
    elif is_prefill(workload) and facts.layer_weights is not None and facts.arithmetic is not None:
        work, times = 2e-9 * facts.layer_weights * workload.prompt_tokens, result.rounds["ttft_ms"]
        name = f"{facts.arithmetic} peak"
        highest = [c.gops.get(facts.arithmetic, 0.0) for c in ceilings]
    else:
        return None
    achieved = [Figure(None, t.reason) if t.value is None else Figure(1000 * work / t.value) for t in times]
    shares = [
        Figure(a.value / h) if a.value is not None and h > 0 else Figure(None, f"no {name} was measured")
        for a, h in zip(achieved, [*highest, *[0.0] * (len(achieved) - len(highest))], strict=True)
    ]
    return Share(
        result.engine, "GB/s" if is_decode(workload) else "GOP/s", spread_of(achieved), name, spread_of(shares)
    )
