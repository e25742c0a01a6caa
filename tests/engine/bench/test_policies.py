"""The table of policies."""

from __future__ import annotations

import pytest

from engine.bench.errors import BenchError
from engine.bench.policies import DEFAULT_POLICIES, POLICIES, choose, small_pool_blocks
from engine.bench.traces import Lengths
from engine.config import EngineConfig


def test_each_policy_differs_from_what_it_is_measured_against_in_what_it_says() -> None:
    base = EngineConfig()
    expected = {
        "baseline": {},
        "static": {"batching": "static"},
        "separate": {"prefill": "separate"},
        "contiguous": {"kv_reservation": "contiguous", "prefix_caching": False},
        "short-gap": {"decode_gap_tokens": base.prefill_chunk_tokens},
        "small-paged": {},
        "small-contiguous": {"kv_reservation": "contiguous", "prefix_caching": False},
    }
    for name, changes in expected.items():
        assert POLICIES[name].config(base).model_dump() == base.model_dump() | changes
        against = POLICIES[name].against
        assert against is None or POLICIES[against].small_pool == POLICIES[name].small_pool


def test_the_base_of_another_policy_changes_no_policy() -> None:
    base = EngineConfig(batching="static", prefill="separate", kv_reservation="contiguous", prefix_caching=False)
    plain = POLICIES["baseline"].config(base)
    assert (plain.batching, plain.prefill, plain.kv_reservation) == ("continuous", "mixed", "paged")


def test_choosing_brings_along_what_is_compared_with() -> None:
    assert [p.name for p in choose(["static"])] == ["baseline", "static"]
    assert [p.name for p in choose(["small-contiguous"])] == ["small-paged", "small-contiguous"]
    assert [p.name for p in choose(["static", "baseline", "static"])] == ["baseline", "static"]
    assert [p.name for p in choose(DEFAULT_POLICIES)] == DEFAULT_POLICIES


@pytest.mark.parametrize("names", [["statick"], ["static", "x"], []])
def test_unknown_policies_are_named(names: list[str]) -> None:
    wrong = next((n for n in names if n not in POLICIES), "(none)").replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(BenchError, match=f"unknown policy '{wrong}'; known: baseline, static"):
        choose(names)


def test_the_small_pool_is_a_share_of_a_full_batch() -> None:
    config = EngineConfig(max_num_seqs=4)
    rows = [Lengths(20, 10), Lengths(50, 14)]  # 2 and 4 blocks of 16
    assert small_pool_blocks(rows, config, 0.5, 100) == 6  # half of 4 times 3
    with pytest.raises(
        BenchError, match=r"a pool of 2 blocks.*longest request, which needs 4; give --pool-share 0\.34"
    ):
        small_pool_blocks(rows, config, 0.1, 100)
    assert small_pool_blocks(rows, config, 0.34, 100) >= 4
    with pytest.raises(BenchError, match=r"a pool of 6 blocks.*no smaller than the engine's own of 6"):
        small_pool_blocks(rows, config, 0.5, 6)
