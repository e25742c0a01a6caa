"""Facts and a load -> advice.

In this order: is it the weights that take the memory; which tier; what the evalset cannot see; which pinned cases are
at the edge. A tier is recommended if it is the smallest of those that lose no pinned case and surely lose less accuracy
than matters; where none is sure, the reference stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

from pipeline.advise.facts import Facts, TierFacts
from pipeline.fidelity.figures import percentile

CONFIDENCE, POWER = 0.95, 0.8
LOSS_POINTS = 2.0  # that matter, where nobody says otherwise
MIB = 2**20
Kind = Literal["memory", "tier", "evalset", "edge", "missing"]


@dataclass(frozen=True)
class Load:
    """What is to be served: requests at once, tokens of each, and the loss of accuracy that matters, in points."""

    concurrency: int
    context_tokens: int
    loss_points: float


@dataclass(frozen=True)
class Advice:
    """``figures``: each number of the sentence; ``sources``: the files that they come from."""

    kind: Kind
    tier: str | None
    text: str
    figures: dict[str, float]
    sources: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def advise(facts: Facts, load: Load) -> list[Advice]:
    """All that can be said. ``missing`` says what was not measured, and how to measure it."""
    verdicts = [_loss(facts, tier, load) for tier in sorted(facts.tiers, key=lambda t: (t.weight_bytes, t.tier))]
    return [
        _memory(facts, load),
        _choice(facts, verdicts, load),
        *(v.advice for v in verdicts),
        *(a for tier in facts.tiers if (a := _edge(facts.reference, tier)) is not None),
    ]


def _memory(facts: Facts, load: Load) -> Advice:
    weights = facts.reference.weight_bytes
    tokens = load.concurrency * load.context_tokens
    kv = tokens * facts.kv_bytes_per_token
    total = weights + kv
    smallest = min((t.weight_bytes for t in facts.tiers), default=weights)
    spared = weights - smallest
    of_kv = {dtype: kv - tokens * size for dtype, size in facts.kv_narrow_bytes_per_token.items()}
    figures: dict[str, float] = {
        "concurrency": load.concurrency,
        "context_tokens": load.context_tokens,
        "weight_bytes": weights,
        "kv_bytes": kv,
        "spared_by_smallest_tier_bytes": spared,
        **{f"spared_by_{dtype}_kv_bytes": of for dtype, of in of_kv.items()},
    }
    begin = (
        f"{load.concurrency} requests of {load.context_tokens} tokens take {kv / MIB:.0f} MiB of KV cache "
        f"({facts.kv_dtype}) beside {weights / MIB:.0f} MiB of weights of {facts.reference.tier}"
    )
    if kv > weights:
        text = (
            f"{begin}: the weights are not the bottleneck. The smallest tier spares {spared / total:.0%} of the whole"
            + "".join(f", an {dtype} KV cache {of / total:.0%}" for dtype, of in of_kv.items() if of > 0)
            + "; shrink the KV cache or the context first."
        )
    else:
        text = (
            f"{begin}: the weights are the larger part, and the smallest tier spares {spared / total:.0%} of the whole."
        )
    return Advice(
        "memory", None, text, figures, [str(facts.reference.weights_file), *(str(t.weights_file) for t in facts.tiers)]
    )


@dataclass(frozen=True)
class _Verdict:
    tier: TierFacts
    good: bool
    advice: Advice


def _loss(facts: Facts, tier: TierFacts, load: Load) -> _Verdict:
    """Whether a tier surely loses less than matters, and what it would take to know."""
    from pipeline.gate.statistics.paired import paired_delta

    before, after = facts.reference.items, tier.items
    sources = [str(facts.reference.items_file), str(tier.items_file)]
    if before is None or after is None:
        who = facts.reference.tier if before is None else tier.tier
        text = f"{tier.tier} cannot be judged: {who} has not been evaluated; run `seatrial evaluate --tier {who}`."
        return _Verdict(tier, False, Advice("missing", tier.tier, text, {}, sources))
    ids = sorted(before)
    pair = paired_delta(
        [after[i].score for i in ids],
        [before[i].score for i in ids],
        [before[i].scenario for i in ids],
        [before[i].source for i in ids],
        CONFIDENCE,
    )
    pinned = [i for i in ids if before[i].pinned and after[i].score < before[i].score]
    loss, worst, matters = -100 * pair.delta, -100 * pair.low, load.loss_points
    figures: dict[str, float] = {
        "items": pair.n, "loss_points": loss, "worst_loss_points": worst, "matters_points": matters,
        "confidence": CONFIDENCE, "pinned_lost": len(pinned),
    }  # fmt: skip
    begin = (
        f"{tier.tier} loses {loss:.1f} points of accuracy on {pair.n} items, at worst {worst:.1f} "
        f"({CONFIDENCE:.0%} confidence)"
    )
    if pinned:
        text = (
            f"{begin}, and fails pinned cases that {facts.reference.tier} passes: {', '.join(pinned)}. Do not use it."
        )
        return _Verdict(tier, False, Advice("tier", tier.tier, text, figures, sources))
    if worst <= matters:
        text = f"{begin}: less than the {matters:g} points that matter."
        return _Verdict(tier, True, Advice("tier", tier.tier, text, figures, sources))
    if loss > matters:
        text = f"{begin}: more than the {matters:g} points that matter have been seen."
        return _Verdict(tier, False, Advice("tier", tier.tier, text, figures, sources))
    share = max((pair.lost + pair.gained) / pair.n, 1 / pair.n)
    needed = items_needed(share, matters)
    figures |= {"differing_share": share, "items_needed": needed}
    text = (
        f"{begin}: the evalset is too small to exclude a loss of {matters:g} points. With {share:.1%} of the items "
        f"changed, about {needed} independent items would see it {POWER:.0%} of the time."
    )
    return _Verdict(tier, False, Advice("evalset", tier.tier, text, figures, sources))


def items_needed(differing_share: float, loss_points: float) -> int:
    """Pairs that tell a loss of ``loss_points`` from none (Connor 1987): d ((z_confidence + z_power) / loss)^2."""
    z = NormalDist().inv_cdf(CONFIDENCE) + NormalDist().inv_cdf(POWER)
    return math.ceil(differing_share * (100 * z / loss_points) ** 2)


def _choice(facts: Facts, verdicts: Sequence[_Verdict], load: Load) -> Advice:
    reference = facts.reference
    best = next((v for v in verdicts if v.good), None)
    if best is None:
        text = (
            f"Do not quantise yet: stay with {reference.tier}, since no tier surely loses less than "
            f"{load.loss_points:g} points."
        )
        sources = [str(v.tier.items_file) for v in verdicts]
        return Advice("tier", reference.tier, text, {"matters_points": load.loss_points}, sources)
    tier = best.tier
    figures: dict[str, float] = {"weight_bytes": tier.weight_bytes, "reference_weight_bytes": reference.weight_bytes}
    sources = [str(tier.weights_file), str(tier.items_file)]
    text = (
        f"Use {tier.tier}: with {tier.weight_bytes / MIB:.0f} MiB of weights instead of "
        f"{reference.weight_bytes / MIB:.0f} it is the smallest tier that surely loses less than "
        f"{load.loss_points:g} points"
    )
    rival = min((v.tier for v in verdicts if v.good and v.tier.kl_mean is not None), key=_divergence, default=None)
    if tier.kl_mean is not None and rival is not None:
        figures |= {"kl_mean": tier.kl_mean, "least_kl_mean": _divergence(rival)}
        sources += [str(tier.fidelity_file), str(rival.fidelity_file)]
        text += f"; its divergence is {tier.kl_mean:.3g} nats a token" + (
            ", the least of them" if rival is tier else f", {rival.tier} has the least of them, {rival.kl_mean:.3g}"
        )
    return Advice("tier", tier.tier, f"{text}.", figures, sources)


def _divergence(tier: TierFacts) -> float:
    return math.inf if tier.kl_mean is None else tier.kl_mean


def _edge(reference: TierFacts, tier: TierFacts) -> Advice | None:
    """Pinned choices that are right by less than what this tier moves nine of ten margins."""
    before, after = reference.items, tier.items
    if before is None or after is None:
        return None
    moved = [
        abs(new.margin - old.margin)
        for old, new in ((before[i], after[i]) for i in before)
        if old.margin is not None and new.margin is not None
    ]
    if not moved:
        return None
    usual = percentile(moved, 0.9)
    edge = {i: o.margin for i, o in before.items() if o.pinned and o.margin is not None and 0 <= o.margin < usual}
    if not edge:
        return None
    names = ", ".join(f"{i} by {m:.3f}" for i, m in sorted(edge.items()))
    text = (
        f"{tier.tier} moves the margin of nine choices in ten by up to {usual:.3f}; pinned cases that {reference.tier} "
        f"gets right by less: {names}. Another build may lose them."
    )
    figures = {"margin_moved_p90": usual, "choices": len(moved), **{f"margin {i}": m for i, m in edge.items()}}
    return Advice("edge", tier.tier, text, figures, [str(reference.items_file), str(tier.items_file)])
