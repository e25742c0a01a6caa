"""Each row's result depends on that row alone, bit for bit: every operation, every backend, every build in C.

A row is computed among 600, then alone and in other batches of any size, order and place. One of the 600 is not a
number, and one is infinite: what is broken in one request stays in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.isa import isa_features
from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import Activation, AttentionMeta, Kernels
from engine.kernels.reference import ReferenceKernels
from tests.engine.kernels.conftest import DTYPES
from tests.engine.kernels.test_attention import KV_DTYPES, Sequence, place, run
from tests.engine.kernels.test_linear import SCHEMES, packed

ROWS = 600
OLDER = ["-march=haswell", "-march=x86-64"] if "avx2" in isa_features() else []
BUILDS = ["reference", "cpu", *(f"cpu {target}" for target in OLDER)]
DRAWS = settings(max_examples=6, deadline=None)
Operation = Callable[[Kernels, list[torch.Tensor]], tuple[torch.Tensor, ...]]


@cache
def kernels_of(build: str, dtype: torch.dtype) -> Kernels:
    if build == "reference":
        return ReferenceKernels(dtype, threads=2)
    return CpuKernels(dtype, threads=2, target=build.partition(" ")[2] or None)


builds = pytest.mark.parametrize("build", BUILDS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@cache
def inputs(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """[ROWS, ...] of all magnitudes, with a row of zeros, one that is not a number and one that is infinite."""
    found = []
    for i, shape in enumerate(shapes):
        x = normal(ROWS, *shape, seed=i) * torch.logspace(-4, 2, ROWS).view(-1, *[1] * len(shape))
        x[ROWS // 2] = 0
        x[77].view(-1)[-1], x[401].view(-1)[0] = torch.nan, torch.inf
        found.append(x.to(dtype))
    return found


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, but that all NaNs are one."""
    nan = a.isnan()
    return torch.equal(nan, b.isnan()) and torch.equal(
        a.masked_fill(nan, 0).view(torch.uint8), b.masked_fill(nan, 0).view(torch.uint8)
    )


def check_rows(kernels: Kernels, operation: Operation, arguments: list[torch.Tensor], count: int, seed: int) -> None:
    """``count`` of the rows, in any order, and the first of them alone."""
    full = operation(kernels, arguments)
    chosen = random.Random(seed).sample(range(ROWS), count)
    for rows in (chosen, chosen[:1]):
        for found, expected in zip(operation(kernels, [x[rows] for x in arguments]), full, strict=True):
            assert same(found, expected[rows])


@cache
def weights(kernels: Kernels, scheme: str, k: int, n: int) -> Any:
    return packed(kernels, scheme, k, n, normal(n))


@builds
@dtypes
@pytest.mark.parametrize("scheme", SCHEMES)
@DRAWS
@given(
    shape=st.sampled_from([(64, 96), (160, 40), (256, 33 * 8)]), count=st.integers(1, ROWS), seed=st.integers(0, 999)
)
def test_products(build: str, dtype: torch.dtype, scheme: str, shape: tuple[int, int], count: int, seed: int) -> None:
    kernels = kernels_of(build, dtype)
    w = weights(kernels, scheme, *shape)
    check_rows(
        kernels, lambda k, x: (k.linear(x[0], w), k.logits(x[0], w)), inputs((shape[0],), dtype=dtype), count, seed
    )


def norm_of(width: int) -> tuple[Operation, list[tuple[int, ...]]]:
    weight = normal(width, seed=9)
    return lambda k, x: (k.rms_norm(x[0], weight, 1e-5), *k.add_rms_norm(x[0], x[1], weight, 1e-5)), [(width,)] * 2


def gate_of(activation: Activation, width: int) -> tuple[Operation, list[tuple[int, ...]]]:
    return lambda k, x: (k.gated_mul(x[0], activation),), [(2 * width,)]


