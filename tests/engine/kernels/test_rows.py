"""Norm, rope and activation against their formulas in float64, and row by row."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from engine.artifact import LinearSpec
from engine.kernels.interface import Activation, Kernels
from engine.kernels.reference.backend import quantise_rows
from tests.engine.kernels.conftest import assert_close


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [1, 7, 16, 40, 576])
def test_rms_norm(kernels: Kernels, width: int) -> None:
    x, weight = normal(19, width).to(kernels.dtype), normal(width, seed=1)
    wide = x.double()
    expected = wide / (wide.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    found = kernels.rms_norm(x, weight, 1e-5)
    assert_close(found, expected, kernels.dtype)
    for row in range(19):
        assert torch.equal(kernels.rms_norm(x[row : row + 1], weight, 1e-5)[0], found[row])


@pytest.mark.parametrize("width", [5, 64])
def test_add_rms_norm_is_add_then_norm(kernels: Kernels, width: int) -> None:
    x, residual = normal(11, width).to(kernels.dtype), normal(11, width, seed=1).to(kernels.dtype)
    weight = normal(width, seed=2)
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, kernels.rms_norm(x + residual, weight, 1e-6))


@pytest.mark.parametrize("dim", [2, 10, 16, 64, 128])
def test_rope_turns_pairs_by_their_angle(kernels: Kernels, dim: int) -> None:
    rows, heads, kv_heads = 13, 3, 2
    # Slices of one wide tensor, as the fused projection gives them.
    fused = normal(rows, (heads + kv_heads) * dim + 5).to(kernels.dtype)
    q = fused[:, : heads * dim].unflatten(1, (heads, dim))
    k = fused[:, heads * dim : (heads + kv_heads) * dim].unflatten(1, (kv_heads, dim))
    angles = normal(rows, dim // 2, seed=1)
    cos, sin = torch.cat([angles, angles], 1).cos(), torch.cat([angles, angles], 1).sin()
    turn = torch.polar(torch.ones_like(angles).double(), angles.double())[:, None]
    for found, x in zip(kernels.rope(q, k, cos, sin), (q, k), strict=True):
        low, high = x.double().chunk(2, -1)
        turned = torch.complex(low, high) * turn
        assert_close(found, torch.cat([turned.real, turned.imag], -1), kernels.dtype)
        assert found.shape == x.shape


ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda x: x * x.sigmoid(),
    "gelu_tanh": lambda x: x * (1 + ((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)).tanh()) / 2,
}


@pytest.mark.parametrize("width", [3, 16, 100])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_mul(kernels: Kernels, width: int, activation: Activation) -> None:
    x = (normal(17, 2 * width) * 4).to(kernels.dtype)
    gate, up = x.double().chunk(2, -1)
    found = kernels.gated_mul(x, activation)
    assert_close(found, ACTIVATIONS[activation](gate) * up, kernels.dtype)
    assert torch.equal(kernels.gated_mul(x[3:4], activation)[0], found[3])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_mul_at_the_ends_of_the_range(kernels: Kernels, activation: Activation) -> None:
    gate = torch.tensor([-1e30, -1e4, -200.0, -80.0, 0.0, 80.0, 200.0, 1e4] * 5)
    x = torch.cat([gate, torch.ones(40)])[None].to(kernels.dtype)
    found = kernels.gated_mul(x, activation).float()
    assert torch.isfinite(found).all()
    assert_close(found[0], ACTIVATIONS[activation](x[0, :40].double()), kernels.dtype)


def test_what_is_not_finite_is_not_hidden_by_eight_bits(kernels: Kernels) -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = normal(3, 40).to(kernels.dtype)
        x[1, 37] = bad
        weight = {"weight": torch.ones(32, 40, dtype=torch.int8), "weight_scale": torch.ones(32, 1)}
        out = kernels.linear(x, kernels.pack_linear(weight, LinearSpec(pattern="*", scheme="w8a8"), None))
        assert torch.isfinite(out).all(1).tolist() == [True, False, True]
        assert not torch.isfinite(out[1]).any()


def test_quantised_rows_have_their_own_scale() -> None:
    x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [127.0, 0.5, 1.5]])
    q, scale = quantise_rows(x)
    assert scale[:, 0].tolist() == pytest.approx([2 / 127, 1.0, 1.0])
    assert q.tolist() == [[64, -127, 32], [0, 0, 0], [127, 0, 2]]  # 63.5 -> 64, 31.75 -> 32, halves to even
