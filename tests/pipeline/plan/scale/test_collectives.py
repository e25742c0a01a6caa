"""What an all-reduce sends, against a simulation that moves real pieces, and the limits that every algorithm keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.scale.collectives import ALL_REDUCE, NOTHING, all_reduce, best, gather, ring, send, tree
from pipeline.plan.scale.links import Link
from pipeline.plan.scale.parallel import Split
from pipeline.plan.scale.predict import tensor_wires
from tests.pipeline.plan.scale.settings import link_of, setting_of

LINK = Link("own", 1.0, 10.0, "test", 1.0)


def ring_simulated(n: int) -> tuple[list[list[int]], int, float]:
    """Device i starts with i in each of n pieces. All pieces afterwards, steps, and the share of a message that each
    device has sent."""
    held = [[i] * n for i in range(n)]
    steps, sent = 0, 0
    for phase in ("reduce", "gather"):
        for step in range(n - 1):
            moving = [(i, (i - step + (phase == "gather")) % n) for i in range(n)]
            values = [held[i][piece] for i, piece in moving]
            for (i, piece), value in zip(moving, values, strict=True):
                to = (i + 1) % n
                held[to][piece] = held[to][piece] + value if phase == "reduce" else value
            steps, sent = steps + 1, sent + 1
    return held, steps, sent / n


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_ring_takes_the_steps_and_bytes_of_one_that_was_walked(n: int) -> None:
    held, steps, share = ring_simulated(n)
    assert held == [[sum(range(n))] * n] * n  # it was an all-reduce
    wire = ring(n, 1000.0, LINK)
    assert wire.messages == steps
    assert wire.bytes_sent == pytest.approx(share * 1000)
    assert wire.seconds == pytest.approx(steps * 10e-6 + share * 1000 / 1e9)


def test_a_tree_is_for_small_messages_and_a_ring_for_large_ones() -> None:
    assert best(16, 1e3, LINK) == tree(16, 1e3, LINK)
    assert best(16, 1e9, LINK) == ring(16, 1e9, LINK)
    assert tree(16, 1e3, LINK).messages == 8
    assert tree(9, 1e3, LINK).messages == 8


@pytest.mark.parametrize("algorithm", sorted(ALL_REDUCE))
@given(n=st.integers(2, 64), size=st.floats(1, 1e9), faster=st.floats(1, 100))
def test_a_better_link_is_never_slower(algorithm: str, n: int, size: float, faster: float) -> None:
    now = all_reduce(algorithm, n, size, LINK)
    assert all_reduce(algorithm, n, size, Link("b", faster, 10.0, "test", 1.0)).seconds <= now.seconds
    assert all_reduce(algorithm, n, size, Link("l", 1.0, 10.0 / faster, "test", 1.0)).seconds <= now.seconds
    assert now.seconds >= 2 * 10e-6  # it takes two steps at the very least


def test_one_device_sends_nothing() -> None:
    for algorithm in ALL_REDUCE:
        assert all_reduce(algorithm, 1, 1e6, LINK) == NOTHING
    assert gather(1, 1e6, LINK) == NOTHING


def test_a_gather_and_a_send() -> None:
    assert gather(4, 1000.0, LINK).bytes_sent == 750
    assert gather(4, 1000.0, LINK).messages == 3
    assert send(1000.0, LINK).seconds == pytest.approx(10e-6 + 1e-6)


def test_a_layer_has_two_all_reduces_of_the_hidden_states() -> None:
    """Megatron-LM, section 3, and by hand: 8 rows x 4096 x 2 bytes, twice in 32 layers."""
    layers, logits = tensor_wires(setting_of(), Split(tensor=2), link_of(1.0, 10.0), 8, 8)
    assert layers.messages == 2 * 32 * 2
    assert layers.bytes_sent == 2 * 32 * 8 * 4096 * 2
    assert logits.bytes_sent == 8 * 128256 * 2 / 2
