"""A step's inputs in one buffer, so that one copy brings them to the device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.draws import COLUMNS
from engine.kernels.interface import AttentionMeta, StepInput

ALIGNMENT = 16  # of a field's bytes


@dataclass(frozen=True)
class Layout:
    """The sizes of a step, and where each of its tensors lies: field after field, each at a multiple of ALIGNMENT."""

    rows: int
    requests: int
    wanted: int
    blocks: int  # of a block table

    @classmethod
    def of(cls, step: StepInput) -> Layout:
        requests, blocks = step.meta.block_tables.shape
        return cls(len(step.tokens), int(requests), len(step.wanted), int(blocks))

    @property
    def fields(self) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        a_row, a_request = torch.int64, torch.int32
        return [
            (a_row, (self.rows,)),  # tokens
            (a_row, (self.rows,)),  # positions
            (a_row, (self.rows,)),  # slots
            (a_row, (self.wanted,)),
            (a_row, (self.wanted, COLUMNS)),  # draws
            (a_request, (self.requests + 1,)),  # query starts
            (a_request, (self.requests,)),  # context lengths
            (a_request, (self.requests, self.blocks)),
        ]

    @property
    def nbytes(self) -> int:
        return sum(_padded(dtype, shape) for dtype, shape in self.fields)

    def views(self, buffer: Tensor) -> StepInput:
        """The step whose tensors lie in ``buffer`` (uint8, ``nbytes`` or more)."""
        found, at = [], 0
        for dtype, shape in self.fields:
            size = math.prod(shape) * dtype.itemsize
            found.append(buffer[at : at + size].view(dtype).view(shape))
            at += _padded(dtype, shape)
        tokens, positions, slots, wanted, draws, starts, lengths, tables = found
        return StepInput(tokens, positions, slots, AttentionMeta(starts, lengths, tables), wanted, draws)


def fill(into: StepInput, step: StepInput) -> None:
    """Copies ``step`` to the front of ``into``, which has at least its rows, requests, wanted rows and blocks; the
    tables of its requests are filled up with 0, and so are draws where it has none. What lies behind stays as it is."""
    assert into.draws is not None  # every layout has them
    into.draws[: len(step.wanted)] = 0 if step.draws is None else step.draws
    for target, source in (
        (into.tokens, step.tokens),
        (into.positions, step.positions),
        (into.slots, step.slots),
        (into.wanted, step.wanted),
        (into.meta.query_starts, step.meta.query_starts),
        (into.meta.context_lens, step.meta.context_lens),
    ):
        target[: len(source)] = source
    requests, blocks = step.meta.block_tables.shape
    into.meta.block_tables[:requests, :blocks] = step.meta.block_tables
    into.meta.block_tables[:requests, blocks:] = 0


def pad(into: StepInput, first: int, scratch: int, block_size: int) -> None:
    """Makes requests of one token in the scratch block of what lies from request ``first`` on in a decode step."""
    count = len(into.tokens)
    assert into.draws is not None  # every layout has them
    into.draws[first:] = 0
    into.tokens[first:] = 0
    into.positions[first:] = 0
    into.slots[first:] = scratch * block_size
    into.wanted[first:] = torch.arange(first, count)
    into.meta.query_starts[first:] = torch.arange(first, count + 1, dtype=torch.int32)
    into.meta.context_lens[first:] = 1
    into.meta.block_tables[first:] = scratch


def is_decode(step: StepInput) -> bool:
    """Whether each request has one row, and all of them are wanted."""
    return len(step.tokens) == len(step.wanted) == len(step.meta.context_lens)


def _padded(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * int(dtype.itemsize) // ALIGNMENT) * ALIGNMENT
