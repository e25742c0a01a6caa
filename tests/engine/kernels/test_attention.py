"""Paged attention: against plain attention in float64, and bit by bit for any batch, split and block placement."""

from __future__ import annotations

import random

import pytest
import torch

from engine.artifact import ArtifactError
from engine.isa import isa_features
from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import AttentionMeta, Kernels, KvCache
from tests.engine.kernels.conftest import BACKENDS, DTYPES, assert_close, slow

SHAPES = [(4, 2, 16, 16), (9, 3, 64, 16), (8, 1, 24, 4), (6, 6, 128, 32), (5, 1, 8, 1), (4, 4, 80, 24)]
FEW = SHAPES[2::2]  # one KV head


KV_DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.uint4]
GROUPS = (16, 64)  # of keys and of values of 4 bits


def kv_id(dtype: torch.dtype) -> str:
    return f"kv-{str(dtype).removeprefix('torch.')}"


def skip_if_slow(kernels: Kernels, *shape: int) -> None:
    if slow(kernels) and shape not in FEW:
        pytest.skip("seconds in the interpreter; it tries the shapes with one KV head")


def stored(x: torch.Tensor, kv_dtype: torch.dtype, group: int = 16) -> torch.Tensor:
    """What a cache keeps of x [T, kv_heads, D], in float64; int8 and uint4, the latter in groups, by their definitions,
    without the code under test."""
    if kv_dtype == torch.uint4:
        codes, scale, base = four_bits(x, group)
        return codes.double() * scale.double() + base.double()
    if kv_dtype != torch.int8:
        return x.to(kv_dtype).double()
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return (x.float() / scale).round().double() * scale.double()


def four_bits(x: torch.Tensor, group: int) -> list[torch.Tensor]:
    """Codes, scales and bases, of each value [..., D]."""
    found = []
    for at in range(0, x.shape[-1], group):
        own = x[..., at : at + group].float()
        base = own.min(-1, keepdim=True).values
        scale = ((own.max(-1, keepdim=True).values - base) / 15).bfloat16().float()
        base, scale = base.bfloat16().float(), scale.where(scale > 0, torch.tensor(1.0))
        codes = ((own - base) / scale).round().clamp(0, 15)
        found.append((codes, scale.expand(own.shape), base.expand(own.shape)))
    return [torch.cat(parts, -1) for parts in zip(*found, strict=True)]


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
    q, (k, v) = s.q.double(), (stored(x, kv_dtype, own) for x, own in zip((s.k, s.v), GROUPS, strict=True))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    unseen = torch.ones(s.length, s.length, dtype=torch.bool).triu(1)
    if window is not None:
        unseen |= torch.ones_like(unseen).tril(-window)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(unseen, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block_size"), SHAPES)
@pytest.mark.parametrize(
    ("kv_dtype", "window"),
    [*((d, None) for d in KV_DTYPES), (torch.float32, 1), (torch.bfloat16, 20), (torch.int8, 48), (torch.uint4, 21)],
)
def test_equals_plain_attention(
    kernels: Kernels, heads: int, kv_heads: int, dim: int, block_size: int, kv_dtype: torch.dtype, window: int | None
) -> None:
    skip_if_slow(kernels, heads, kv_heads, dim, block_size)
    lengths = [1, 37] if slow(kernels) else [1, 16, 37, 70]
    sequences = [Sequence(i, n, heads, kv_heads, dim, kernels.dtype) for i, n in enumerate(lengths)]
    blocks = place(sequences, block_size, seed=1)
    pool = kernels.new_kv_cache(blocks, block_size, kv_heads, dim, kv_dtype)
    found = run(kernels, [(s, 0, s.length) for s in sequences], pool, window)
    for s, out in zip(sequences, found, strict=True):
        assert_close(out, exact(s, kv_dtype, window), kernels.dtype)


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block_size"), SHAPES)
@pytest.mark.parametrize(("kv_dtype", "window"), [(None, None), (None, 21), (torch.int8, None), (torch.uint4, None)])
def test_any_batch_and_any_split_give_the_same_bits(
    kernels: Kernels,
    heads: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    kv_dtype: torch.dtype | None,
    window: int | None,
) -> None:
    skip_if_slow(kernels, heads, kv_heads, dim, block_size)
    kv_dtype = kv_dtype or kernels.dtype
    lengths = [5, 40] if slow(kernels) else [1, 5, 17, 33, 40, 64]
    sequences = [Sequence(i, n, heads, kv_heads, dim, kernels.dtype) for i, n in enumerate(lengths)]
    alone = []
    for s in sequences:
        blocks = place([s], block_size, seed=2)
        pool = kernels.new_kv_cache(blocks, block_size, kv_heads, dim, kv_dtype)
        alone.append(run(kernels, [(s, 0, s.length)], pool, window)[0])
    for seed in range(1 if slow(kernels) else 3):
        draw = random.Random(seed)
        blocks = place(sequences, block_size, seed)
        cache = kernels.new_kv_cache(blocks, block_size, kv_heads, dim, kv_dtype)
        cache.k.fill_(7)  # what others left behind must not matter
        for left in cache.tensors[1:]:
            codes = not left.is_floating_point()
            left.fill_(99 if codes else 1e30 if kernels.name == "reference" else torch.nan)
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [1, 8, 16, 40, 80, 256])
def test_eight_bit_values_and_scales_are_the_same_in_all_backends(dtype: torch.dtype, dim: int) -> None:
    """Exactly: absmax / 127 for each token and head, halves to even; a row of zeros has scale 1."""
    g = torch.Generator().manual_seed(dim)
    k, v = (torch.randn(33, 3, dim, generator=g) * torch.logspace(-8, 8, 33)[:, None, None] for _ in range(2))
    k[4], v[7, 1] = 0.0, 0.0
    k[5] = torch.arange(3 * dim).view(3, dim) % 254 - 126.5  # halves, and one of them the largest
    k, v = k.to(dtype), v.to(dtype)
    slots = torch.randperm(48, generator=g)[:33]
    caches = [b(dtype, threads=2).new_kv_cache(3, 16, 3, dim, torch.int8) for b in BACKENDS]
    for backend, cache in zip(BACKENDS, caches, strict=True):
        backend(dtype, threads=2).write_kv(k, v, cache, slots)
        assert [t.dtype for t in cache.tensors] == [torch.int8] * 2 + [torch.float32] * 2
        for x, q, scale in ((k, cache.k, cache.k_scale), (v, cache.v, cache.v_scale)):
            assert scale is not None
            assert scale.shape == (3, 16, 3)
            expected = x.float().abs().amax(-1) / 127
            expected = expected.where(expected > 0, torch.ones_like(expected))
            assert torch.equal(scale.flatten(0, 1)[slots], expected)
            assert torch.equal(q.flatten(0, 1)[slots].float(), (x.float() / expected[..., None]).round())
            assert scale.count_nonzero() == 33 * 3
    for found in caches[1:]:
        for first, other in zip(caches[0].tensors, found.tensors, strict=True):
            assert torch.equal(first, other)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [2, 8, 16, 40, 80, 256])
