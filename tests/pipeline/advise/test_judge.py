"""Advice on made-up measurements whose right answer is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.advise.facts import Facts, Outcome, TierFacts
from pipeline.advise.judge import Advice, Load, advise, items_needed

MIB = 2**20
LOAD = Load(concurrency=2, context_tokens=512, loss_points=4)


def outcomes(lost: int = 0, gained: int = 0, n: int = 400, pinned_lost: bool = False) -> dict[str, Outcome]:
    """Half of ``n`` items right, then ``lost`` of these wrong and ``gained`` of the others right; two are pinned."""
    scores = [1.0] * (n // 2) + [0.0] * (n - n // 2)
    for i in range(lost):
        scores[10 + i] = 0.0
    for i in range(gained):
        scores[-1 - i] = 1.0
    scores[0] = 0.0 if pinned_lost else scores[0]
    return {f"i-{k:03d}": Outcome(s, "one", f"s{k}", k < 2, None) for k, s in enumerate(scores)}


def tier(name: str, mib: int, items: dict[str, Outcome] | None, kl: float | None = None) -> TierFacts:
    return TierFacts(name, mib * MIB, Path(f"{name}/m"), items, Path(f"{name}/i"), kl, Path(f"{name}/f"))


def facts(*tiers: TierFacts, kv: int = 20_000, items: dict[str, Outcome] | None = None) -> Facts:
    return Facts(
        tier("bf16", 256, items or outcomes()), list(tiers), "bfloat16", kv, {"int8": kv // 2 + 1000, "int4": 7_000}
    )


def of(found: list[Advice], kind: str) -> list[Advice]:
    return [a for a in found if a.kind == kind]


def test_the_smallest_tier_that_is_surely_good_is_chosen() -> None:
    found = advise(facts(tier("int8", 150, outcomes(1, 1), 0.01), tier("int4", 90, outcomes(2, 2), 0.05)), LOAD)
    choice = of(found, "tier")[0]
    assert choice.text.startswith("Use int4: with 90 MiB of weights instead of 256 it is the smallest tier")
    assert "its divergence is 0.05 nats a token, int8 has the least of them, 0.01" in choice.text
    assert choice.sources == ["int4/m", "int4/i", "int4/f", "int8/f"]
    bad = advise(facts(tier("int8", 150, outcomes(1, 1)), tier("int4", 90, outcomes(60, 2))), LOAD)
    assert of(bad, "tier")[0].tier == "int8"
    assert "int4 loses 14.5 points" in of(bad, "tier")[1].text


def test_a_lost_pinned_case_rules_a_tier_out() -> None:
    found = advise(facts(tier("int8", 150, outcomes(0, 1, pinned_lost=True))), LOAD)
    assert of(found, "tier")[0].text.startswith("Do not quantise yet: stay with bf16")
    assert of(found, "tier")[1].text.endswith("fails pinned cases that bf16 passes: i-000. Do not use it.")


def test_an_evalset_that_is_too_small_says_how_many_items_it_would_take() -> None:
    found = advise(facts(tier("int8", 150, outcomes(2, 2, n=40)), items=outcomes(n=40)), LOAD)
    (small,) = of(found, "evalset")
    assert small.figures["differing_share"] == pytest.approx(0.1)
    assert small.figures["items_needed"] == items_needed(0.1, 4) == 387
    assert "about 387 independent items would see it 80% of the time" in small.text
    assert of(found, "tier")[0].tier == "bf16"


def test_where_the_kv_cache_is_the_larger_part_it_comes_first() -> None:
    tiers = tier("int4", 90, outcomes())
    light = advise(facts(tiers), LOAD)[0]
    assert "the weights are the larger part" in light.text
    heavy = advise(facts(tiers), replace(LOAD, concurrency=64, context_tokens=4096))[0]
    assert "the weights are not the bottleneck" in heavy.text
    kv = 64 * 4096 * 20_000
    assert heavy.figures["kv_bytes"] == kv
    assert heavy.figures["spared_by_int8_kv_bytes"] == 64 * 4096 * 9_000
    assert heavy.figures["spared_by_int4_kv_bytes"] == 64 * 4096 * 13_000
    whole = 256 * MIB + kv
    assert (
        f"{166 * MIB / whole:.0%} of the whole, an int8 KV cache {64 * 4096 * 9_000 / whole:.0%}, "
        f"an int4 KV cache {64 * 4096 * 13_000 / whole:.0%};" in heavy.text
    )
    eight = {"int8": 20_000, "int4": 7_000}
    already = advise(replace(facts(tiers), kv_narrow_bytes_per_token=eight), replace(LOAD, concurrency=640))[0]
    assert "an int8 KV cache" not in already.text
    assert "an int4 KV cache" in already.text


def test_pinned_cases_at_the_edge_are_named() -> None:
    before, after = outcomes(), outcomes()
    for k, i in enumerate(before):
        margin = 0.05 if k == 0 else 2.0
        before[i] = replace(before[i], margin=margin)
        after[i] = replace(after[i], margin=margin + 0.3)
    (edge,) = of(advise(facts(tier("int8", 150, after), items=before), LOAD), "edge")
    assert edge.figures["margin_moved_p90"] == pytest.approx(0.3)
    assert "i-000 by 0.050. Another build may lose them." in edge.text
    assert "i-001" not in edge.text
    assert of(advise(facts(tier("int8", 150, before), items=before), LOAD), "edge") == []


def test_what_was_not_measured_is_said() -> None:
    found = advise(facts(tier("int8", 150, None)), LOAD)
    assert of(found, "missing")[0].text == (
        "int8 cannot be judged: int8 has not been evaluated; run `seatrial evaluate --tier int8`."
    )
    nothing = replace(facts(tier("int8", 150, outcomes())), reference=tier("bf16", 256, None))
    assert "bf16 has not been evaluated" in of(advise(nothing, LOAD), "missing")[0].text


def test_every_sentence_has_a_source_and_its_figures() -> None:
    tiers = [tier("int8", 150, outcomes(1, 1), 0.01), tier("int4", 90, outcomes(9, 2)), tier("fp8", 140, None)]
    for advice in advise(facts(*tiers), LOAD):
        assert advice.sources, advice.text
        numbers = re.findall(r"\d+\.\d+", advice.text)
        assert not numbers or advice.figures, advice.text
