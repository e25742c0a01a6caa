from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from engine.request import Request, SamplingParams
from engine.sampling import LogitsError, gumbel, kept, modified, sample, token_logprobs

VOCAB = 300


def request(seed: int = 0, output: list[int] | None = None, **params: Any) -> Request:
    made = Request("r", [1, 2, 3], SamplingParams(**{"max_tokens": 50, **params}), seed)
    made.tokens += output or []
    return made


def rows(count: int, seed: int = 0) -> list[torch.Tensor]:
    return list(torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3)


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    row = torch.zeros(VOCAB)
    row[[250, 17, 90]] = 5.0
    assert sample([row, row], [request(), request()]) == [17, 17]
    assert sample([row], [request(logit_bias={90: 0.0, 4: -1.0})]) == [17]


@settings(max_examples=30, deadline=None)
@given(st.permutations(list(range(12))))
def test_shuffling_the_batch_changes_nothing(order: list[int]) -> None:
    kinds: list[dict[str, Any]] = [
        {}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.3, "top_p": 0.8},
        {"logit_bias": {5: 9.0}}, {"repetition_penalty": 1.5},
    ]  # fmt: skip
    made = [request(seed=i, **kinds[i % 6]) for i in range(12)]
    logits = rows(12)
    alone = [sample([logits[i]], [made[i]])[0] for i in range(12)]
    assert sample([logits[i] for i in order], [made[i] for i in order]) == [alone[i] for i in order]


def test_rows_are_not_changed() -> None:
    logits = rows(2)
    before = [r.clone() for r in logits]
    sample(logits, [request(logit_bias={3: 50.0}, temperature=1.0), request(repetition_penalty=2.0)])
    assert all(torch.equal(a, b) for a, b in zip(logits, before, strict=True))


def test_draws_follow_the_distribution() -> None:
    row = torch.full((VOCAB,), -math.inf)
    wanted = [0.5, 0.3, 0.15, 0.05]
    row[:4] = torch.tensor(wanted).log()
    made = [request(seed=s, temperature=1.0) for s in range(3000)]
    found = Counter(sample([row] * 3000, made))
    assert set(found) <= {0, 1, 2, 3}
    assert stats.chisquare([found[i] for i in range(4)], [w * 3000 for w in wanted]).pvalue > 1e-3


def test_noise_has_the_gumbel_distribution_and_is_keyed() -> None:
    ids = torch.arange(20_000)
    noise = gumbel(1, 2, ids)
    assert stats.kstest(noise.numpy(), "gumbel_r").pvalue > 1e-3
    assert torch.equal(noise[[5, 77]], gumbel(1, 2, torch.tensor([5, 77])))
    for other in (gumbel(1, 3, ids), gumbel(2, 2, ids)):
        assert abs(stats.pearsonr(noise.numpy(), other.numpy()).statistic) < 0.05


def test_top_k_and_top_p() -> None:
    scaled = torch.tensor([0.1, 0.4, 0.2, 0.3, 0.4]).double().log()
    assert kept(scaled, SamplingParams(1, top_k=1)).tolist() == [1]  # the lower id of two equal ones
    assert kept(scaled, SamplingParams(1, top_k=3)).tolist() == [1, 4, 3]
    assert kept(scaled, SamplingParams(1, top_p=0.5)).tolist() == [1, 4]
    assert kept(scaled, SamplingParams(1, top_p=0.01)).tolist() == [1]
    assert kept(scaled, SamplingParams(1, top_k=2, top_p=0.3)).tolist() == [1]
    assert sorted(kept(scaled, SamplingParams(1, top_k=99)).tolist()) == [0, 1, 2, 3, 4]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99), st.sampled_from([0.05, 0.5, 0.9, 0.99, 0.9999]), st.sampled_from([0.3, 1.0, 30.0]))
def test_nucleus_is_that_of_a_full_sort(seed: int, top_p: float, temperature: float) -> None:
    row = torch.randn(6000, generator=torch.Generator().manual_seed(seed)).mul(4).round().double() / temperature
    values, order = row.sort(descending=True, stable=True)
    mass = torch.softmax(values, dim=-1).cumsum(-1)
    found = kept(row, SamplingParams(1, top_p=top_p))
    assert found.tolist() == order[: len(found)].tolist()
    assert mass[len(found) - 1] >= top_p - 1e-9
    assert len(found) == 1 or mass[len(found) - 2] < top_p + 1e-9


def test_penalties() -> None:
    row = torch.tensor([2.0, -2.0, 1.0, 1.0, 1.0])
    made = request(output=[4, 4, 0], repetition_penalty=2.0)
    assert modified(row, made).tolist() == [1.0, -4.0, 0.5, 0.5, 0.5]
    made = request(output=[4, 4, 0], presence_penalty=0.5, frequency_penalty=0.25)
    assert modified(row, made).tolist() == [1.25, -2.0, 1.0, 1.0, 0.0]
    made = request(output=[4], min_tokens=2, stop_token_ids=(0, 3))
    assert modified(row, made).tolist() == [-math.inf, -2.0, 1.0, -math.inf, 1.0]
    assert modified(row, request(output=[4, 4], min_tokens=2, stop_token_ids=(0,))).tolist() == row.tolist()


def test_logits_that_are_not_finite_are_errors_of_their_own_request() -> None:
    bad = torch.full((VOCAB,), math.nan)
    found = sample([bad, *rows(1), bad], [request(), request(), request(temperature=1.0)])
    assert isinstance(found[0], LogitsError)
    assert isinstance(found[2], LogitsError)
    assert found[1] == int(rows(1)[0].argmax())


def test_logprobs_do_not_depend_on_the_batch() -> None:
    logits = torch.stack(rows(70))
    ids = [(7 * i) % VOCAB for i in range(70)]
    together = token_logprobs(logits, ids, 4)
    for i in range(70):
        assert token_logprobs(logits[i : i + 1], ids[i : i + 1], 4)[0] == together[i]
    truth = torch.log_softmax(logits.double(), dim=-1)
    assert [t.logprob for t in together] == pytest.approx([float(truth[i, t]) for i, t in enumerate(ids)], abs=1e-5)
    assert [t.top_ids for t in together] == truth.topk(4).indices.tolist()
    assert token_logprobs(logits[:1], ids[:1], 0)[0].top_ids == []