def test_four_bit_values_and_scales_are_the_same_in_all_backends(dtype: torch.dtype, dim: int) -> None:
    """Exactly, by their definition; and read as they are by no more than half a step and a rounding of the base."""
    g = torch.Generator().manual_seed(dim)
    k, v = (torch.randn(33, 3, dim, generator=g) * torch.logspace(-8, 8, 33)[:, None, None] for _ in range(2))
    k[4], v[7, 1], v[9] = 0.0, 0.0, 3.0
    k[5] = torch.arange(3 * dim).view(3, dim) % 16 / 2  # halves
    k, v = k.to(dtype), v.to(dtype)
    slots = torch.randperm(48, generator=g)[:33]
    for backend in BACKENDS:
        kernels = backend(dtype, threads=2)
        cache = kernels.new_kv_cache(3, 16, 3, dim, torch.uint4)
        kernels.write_kv(k, v, cache, slots)
        assert cache.four_bits
        assert [t.dtype for t in cache.tensors] == [torch.uint8] * 2 + [torch.bfloat16] * 2
        for x, q, scales, group in zip((k, v), (cache.k, cache.v), (cache.k_scale, cache.v_scale), GROUPS, strict=True):
            assert scales is not None
            assert scales.shape == (3, 16, 3, -(-dim // group), 2)
            codes, scale, base = four_bits(x, group)
            own = scales.flatten(0, 1)[slots].float().repeat_interleave(group, -2)[..., :dim, :]
            assert torch.equal(own, torch.stack((scale, base), -1))
            held = q.flatten(0, 1)[slots]
            assert torch.equal(torch.stack((held & 15, held >> 4), -1).flatten(-2).float(), codes)
            assert not q.flatten(0, 1)[sorted(set(range(48)) - set(slots.tolist()))].any()
            error = (codes * scale + base - x.float()).abs()
            assert (error <= scale / 2 + x.float().abs().amax(-1, keepdim=True) * 2**-7).all()


def test_four_bits_are_refused_to_odd_heads(kernels: Kernels) -> None:
    with pytest.raises(ArtifactError, match=r"head_dim is 5, which is odd; .*such as 4 or 6\): set kv_dtype to int8"):
        kernels.new_kv_cache(2, 16, 2, 5, torch.uint4)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.uint4], ids=kv_id)
def test_what_is_not_finite_is_not_hidden_by_few_bits(kernels: Kernels, kv_dtype: torch.dtype) -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        s = Sequence(0, 20, 2, 1, 24, kernels.dtype)
        s.v[3, 0, 17] = bad
        place([s], 16, seed=0)
        out = run(kernels, [(s, 0, 20)], kernels.new_kv_cache(6, 16, 1, 24, kv_dtype))[0].float()
        assert torch.isfinite(out[:3]).all()
        assert not torch.isfinite(out[3:]).all(-1).any()


