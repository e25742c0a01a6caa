"""Figures against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from pipeline.errors import SeatrialError
from pipeline.fidelity import figures
from pipeline.fidelity.figures import Scored


def scored(logprobs: list[float], best: list[int], kl: list[float] | None = None) -> Scored:
    return Scored(logprobs=logprobs, best=best, kl=kl)


def test_all_tokens_of_all_sequences_are_pooled() -> None:
    halves = [math.log(1 / 2)] * 2
    reference = [scored(halves, [1, 2]), scored([math.log(1 / 8)], [3])]
    variant = [scored([math.log(1 / 4)] * 2, [1, 9], [0.1, 0.5]), scored([math.log(1 / 4)], [3], [0.3])]
    found = figures.compared(reference, variant)
    assert found["tokens"] == 3
    assert found["perplexity"] == pytest.approx(4)
    assert found["reference_perplexity"] == pytest.approx(2 ** (5 / 3))
    assert found["kl_mean"] == pytest.approx(0.3)
    assert found["kl_max"] == found["kl_p99"] == 0.5
    assert found["top1_agreement"] == pytest.approx(2 / 3)


def test_the_99th_percentile_is_a_value_that_was_seen() -> None:
    values = [float(i) for i in range(1, 201)]
    assert figures.percentile(values[::-1], 0.99) == 198
    assert figures.percentile([5.0], 0.99) == 5


def test_sequences_that_do_not_belong_together_are_refused() -> None:
    one = [scored([-1.0], [1], [0.1])]
    with pytest.raises(SeatrialError, match="different sequences; measure both again"):
        figures.compared([scored([-1.0, -1.0], [1, 2])], one)
    with pytest.raises(SeatrialError, match="different sequences"):
        figures.compared([], [])
    with pytest.raises(SeatrialError, match="0 divergences for 1 tokens"):
        figures.compared(one, [scored([-1.0], [1])])


def test_a_divergence_that_grows_has_its_slope_and_a_bound_above_it() -> None:
    exact = figures.slope([0.01 + 0.002 * (i // figures.BIN_TOKENS) for i in range(8 * figures.BIN_TOKENS)])
    assert exact is not None
    assert exact["per_1000_tokens"] == pytest.approx(0.002 / figures.BIN_TOKENS * 1000)
    assert exact["upper"] == pytest.approx(exact["per_1000_tokens"], rel=1e-6)
    jumpy = figures.slope([0.05 * (i // figures.BIN_TOKENS % 2) for i in range(8 * figures.BIN_TOKENS)])
    assert jumpy is not None
    assert jumpy["bins"] == 8
    assert jumpy["upper"] > abs(jumpy["per_1000_tokens"])


def test_a_reference_beside_itself_has_a_slope_of_nothing() -> None:
    found = figures.slope([0.0] * 4 * figures.BIN_TOKENS)
    assert found is not None
    assert (found["per_1000_tokens"], found["upper"]) == (0.0, 0.0)


def test_too_few_tokens_have_no_slope_and_say_so() -> None:
    found = figures.long_figures([0.1] * 300)
    assert (found["slope"], found["reason"]) == (None, "300 tokens; a slope needs 512")
    assert found["kl_mean"] == pytest.approx(0.1)
    assert figures.long_figures([])["kl_mean"] is None
    assert figures.long_figures([0.1] * 512)["reason"] is None


@pytest.mark.parametrize(
    ("a", "b", "at"),
    [("abc", "abc", None), ("abc", "abd", 2), ("abc", "ab", 2), ("", "a", 0), ("", "", None)],
)
def test_where_two_outputs_part(a: str, b: str, at: int | None) -> None:
    assert figures.first_divergence(list(a), list(b)) == at


def test_greedy_outputs_by_the_length_of_the_prompt() -> None:
    found = figures.greedy_figures(
        [10, 64, 255, 5000], [list("aaaa")] * 4, [list("aaaa"), list("aaab"), list("baaa"), list("aaaa")]
    )
    assert (found["prompts"], found["identical_share"]) == (4, 0.5)
    rows = {(r["from"], r["to"]): r for r in found["by_prompt_tokens"]}
    assert rows[64, 256] == {"from": 64, "to": 256, "prompts": 2, "identical": 0, "first_divergence_median": 1.5}
    assert (rows[0, 64]["identical"], rows[0, 64]["first_divergence_median"]) == (1, None)
    assert rows[256, 1024]["prompts"] == 0
    assert rows[1024, None]["prompts"] == 1
    assert figures.greedy_figures([], [], [])["identical_share"] is None
