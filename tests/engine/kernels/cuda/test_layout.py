"""A step in one buffer: what is put in comes out, fields are aligned, padding stays behind the step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kernels.cuda.layout import ALIGNMENT, Layout, fill, is_decode, pad
from engine.kernels.cuda.replay import batch_classes, width_classes
from engine.kernels.interface import AttentionMeta, StepInput


def step_of(rows: int, requests: int, wanted: int, blocks: int) -> StepInput:
    """Every tensor with numbers of its own."""
    counted = iter(range(1000, 1_000_000, 1000))

    def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return (torch.arange(torch.Size(shape).numel()) + next(counted)).to(dtype).view(shape)

    return StepInput(
        *(numbers(torch.int64, rows) for _ in range(3)),
        AttentionMeta(
            numbers(torch.int32, requests + 1), numbers(torch.int32, requests), numbers(torch.int32, requests, blocks)
        ),
        numbers(torch.int64, wanted),
    )


def tensors_of(step: StepInput) -> list[torch.Tensor]:
    meta = step.meta
    return [
        step.tokens,
        step.positions,
        step.slots,
        step.wanted,
        meta.query_starts,
        meta.context_lens,
        meta.block_tables,
    ]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 40), st.integers(1, 12))
def test_what_is_put_in_comes_out(rows: int, requests: int, wanted: int, blocks: int) -> None:
    step = step_of(rows, requests, wanted, blocks)
    layout = Layout.of(step)
    buffer = torch.full((layout.nbytes,), 255, dtype=torch.uint8)
    views = layout.views(buffer)
    fill(views, step)
    for found, expected in zip(tensors_of(views), tensors_of(step), strict=True):
        assert torch.equal(found, expected)
        assert (found.data_ptr() - buffer.data_ptr()) % ALIGNMENT == 0


@given(st.integers(1, 8), st.integers(1, 5))
def test_padding_lies_behind_the_step_and_in_the_scratch_block(requests: int, blocks: int) -> None:
    step, layout = step_of(requests, requests, requests, blocks), Layout(8, 8, 8, 5)
    step.meta.query_starts.copy_(torch.arange(requests + 1))
    step.wanted.copy_(torch.arange(requests))
    views = layout.views(torch.full((layout.nbytes,), 255, dtype=torch.uint8))
    fill(views, step)
    pad(views, requests, scratch=77, block_size=16)
    assert torch.equal(views.tokens[:requests], step.tokens)
    assert torch.equal(views.meta.block_tables[:requests, :blocks], step.meta.block_tables)
    assert not views.meta.block_tables[:requests, blocks:].any()
    assert views.meta.query_starts.tolist() == list(range(9))
    assert views.wanted.tolist() == list(range(8))
    assert (views.meta.block_tables[requests:] == 77).all()
    assert (views.slots[requests:] == 77 * 16).all()
    assert (views.meta.context_lens[requests:] == 1).all()
    assert is_decode(views)


def test_a_prompt_is_no_decode_step() -> None:
    assert is_decode(step_of(3, 3, 3, 1))
    assert not is_decode(step_of(4, 3, 3, 1))
    assert not is_decode(step_of(3, 3, 2, 1))


@pytest.mark.parametrize(
    ("most", "classes"), [(1, [1]), (3, [1, 2, 4]), (16, [1, 2, 4, 8, 16]), (17, [1, 2, 4, 8, 16, 24])]
)
def test_batch_classes(most: int, classes: list[int]) -> None:
    assert batch_classes(most) == classes


@given(st.integers(1, 300), st.integers(1, 100_000), st.sampled_from([1, 16, 64]))
def test_every_step_has_a_class(most: int, tokens: int, size: int) -> None:
    assert batch_classes(most)[-1] >= most
    widths = width_classes(tokens, size)
    assert widths[-1] == -(-tokens // size)
    assert widths == sorted(set(widths))