@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=kv_id)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backends_agree(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    found = []
    for backend in BACKENDS:
        s = Sequence(5, 150, 6, 2, 80, dtype)
        place([s], 16, seed=3)
        kernels = backend(dtype, threads=2)
        found.append(run(kernels, [(s, 0, 150)], kernels.new_kv_cache(13, 16, 2, 80, kv_dtype), window=77)[0])
    for other in found[1:]:
        assert_close(other, found[0], dtype)


EDGES = [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 400]  # of pieces, strips, ranges, blocks


def last_rows(
    kernels: Kernels, s: Sequence, cache: KvCache, ends: list[int], rows: int, window: int | None = None
) -> list[torch.Tensor]:
    """The ``rows`` rows before each of ``ends``, all in one step, over a cache that holds the sequence already."""
    counts = [min(rows, end) for end in ends]
    q = torch.cat([s.q[end - n : end] for end, n in zip(ends, counts, strict=True)])
    meta = AttentionMeta(
        torch.tensor([0, *counts]).cumsum(0).int(),
        torch.tensor(ends, dtype=torch.int32),
        torch.tensor([s.blocks] * len(ends), dtype=torch.int32),
    )
    return list(kernels.paged_attention(q, cache, meta, q.shape[-1] ** -0.5, window).split(counts))


def filled(kernels: Kernels, s: Sequence, block_size: int, kv_dtype: torch.dtype) -> KvCache:
    _, kv_heads, dim = s.k.shape
    cache = kernels.new_kv_cache(place([s], block_size, seed=4), block_size, kv_heads, dim, kv_dtype)
    slots = torch.tensor([s.blocks[p // block_size] * block_size + p % block_size for p in range(s.length)])
    kernels.write_kv(s.k, s.v, cache, slots)
    return cache


@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=kv_id)
@pytest.mark.parametrize("window", [None, 100, 333])
def test_one_row_two_rows_and_many_give_the_same_bits_at_every_edge(kv_dtype: torch.dtype, window: int | None) -> None:
    """One row reads the cache as it is stored, several make a copy; few share ranges between threads, many do not."""
    s = Sequence(1, 400, 9, 3, 64, torch.float32)
    kernels = CpuKernels(torch.float32, threads=3)
    cache = filled(kernels, s, 16, kv_dtype)
    full = last_rows(kernels, s, cache, [400], 400, window)[0]
    assert_close(full, exact(s, kv_dtype, window), torch.float32)
    for rows in (1, 2, 21):
        for together in (EDGES, *([end] for end in EDGES)):
            for end, out in zip(together, last_rows(kernels, s, cache, together, rows, window), strict=True):
                assert torch.equal(out, full[max(0, end - rows) : end]), f"{rows} rows before {end}"


@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=kv_id)
def test_8192_tokens(kv_dtype: torch.dtype) -> None:
    s = Sequence(2, 8192, 6, 2, 32, torch.float32)
    q, (k, v) = s.q[-3:].double(), (stored(x, kv_dtype, own) for x, own in zip((s.k, s.v), GROUPS, strict=True))
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(3, 1)) * 32**-0.5
    unseen = torch.ones(3, 8192, dtype=torch.bool).triu(8190)
    expected = torch.einsum(
        "hqk,khd->qhd", scores.masked_fill(unseen, -torch.inf).softmax(-1), v.repeat_interleave(3, 1)
    )
    found = []
    for backend in BACKENDS[:2]:  # the third: triton/test_ways.py
        for threads in (1, 2):
            kernels = backend(torch.float32, threads=threads)
            cache = filled(kernels, s, 16, kv_dtype)
            found.append(last_rows(kernels, s, cache, [8192], 3)[0])
            assert_close(found[-1], expected, torch.float32)
            assert torch.equal(last_rows(kernels, s, cache, [8192], 1)[0][0], found[-1][-1])
        assert torch.equal(found[-1], found[-2])


def test_a_step_without_rows(kernels: Kernels) -> None:
    cache = kernels.new_kv_cache(2, 16, 2, 16, torch.float32)
    none = torch.zeros(0, 4, 16, dtype=kernels.dtype)
    kernels.write_kv(none[:, :2], none[:, :2], cache, torch.zeros(0, dtype=torch.int64))
    for requests in (0, 1):
        meta = AttentionMeta(
            torch.zeros(requests + 1, dtype=torch.int32),
            torch.full((requests,), 7, dtype=torch.int32),
            torch.zeros(requests, 2, dtype=torch.int32),
        )
        assert kernels.paged_attention(none, cache, meta, 0.25).shape == (0, 4, 16)
    assert not any(t.any() for t in cache.tensors)


@pytest.mark.skipif("avx512f" not in isa_features() or "avx2" not in isa_features(), reason="one instruction set only")
@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=kv_id)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_bits_with_and_without_avx512(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    for heads, kv_heads, dim, block_size in SHAPES:
        s = Sequence(6, 300, heads, kv_heads, dim, dtype)
        outs = []
        for target in (None, "-march=haswell"):
            kernels = CpuKernels(dtype, threads=2, target=target)
            cache = filled(kernels, s, block_size, kv_dtype)
            outs.append(
                [last_rows(kernels, s, cache, [300], rows, window)[0] for rows in (1, 300) for window in (None, 77)]
            )
        for first, other in zip(*outs, strict=True):
            assert torch.equal(first, other), f"{heads} heads, dim {dim}"
