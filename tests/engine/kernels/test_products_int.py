"""Integer products, to the bit: sums in int64, then the float32 steps that csrc/products_int.c names; every build."""

from __future__ import annotations

import ctypes
from functools import cache

import pytest
import torch

from engine.isa import isa_features
from engine.kernels.cpu import CpuKernels, panels
from engine.kernels.cpu.library import pointer
from engine.kernels.cpu.products import GATES, W_INT4A8, W_INT8, CpuLinear
from engine.kernels.interface import Activation

BUILDS = [None, *(["-march=haswell", "-march=x86-64"] if "avx2" in isa_features() else [])]
ROWS = [0, 1, 2, 3, 5, 7, 12, 13, 23, 64]
# k, n, group (0: 8 bits): k beside whole words of four, n beside whole panels, groups of all lengths
SHAPES = [(64, 96, 0), (41, 40, 0), (1, 1, 0), (1536, 130, 0), (64, 96, 32), (8, 17, 8), (192, 70, 24), (1536, 64, 128)]
SHAPES += [(576, 33, 576)]

builds = pytest.mark.parametrize("build", BUILDS)


@cache
def kernels_of(build: str | None) -> CpuKernels:
    return CpuKernels(torch.float32, threads=2, target=build)


def integers(low: int, high: int, *shape: int, seed: int) -> torch.Tensor:
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """float32 a * b + c, rounded once: in float64 to odd, which rounds on to float32 as the exact value does."""
    product, c = a.double() * b.double(), c.double()  # exact: 24 + 8 bits
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    odd = total.view(torch.int64) % 2 == 1
    beside = torch.nextafter(total, torch.where(error > 0, torch.inf, -torch.inf).double())
    return torch.where((error == 0) | odd, total, beside).float()


class Case:
    """A product's operands, plain and packed for a build."""

    def __init__(self, k: int, n: int, group: int, rows: int) -> None:
        self.k, self.n, self.group = k, n, group
        self.x = integers(-127, 127, rows, k, seed=1).to(torch.int8)
        self.x[: rows // 2] = self.x[: rows // 2].sign() * 127  # the largest sums that there are
        self.row_scales = normal(rows, seed=2).abs() + 0.01
        self.bias = normal(n, seed=3)
        self.q = integers(0, 15, n, k, seed=4) if group else integers(-128, 127, n, k, seed=4)
        if group:
            self.q[: n // 4], self.zero = 15, integers(0, 15, n, k // group, seed=5)
            self.zero[: n // 8] = 0
            self.scale = normal(n, k // group, seed=6).to(torch.bfloat16)
        else:
            self.q[: n // 4], self.scale = -128, normal(n, seed=6)

    def expected(self, bias: bool) -> torch.Tensor:
        x = self.x.double()
        if not self.group:
            y = (x @ self.q.double().T).float() * self.row_scales[:, None] * self.scale
        else:
            y = torch.zeros(len(x), self.n)
            for g in range(self.k // self.group):
                part = slice(g * self.group, (g + 1) * self.group)
                sums = x[:, part] @ (self.q[:, part] - self.zero[:, g, None]).double().T
                y = fused(sums.float(), self.scale[:, g].float(), y)
            y = y * self.row_scales[:, None]
        return y + self.bias if bias else y

    def packed(self, kernels: CpuKernels, bias: bool) -> CpuLinear:
        panel, own_bias = kernels._panel, self.bias if bias else None
        if not self.group:
            own = {"panels": panels.pack_int8(self.q.to(torch.int8), panel), "scales": self.scale}
            return CpuLinear("w8a8", self.k, self.n, own, own_bias, kind=W_INT8)
        words, scales, zeros = panels.pack_int4(self.q.to(torch.uint8), self.scale, self.zero.to(torch.uint8), panel)
        own = {"panels": words, "scales": scales, "zeros": zeros}
        return CpuLinear("w4a8", self.k, self.n, own, own_bias, kind=W_INT4A8, group=self.group)


def product(
    kernels: CpuKernels,
    w: CpuLinear,
    x: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    gate: Activation | None = None,
) -> torch.Tensor:
    y = torch.empty(len(x), w.out_features // (1 if gate is None else 2), dtype=dtype)
    linear, bf16 = ctypes.addressof(w.c), int(dtype == torch.bfloat16)
    x, scales = x.contiguous(), scales.contiguous()
    failed = kernels._c.product_int(linear, pointer(x), pointer(scales), pointer(y), bf16, GATES[gate], len(x), 2)
    assert failed == 0
    return y


@builds
@pytest.mark.parametrize(("k", "n", "group"), SHAPES)
def test_every_bit_is_as_defined(build: str | None, k: int, n: int, group: int) -> None:
    kernels = kernels_of(build)
    for rows in ROWS:
        case = Case(k, n, group, rows)
        for bias in (False, True):
            w, expected = case.packed(kernels, bias), case.expected(bias)
            assert torch.equal(product(kernels, w, case.x, case.row_scales), expected), f"{rows} rows"
            found = product(kernels, w, case.x, case.row_scales, torch.bfloat16)
            assert torch.equal(found, expected.to(torch.bfloat16)), f"{rows} rows"


@builds
@pytest.mark.parametrize("group", [0, 64])
def test_many_rows_and_any_of_them(build: str | None, group: int) -> None:
    kernels, case = kernels_of(build), Case(1536, 72, group, 512)  # more rows than a block has
    w = case.packed(kernels, bias=True)
    full = product(kernels, w, case.x, case.row_scales)
    assert torch.equal(full, case.expected(bias=True))
    for rows in (1, 4, 9, 100, 333):
        chosen = torch.randperm(512, generator=torch.Generator().manual_seed(rows))[:rows]
        assert torch.equal(product(kernels, w, case.x[chosen], case.row_scales[chosen]), full[chosen])


@builds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("n", [192, 80])  # halves of whole panels, and others
def test_a_gate_at_the_end_gives_the_bits_of_a_gate_afterwards(
    build: str | None, dtype: torch.dtype, group: int, n: int
) -> None:
    kernels = CpuKernels(dtype, threads=2, target=build)
    for rows in (0, 1, 5, 30):
        case = Case(64, n, group, rows)
        w = case.packed(kernels, bias=True)
        plain = product(kernels, w, case.x, case.row_scales, dtype)
        gates: list[Activation] = ["silu", "gelu_tanh"]
        for gate in gates:
            found = product(kernels, w, case.x, case.row_scales, dtype, gate)
            assert torch.equal(found, kernels.gated_mul(plain, gate))
