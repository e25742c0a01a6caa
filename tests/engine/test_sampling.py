from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ledger import SLICE_ROWS
from engine.request import Request, SamplingParams
from engine.sampling import LogitsError, modified, sample, token_logprobs

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


def test_more_greedy_rows_than_are_stacked_at_once() -> None:
    logits = rows(2 * SLICE_ROWS + 5)
    logits[40] = torch.full((VOCAB,), torch.nan)
    found = sample(logits, [request() for _ in logits])
    assert isinstance(found.pop(40), LogitsError)
    assert found == [int(row.argmax()) for i, row in enumerate(logits) if i != 40]


@settings(max_examples=30, deadline=None)
@given(st.permutations(list(range(12))))
def test_shuffling_the_batch_changes_nothing(order: list[int]) -> None:
    kinds: list[dict[str, Any]] = [
        {}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.3, "top_p": 0.8},
        {"logit_bias": {5: 9.0}}, {"repetition_penalty": 1.5, "temperature": 1.0, "min_p": 0.1},
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