def rope_of(dim: int) -> tuple[Operation, list[tuple[int, ...]]]:
    def operation(kernels: Kernels, x: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        angles = x[2].float().nan_to_num(0, 1, -1)
        twice = torch.cat([angles, angles], 1)
        return kernels.rope(x[0], x[1], twice.cos(), twice.sin())

    return operation, [(3, dim), (2, dim), (dim // 2,)]


def cached_as(kv_dtype: torch.dtype, dim: int, block_size: int) -> tuple[Operation, list[tuple[int, ...]]]:
    def operation(kernels: Kernels, x: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        rows = len(x[0])
        cache = kernels.new_kv_cache(-(-rows // block_size), block_size, 2, dim, kv_dtype)
        kernels.write_kv(x[0], x[1], cache, torch.arange(rows))
        stored = [t.flatten(0, 1)[:rows] for t in cache.tensors]
        if kv_dtype == torch.int8:  # what does not count where the scale is no number
            for q, scale in zip(stored[:2], stored[2:], strict=True):
                q[~scale.isfinite()] = 0
        return tuple(stored)

    return operation, [(2, dim), (2, dim)]


widths = st.one_of(st.integers(1, 300), st.sampled_from([576, 1000, 1536, 2048]))
dims = st.one_of(st.sampled_from([16, 40, 64, 80, 96, 128, 256]), st.integers(8, 128).map(lambda n: 2 * n))
operations = st.one_of(
    st.builds(norm_of, widths),
    st.builds(gate_of, st.sampled_from(["silu", "gelu_tanh"]), widths),
    st.builds(rope_of, dims),
    st.builds(cached_as, st.sampled_from(KV_DTYPES), dims, st.sampled_from([1, 8, 16, 20])),
)


@builds
@dtypes
@settings(DRAWS, max_examples=20)
@given(operation=operations, count=st.integers(1, ROWS), seed=st.integers(0, 999))
def test_operations_on_rows(
    build: str, dtype: torch.dtype, operation: tuple[Operation, list[tuple[int, ...]]], count: int, seed: int
) -> None:
    check_rows(kernels_of(build, dtype), operation[0], inputs(*operation[1], dtype=dtype), count, seed)


@builds
@dtypes
def test_embedded_rows(build: str, dtype: torch.dtype) -> None:
    kernels = kernels_of(build, dtype)
    weight = normal(ROWS, 50).to(torch.bfloat16)
    table = kernels.pack_linear({"weight": weight}, None, None)
    check_rows(kernels, lambda k, x: (k.embed(x[0], table),), [torch.randperm(ROWS)], 90, 0)


@st.composite
def settings_of_attention(draw: st.DrawFn) -> dict[str, Any]:
    dim = draw(st.one_of(dims, st.integers(16, 256)))
    return {
        "group": draw(st.integers(1, 8)),
        "kv_heads": draw(st.integers(1, 3)),
        "dim": dim,
        "block_size": draw(st.sampled_from([1, 8, 16, 20, 32])),
        "kv_dtype": draw(st.sampled_from(KV_DTYPES[:3] if dim % 2 else KV_DTYPES)),
        "window": draw(st.one_of(st.none(), st.integers(1, 120))),
    }


def check_attention(kernels: Kernels, data: st.DataObject, longest: int, most: int) -> None:
    """A request alone and in one piece, then in pieces cut anywhere, among neighbours."""
    about = data.draw(settings_of_attention())
    kv_heads, dim, size, window = (about[key] for key in ("kv_heads", "dim", "block_size", "window"))
    length = data.draw(st.integers(1, longest), label="length")
    cuts = sorted(data.draw(st.sets(st.integers(1, length), max_size=4), label="cuts") | {length})
    others = data.draw(st.lists(st.integers(1, longest), max_size=most), label="neighbours")

    subject, *neighbours = (
        Sequence(i, n, about["group"] * kv_heads, kv_heads, dim, kernels.dtype) for i, n in enumerate([length, *others])
    )
    cache = kernels.new_kv_cache(place([subject], size, seed=0), size, kv_heads, dim, about["kv_dtype"])
    expected = run(kernels, [(subject, 0, length)], cache, window)[0]
    blocks = place([subject, *neighbours], size, seed=data.draw(st.integers(0, 99), label="places"))
    cache = kernels.new_kv_cache(blocks, size, kv_heads, dim, about["kv_dtype"])
    found, start = [], 0
    for stop in cuts:
        parts = [(n, 0, n.length) for n in neighbours]
        at = data.draw(st.integers(0, len(parts)), label="place in the batch")
        parts.insert(at, (subject, start, stop))
        found.append(run(kernels, parts, cache, window)[at])
        start = stop
    assert same(torch.cat(found), expected)


@pytest.mark.parametrize("build", BUILDS[1:])
@dtypes
@settings(DRAWS, max_examples=12)
@given(data=st.data())
def test_attention(build: str, dtype: torch.dtype, data: st.DataObject) -> None:
    check_attention(kernels_of(build, dtype), data, longest=130, most=6)


@dtypes
@settings(DRAWS, max_examples=5)
@given(data=st.data())
def test_attention_of_the_reference(dtype: torch.dtype, data: st.DataObject) -> None:
    check_attention(kernels_of("reference", dtype), data, longest=24, most=2)


@pytest.mark.parametrize("build", BUILDS[1:])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.int8, torch.uint4], ids=str)
def test_six_hundred_requests_that_decode(build: str, kv_dtype: torch.dtype) -> None:
    kernels, g = kernels_of(build, torch.bfloat16), torch.Generator().manual_seed(3)
    cache = kernels.new_kv_cache(8, 16, 2, 64, kv_dtype)
    k, v = (torch.randn(128, 2, 64, generator=g).bfloat16() for _ in range(2))
    kernels.write_kv(k, v, cache, torch.arange(128))
    q = torch.randn(ROWS, 6, 64, generator=g).bfloat16()
    lengths = torch.randint(1, 65, (ROWS,), generator=g, dtype=torch.int32)
    tables = torch.stack([torch.randperm(8, generator=g)[:4] for _ in range(ROWS)]).int()

    def attend(rows: list[int]) -> torch.Tensor:
        meta = AttentionMeta(torch.arange(len(rows) + 1).int(), lengths[rows], tables[rows])
        return kernels.paged_attention(q[rows], cache, meta, 0.125)

    full = attend(list(range(ROWS)))
    for count in (1, 2, 45, 333):
        rows = random.Random(count).sample(range(ROWS), count)
        assert same(attend(rows), full[rows])
