"""Attention's ways through a step - chunks each in a program of its own or all in one, requests alone or among others,
in one piece or in several - must give the same bits; and plain attention's result."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.interface import AttentionMeta
from engine.kernels.triton import TritonKernels
from engine.kernels.triton.launch import AttentionTile
from tests.engine.kernels.conftest import assert_close
from tests.engine.kernels.test_attention import Sequence, exact, filled, last_rows, place, run, stored
from tests.engine.kernels.triton.conftest import interpreted

pytestmark = interpreted
SMALL = AttentionTile(rows=16, chunk=32, keys=16)
ALWAYS = 1 << 30


def backend(dtype: torch.dtype, split_programs: int) -> TritonKernels:
    return TritonKernels(dtype, tile=SMALL, split_programs=split_programs)


@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [(torch.float32, torch.int8), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.uint4)],
    ids=str,
)
def test_split_and_whole_alone_and_together_in_one_piece_and_in_two(
    dtype: torch.dtype, kv_dtype: torch.dtype, window: int | None
) -> None:
    s, other = (Sequence(seed, n, 3, 1, 16, dtype) for seed, n in ((0, 75), (1, 9)))
    found = []
    for split, start in ((0, 0), (ALWAYS, 0), (0, 70), (ALWAYS, 70)):
        kernels = backend(dtype, split)
        cache = kernels.new_kv_cache(place([s, other], 8, seed=split % 7), 8, 1, 16, kv_dtype)
        if start:
            run(kernels, [(s, 0, start)], cache, window)
        step = [(s, start, s.length), *([(other, 0, other.length)] if start else [])]
        found.append(run(kernels, step, cache, window)[0])
    assert_close(found[0], exact(s, kv_dtype, window), dtype)
    for out in found[1:]:
        assert torch.equal(out, found[0][-len(out) :])


def test_a_long_context_ends_at_every_edge() -> None:
    """Of chunks, steps, blocks and tiles."""
    s = Sequence(1, 130, 2, 1, 16, torch.float32)
    whole, split = backend(torch.float32, 0), backend(torch.float32, ALWAYS)
    cache = filled(whole, s, 4, torch.float32)
    full = exact(s, torch.float32)
    ends = [1, 16, 17, 32, 33, 130]
    outs = ends, last_rows(whole, s, cache, ends, 2), last_rows(split, s, cache, ends, 2)
    for end, found, again in zip(*outs, strict=True):
        assert torch.equal(found, again)
        assert_close(found, full[end - len(found) : end], torch.float32)


def test_8192_tokens_in_the_tiles_of_a_gpu() -> None:
    s = Sequence(2, 8192, 2, 1, 16, torch.bfloat16)
    kernels = TritonKernels(torch.bfloat16, tile=AttentionTile(keys=256))
    cache = filled(kernels, s, 16, torch.int8)
    scores = torch.einsum("hd,khd->hk", s.q[-1].double(), stored(s.k, torch.int8).expand(-1, 2, -1)) / 4
    expected = torch.einsum("hk,khd->hd", scores.softmax(-1), stored(s.v, torch.int8).expand(-1, 2, -1))
    assert_close(last_rows(kernels, s, cache, [8192], 1)[0][0], expected, torch.bfloat16)


def test_offsets_beyond_32_bits() -> None:
    """A block far into a pool of more than 2^31 numbers: memory that is only asked for, not touched."""
    blocks, size, dim = (1 << 31) // (16 * 64) + 2, 16, 64
    kernels = backend(torch.bfloat16, 0)
    s = Sequence(3, 16, 1, 1, dim, torch.bfloat16)
    s.blocks = [blocks - 1]
    shape = (blocks, 1, size, dim)
    cache = kernels.new_kv_cache(1, size, 1, dim, torch.bfloat16)
    far = type(cache)(*(torch.empty(shape, dtype=torch.bfloat16).transpose(1, 2) for _ in range(2)))
    assert_close(run(kernels, [(s, 0, 16)], far)[0], exact(s, torch.bfloat16), torch.bfloat16)


def test_requests_without_queries_and_padding_are_passed_over() -> None:
    """As a captured graph has them: more places for requests than there are."""
    kernels = backend(torch.float32, 0)
    s = Sequence(4, 20, 2, 1, 16, torch.float32)
    cache = filled(kernels, s, 4, torch.float32)
    tables = torch.tensor([s.blocks, [0] * 5, s.blocks, [0] * 5], dtype=torch.int32)
    meta = AttentionMeta(
        torch.tensor([0, 1, 1, 3, 3], dtype=torch.int32), torch.tensor([20, 0, 20, 0], dtype=torch.int32), tables
    )
    q = torch.cat([s.q[-1:], s.q[-2:]])
    found = kernels.paged_attention(q, cache, meta, 0.25)
    assert torch.equal(found[0], found[2])
    assert_close(found[1:], exact(s, torch.float32)[-2:], torch.float32)


def test_more_heads_of_a_kv_head_than_a_tile_has_rows() -> None:
    """As models with one KV head have them: the tile becomes larger."""
    s = Sequence(5, 40, 20, 1, 16, torch.float32)
    for split in (0, ALWAYS):
        kernels = backend(torch.float32, split)
        cache = kernels.new_kv_cache(place([s], 8, seed=1), 8, 1, 16, torch.float32)
        assert_close(run(kernels, [(s, 0, 40)], cache)[0], exact(s, torch.float32), torch.float32)
