from __future__ import annotations

from typing import Any

import pytest

from loadtests.counting import Miscount, TokenCounter, UsageMissing
from tests.loadtests.mock_server import Reply, events


def count(plan: Reply, max_tokens: int = 5) -> tuple[TokenCounter, list[float]]:
    """Counts a stream whose chunk i arrives at second i; also the arrival of each token by the server's own account."""
    counter, truth = TokenCounter(), []
    sizes = iter(plan.chunks or [("w", 1)] * max_tokens)
    for i, (chunk, is_token) in enumerate(events(plan, {"max_tokens": max_tokens})):
        if isinstance(chunk, dict):
            counter.add(chunk, float(i))
        if is_token:
            truth += [float(i)] * next(sizes)[1]
    counter.finish()
    counter.arrivals()
    return counter, truth


@pytest.mark.parametrize("usage", ["continuous", "final"])
@pytest.mark.parametrize("role", ["first_token", "own_chunk", "none"])
def test_a_token_a_chunk(usage: Any, role: Any) -> None:
    counter, truth = count(Reply(usage=usage, role=role))
    assert counter.arrivals().tolist() == truth
    assert counter.finish_reason == "length"


def test_the_role_chunk_is_not_the_first_token() -> None:
    counter, _ = count(Reply(usage="final", role="own_chunk"))
    assert counter.arrivals()[0] == 1.0


@pytest.mark.parametrize("usage", ["continuous", "final"])
def test_tokens_without_text_count(usage: Any) -> None:
    counter, truth = count(Reply(usage=usage, role="none", chunks=[("", 1), ("a", 1), ("", 1), ("b", 1)]))
    assert counter.arrivals().tolist() == truth == [0.0, 1.0, 2.0, 3.0]


def test_a_first_token_without_text_in_the_role_chunk_is_known_by_running_usage() -> None:
    counter, truth = count(Reply(usage="continuous", role="first_token", chunks=[("", 1), ("a", 1)]))
    assert counter.arrivals().tolist() == truth == [0.0, 1.0]


def test_a_first_token_without_text_in_the_role_chunk_is_found_by_the_final_usage() -> None:
    counter, truth = count(Reply(usage="final", role="first_token", chunks=[("", 1), ("a", 1)], claim=3))
    assert counter.arrivals().tolist() == [*truth, 2.0]


def test_several_tokens_in_a_chunk_by_running_usage() -> None:
    counter, truth = count(Reply(usage="continuous", chunks=[("a", 1), ("b c d", 3), ("e f", 2)]))
    assert counter.arrivals().tolist() == truth == [0.0, 1.0, 1.0, 1.0, 2.0, 2.0]


def test_several_tokens_in_a_chunk_by_the_final_usage() -> None:
    plan = Reply(usage="final", chunks=[("a", 1), ("b c d e f g", 4), ("h", 1)], claim=6)
    counter, truth = count(plan)
    assert len(counter.arrivals()) == 6
    gaps = sorted(b - a for a, b in zip(counter.arrivals(), counter.arrivals()[1:], strict=False))
    assert sum(g > 0 for g in gaps) == len({*truth, 3.0}) - 1  # one gap between chunks each, zero within


def test_an_end_token_without_a_chunk_arrives_with_the_finish() -> None:
    for usage in ("continuous", "final"):
        counter, truth = count(Reply(usage=usage, extra_token_at_end=True))  # type: ignore[arg-type]
        assert counter.arrivals().tolist() == [*truth, 5.0]


def test_no_usage_is_an_error() -> None:
    with pytest.raises(UsageMissing, match="include_usage"):
        count(Reply(usage="none"))


@pytest.mark.parametrize("usage", ["continuous", "final"])
def test_usage_below_the_stream_is_an_error(usage: Any) -> None:
    with pytest.raises(Miscount, match="2 output tokens, but the stream showed 5"):
        count(Reply(usage=usage, claim=2))


def test_running_usage_that_falls_is_an_error() -> None:
    counter = TokenCounter()
    counter.add({"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": 3}}, 0.0)
    counter.add({"choices": [{"delta": {"content": "b"}}], "usage": {"completion_tokens": 1}}, 1.0)
    with pytest.raises(Miscount, match="down from 3 to 1"):
        counter.arrivals()


def test_reasoning_text_counts() -> None:
    counter = TokenCounter()
    counter.add({"choices": [{"delta": {"reasoning_content": "hm"}}]}, 0.0)
    counter.add({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}, 1.0)
    counter.add({"choices": [], "usage": {"completion_tokens": 2}}, 1.0)
    counter.finish()
    assert counter.arrivals().tolist() == [0.0, 1.0]
    assert counter.finish_reason == "stop"


def test_content_in_parts_counts() -> None:
    """Some servers send a list of parts where others send a string."""
    counter = TokenCounter()
    for at_s in (0.0, 1.0):
        counter.add({"choices": [{"delta": {"content": [{"type": "text", "text": "a"}]}}]}, at_s)
    counter.add({"choices": [], "usage": {"completion_tokens": 2}}, 1.0)
    counter.finish()
    assert counter.arrivals().tolist() == [0.0, 1.0]
