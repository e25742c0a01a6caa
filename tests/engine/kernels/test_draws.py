"""Draws with a temperature on every backend: the host's tokens, or none where only the host can tell."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch

from engine.draw import draw
from engine.kernels.draws import NOT_DRAWN, can_draw, draw_rows, read, row_of
from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton import TritonKernels
from engine.request import SamplingParams

BACKENDS: list[Any] = [ReferenceKernels, *([TritonKernels] if os.environ.get("TRITON_INTERPRET") == "1" else [])]
FILTERS: list[dict[str, Any]] = [
    {}, {"top_k": 1}, {"top_k": 7}, {"top_p": 0.4}, {"top_p": 0.97}, {"min_p": 0.03}, {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.83}, {"min_p": 0.01, "top_k": 9, "top_p": 0.91}, {"top_k": 10_000}, {"top_p": 1e-9},
]  # fmt: skip
TEMPERATURES = [5e-324, 0.7, 1.3, 1e300]


def params(temperature: float, **filters: Any) -> SamplingParams:
    return SamplingParams(max_tokens=9, temperature=temperature, **filters)


@pytest.fixture(params=BACKENDS, ids=lambda b: b.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    made: Kernels = request.param(torch.float32, threads=1)
    return made


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def drawn(kernels: Kernels, logits: torch.Tensor, how: list[tuple[SamplingParams, int, int]]) -> list[int]:
    _, largest = kernels.best(logits)
    found: list[int] = kernels.draw(logits, largest, torch.tensor([row_of(*row) for row in how])).tolist()
    return found


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_tokens_are_the_hosts(kernels: Kernels, filters: dict[str, Any]) -> None:
    """Flat and steep rows, and one with many equal logits."""
    logits = normal(4, 300) * torch.tensor([3.0, 3.0, 1.0, 0.1])[:, None]
    logits[2] = (logits[2] * 4).round() / 4
    logits[1, ::7] = -math.inf
    how = [(params(t, **filters), 2**63 + i, 5 + i) for i, t in enumerate(TEMPERATURES)]
    expected = [draw(row.numpy(), p, seed, at) for row, (p, seed, at) in zip(logits, how, strict=True)]
    assert drawn(kernels, logits, how) == expected


def test_a_vocabulary_of_several_parts(kernels: Kernels) -> None:
    logits = normal(2, 9001, seed=1) * 2
    logits[:, 9000], logits[1, 4096] = 7.5, 7.5
    how = [(params(1.0), 3, 9), (params(0.9, top_k=30, top_p=0.9), 4, 9)]
    expected = [draw(row.numpy(), p, seed, at) for row, (p, seed, at) in zip(logits, how, strict=True)]
    assert drawn(kernels, logits, how) == expected


def test_rows_that_nothing_is_drawn_from(kernels: Kernels) -> None:
    """Greedy ones, and those whose largest logit is not finite."""
    logits = normal(4, 60)
    logits[1, 3], logits[2, 9], logits[3] = math.nan, math.inf, -math.inf
    assert drawn(kernels, logits, [(params(0.0), 1, 2), *[(params(1.0), 1, 2)] * 3]) == [NOT_DRAWN] * 4


def test_where_rounding_decides_the_host_is_asked(kernels: Kernels) -> None:
    """Forty equal tokens of which half have the mass that is wanted, to the last bit: either the one on the edge does
    not win, or it is the host's to say."""
    logits = torch.zeros(6, 40)
    how = [(params(1.0, top_p=0.5), seed, 1) for seed in range(6)]
    found = drawn(kernels, logits, how)
    for row, (p, seed, at), token in zip(logits, how, found, strict=True):
        assert token in {draw(row.numpy(), p, seed, at), NOT_DRAWN}
    assert sum(token != NOT_DRAWN for token in found) > 3


def test_a_row_of_numbers_and_back() -> None:
    for p in (params(0.7), params(1e300, top_k=2**40, top_p=0.3, min_p=0.123)):
        row = row_of(p, 2**64 - 1, 77)
        assert all(-(2**63) <= number < 2**63 for number in row)
        how = read(row)
        assert (how.temperature, how.top_p, how.min_p) == (p.temperature, p.top_p, p.min_p)
        assert how.top_k == min(p.top_k, 2**31 - 1)
        logits = normal(1, 200)
        expected = draw(logits[0].numpy(), p, 2**64 - 1, 77)
        assert draw_rows(logits, logits.amax(1), torch.tensor([row])) == [expected]


def test_what_changes_logits_is_the_hosts() -> None:
    assert can_draw(params(0.5, top_k=3))
    assert not can_draw(params(0.0))
    assert not can_draw(params(0.5, presence_penalty=0.1))
    assert not can_draw(params(0.5, logit_bias={3: 1.0}))


def test_tokens_that_follow_a_step(kernels: Kernels) -> None:
    best = torch.tensor([[5, 0, -1], [6, 0, 77], [7, 0, 0]], dtype=torch.int32)
    tokens = torch.tensor([-1, 9, -3, 0, -2, -1] + [4] * 200)
    assert kernels.follow(tokens, best).tolist() == [5, 9, 0, 0, 77, 5] + [4] * 200
