"""Products whose activations are rounded to integers: their bits, as engine.kernels.interface defines them."""

from __future__ import annotations

import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.artifact import LinearSpec
from engine.kernels.reference import ReferenceKernels
from engine.kernels.reference.backend import quantise_rows
from engine.kernels.reference.matmul import fused_multiply_add
from tests.tiny import quantise_w4a16

K, N, GROUP = 96, 24, 32


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def to_float32(exact: Fraction) -> float:
    """Rounded to nearest, ties to even."""
    near = struct.unpack("f", struct.pack("f", float(exact)))[0]
    around = [float(torch.nextafter(torch.tensor(near), torch.tensor(end))) for end in (-torch.inf, torch.inf)]

    def distance(x: float) -> tuple[Fraction, int]:
        return abs(Fraction(x) - exact), struct.unpack("I", struct.pack("f", x))[0] & 1

    return min([near, *around], key=distance)


def fma(a: float, b: float, c: float) -> float:
    return to_float32(Fraction(a) * Fraction(b) + Fraction(c))


@pytest.mark.parametrize(
    "numbers",
    [
        (172961.0, 97 * 2.0**-24, 2.0**-60),  # the product lies half way between two numbers, c decides
        (172961.0, 97 * 2.0**-24, -(2.0**-60)),
        (812825.0, 1321 * 2.0**-54, 1.0),  # the product is a little more than half of what c can hold
        (3.0, 0.125, -0.375),
        (0.0, 5.0, 0.0),
    ],
)
def test_multiply_add_rounds_once(numbers: tuple[float, float, float]) -> None:
    assert fused_multiply_add(*(torch.tensor([x]) for x in numbers)).item() == fma(*numbers)


@settings(deadline=None, max_examples=300)
@given(st.integers(-(2**21), 2**21), st.integers(1, 255), st.integers(-40, 10), st.floats(-1e9, 1e9, width=32))
def test_multiply_add_on_sums_and_scales(total: int, digits: int, exponent: int, so_far: float) -> None:
    scale = digits * 2.0**exponent
    found = fused_multiply_add(torch.tensor([float(total)]), torch.tensor([scale]), torch.tensor([so_far])).item()
    assert found == fma(float(total), scale, so_far)


def test_multiply_add_keeps_what_is_not_finite() -> None:
    a = torch.tensor([torch.inf, torch.nan, 1.0, 2.0])
    c = torch.tensor([1.0, 1.0, -torch.inf, torch.nan])
    found = fused_multiply_add(a, torch.ones(4), c)
    assert found.nan_to_num(7.0, 8.0, 9.0).tolist() == [8.0, 7.0, 9.0, 7.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_4_bit_groups_meet_8_bit_rows_as_defined(dtype: torch.dtype, bias: bool) -> None:
    tensors = quantise_w4a16("m", normal(N, K).bfloat16(), GROUP)
    own_bias = normal(N, seed=2) if bias else None
    spec = LinearSpec(pattern="*", scheme="w4a8", group_size=GROUP, symmetric=False)
    kernels = ReferenceKernels(dtype, threads=1)
    w = kernels.pack_linear({key.removeprefix("m."): t for key, t in tensors.items()}, spec, own_bias)
    x = (normal(3, K, seed=1) * torch.tensor([1.0, 1e-3, 40])[:, None]).to(dtype)
    integers, row_scales = quantise_rows(x)
    expected = torch.empty(3, N)
    for column in range(N):
        codes = [(word >> 4 * j) & 15 for word in tensors["m.weight_packed"][column].tolist() for j in range(8)]
        for row in range(3):
            total = 0.0
            for g in range(K // GROUP):
                zero = (int(tensors["m.weight_zero_point"][column // 8, g]) >> 4 * (column % 8)) & 15
                at = range(g * GROUP, (g + 1) * GROUP)
                summed = sum((codes[k] - zero) * int(integers[row, k]) for k in at)
                total = fma(float(tensors["m.weight_scale"][column, g]), summed, total)
            value = to_float32(Fraction(total) * Fraction(row_scales[row].item()))
            expected[row, column] = (
                value if w.bias is None else to_float32(Fraction(value) + Fraction(float(w.bias[column])))
            )
    assert torch.equal(kernels.logits(x, w), expected)
    assert torch.equal(kernels.linear(x, w), expected.to(dtype))
