"""Paged attention: against plain attention in float64, and bit by bit for any batch, split and block placement."""

from __future__ import annotations

import random

import pytest
import torch

from engine.kernels.interface import AttentionMeta, Kernels, KvCache
from tests.engine.kernels.conftest import assert_close

SHAPES = [(4, 2, 16, 16), (9, 3, 64, 16), (8, 1, 24, 4), (6, 6, 128, 32), (5, 1, 8, 1), (4, 4, 80, 24)]


class Sequence:
    """q, k, v of one request, and where its blocks lie."""

    def __init__(self, seed: int, length: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
        g = torch.Generator().manual_seed(seed)
        self.q = (torch.randn(length, heads, dim, generator=g) * 2).to(dtype)
        self.k, self.v = (torch.randn(length, kv_heads, dim, generator=g).to(dtype) for _ in range(2))
        self.length = length
        self.blocks: list[int] = []


def place(sequences: list[Sequence], block_size: int, seed: int) -> int:
    """Scatters the sequences' blocks over a pool; returns its size."""
    needs = [-(-s.length // block_size) for s in sequences]
    free = list(range(sum(needs) + 3))
    random.Random(seed).shuffle(free)
    for s, need in zip(sequences, needs, strict=True):
        s.blocks, free = free[:need], free[need:]
    return sum(needs) + 3


def run(
    kernels: Kernels, parts: list[tuple[Sequence, int, int]], cache: KvCache, window: int | None = None
) -> list[torch.Tensor]:
    """One step of (sequence, start, stop) parts: writes their keys and values, then attends."""
    size = cache.block_size
    slots = torch.tensor([s.blocks[p // size] * size + p % size for s, a, b in parts for p in range(a, b)])
    k, v, q = (torch.cat([getattr(s, name)[a:b] for s, a, b in parts]) for name in "kvq")
    kernels.write_kv(k, v, cache, slots)
    widest = max(len(s.blocks) for s, _, _ in parts)
    meta = AttentionMeta(
        torch.tensor([0, *(b - a for _, a, b in parts)]).cumsum(0).int(),
        torch.tensor([b for _, _, b in parts], dtype=torch.int32),
        torch.tensor([s.blocks + [0] * (widest - len(s.blocks)) for s, _, _ in parts], dtype=torch.int32),
    )
    out = kernels.paged_attention(q, cache, meta, q.shape[-1] ** -0.5, window)
    return list(out.split([b - a for _, a, b in parts]))


def exact(s: Sequence, kv_dtype: torch.dtype, window: int | None = None) -> torch.Tensor:
    q, k, v = s.q.double(), s.k.to(kv_dtype).double(), s.v.to(kv_dtype).double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    unseen = torch.ones(s.length, s.length, dtype=torch.bool).triu(1)
    if window is not None:
        unseen |= torch.ones_like(unseen).tril(-window)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(unseen, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block_size"), SHAPES)
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16], ids=["kv-float32", "kv-bfloat16"])
@pytest.mark.parametrize("window", [None, 1, 20, 48])
def test_equals_plain_attention(
    kernels: Kernels, heads: int, kv_heads: int, dim: int, block_size: int, kv_dtype: torch.dtype, window: int | None
) -> None:
    sequences = [Sequence(i, n, heads, kv_heads, dim, kernels.dtype) for i, n in enumerate([1, 16, 37, 70])]
    blocks = place(sequences, block_size, seed=1)
    pool = kernels.new_kv_cache(blocks, block_size, kv_heads, dim, kv_dtype)
    found = run(kernels, [(s, 0, s.length) for s in sequences], pool, window)
    for s, out in zip(sequences, found, strict=True):
        assert_close(out, exact(s, kv_dtype, window), kernels.dtype)


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block_size"), SHAPES)
@pytest.mark.parametrize("window", [None, 21])
def test_any_batch_and_any_split_give_the_same_bits(
    kernels: Kernels, heads: int, kv_heads: int, dim: int, block_size: int, window: int | None
) -> None:
    lengths = [1, 5, 17, 33, 40, 64]
    sequences = [Sequence(i, n, heads, kv_heads, dim, kernels.dtype) for i, n in enumerate(lengths)]
    alone = []
    for s in sequences:
        blocks = place([s], block_size, seed=2)
        pool = kernels.new_kv_cache(blocks, block_size, kv_heads, dim, kernels.dtype)
        alone.append(run(kernels, [(s, 0, s.length)], pool, window)[0])
    for seed in range(3):
        draw = random.Random(seed)
        blocks = place(sequences, block_size, seed)
        cache = kernels.new_kv_cache(blocks, block_size, kv_heads, dim, kernels.dtype)
        cache.k.fill_(7.0)  # what others left behind must not matter
        cache.v.fill_(torch.nan if kernels.name == "cpu" else 1e30)
        done, outs = [0] * len(sequences), [[] for _ in sequences]  # type: ignore[var-annotated]
        while any(d < s.length for d, s in zip(done, sequences, strict=True)):
            order = [i for i, s in enumerate(sequences) if done[i] < s.length]
            draw.shuffle(order)
            parts, chosen = [], order[: draw.randint(1, len(order))]
            for i in chosen:
                stop = min(sequences[i].length, done[i] + draw.choice([1, 2, 7, 16, 31]))
                parts.append((sequences[i], done[i], stop))
                done[i] = stop
            for i, out in zip(chosen, run(kernels, parts, cache, window), strict=True):
                outs[i].append(out)
        for i in range(len(sequences)):
            assert torch.equal(torch.cat(outs[i]), alone[i]), f"sequence of {lengths[i]} tokens, seed {seed}"


def test_write_kv_touches_its_slots_only(kernels: Kernels) -> None:
    cache = kernels.new_kv_cache(3, 4, 2, 8, torch.float32)
    assert cache.k.shape == cache.v.shape == (3, 4, 2, 8)
    assert (cache.block_size, cache.nbytes) == (4, 2 * 3 * 4 * 2 * 8 * 4)
    assert not any(t.any() for t in cache.tensors)
    k, v = torch.randn(2, 2, 8).to(kernels.dtype), torch.randn(2, 2, 8).to(kernels.dtype)
    kernels.write_kv(k, v, cache, torch.tensor([5, 11]))
    for tensor, x in ((cache.k, k), (cache.v, v)):
        assert torch.equal(tensor[1, 1], x[0].float())
        assert torch.equal(tensor[2, 3], x[1].float())
        assert tensor.count_nonzero() == 32


def test_huge_scores_do_not_overflow(kernels: Kernels) -> None:
    s = Sequence(0, 40, 2, 1, 16, kernels.dtype)
    s.q *= 200
    place([s], 16, seed=0)
    out = run(kernels, [(s, 0, 40)], kernels.new_kv_cache(6, 16, 1, 16, kernels.dtype))[0]
    assert torch.isfinite(out.float()).all()
    assert_close(out, exact(s, kernels.dtype), kernels.dtype)
