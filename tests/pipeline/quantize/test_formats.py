"""Numbers <-> stored tensors, held against loops and against the independent packer of ``tests.tiny``."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.artifact import LinearSpec
from pipeline.errors import SeatrialError
from pipeline.quantize import formats
from tests import tiny

W8A8 = LinearSpec(pattern="*", scheme="w8a8", group_size=None, symmetric=True)


def w4a16(group_size: int, symmetric: bool) -> LinearSpec:
    return LinearSpec(pattern="*", scheme="w4a16", group_size=group_size, symmetric=symmetric)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 5), st.integers(1, 5), st.randoms(use_true_random=False))
def test_nibbles_round_trip(rows: int, words: int, random: object) -> None:
    values = torch.tensor([[random.randint(-8, 7) for _ in range(words * 8)] for _ in range(rows)], dtype=torch.int8)  # type: ignore[attr-defined]
    packed = formats.pack_nibbles(values)
    assert packed.dtype == torch.int32
    assert torch.equal(packed, tiny.pack_nibbles(values.int()))
    assert torch.equal(formats.unpack_nibbles(packed, words * 8), values)


def test_the_first_value_lies_in_the_lowest_bits() -> None:
    values = torch.tensor([[-8, -7, -6, -5, -4, -3, -2, 7]])
    assert formats.pack_nibbles(values).item() == 0xF6543210 - 2**32


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [8, 32])
def test_w4a16_reads_back_within_half_a_step(group_size: int, symmetric: bool) -> None:
    weight = normal(24, 64).to(torch.bfloat16)
    tensors = formats.quantise_w4a16(weight, group_size, symmetric)
    back = formats.dequantise(tensors, w4a16(group_size, symmetric))
    scale = tensors["weight_scale"].float().repeat_interleave(group_size, 1)
    # Half a step inside the range; one at its ends, where bf16 rounds the scale down or zero takes a whole code.
    assert ((back - weight.float()).abs() <= scale * 1.02).all()
    assert ((back - weight.float()).abs() <= scale * 0.501).float().mean() > 0.9
    assert tensors["weight_packed"].shape == (24, 8)
    assert tensors["weight_scale"].dtype == torch.bfloat16
    assert tensors["weight_shape"].tolist() == [24, 64]
    assert ("weight_zero_point" in tensors) is not symmetric
    if not symmetric:
        assert tensors["weight_zero_point"].shape == (3, 64 // group_size)


def test_asymmetric_tensors_are_those_of_the_independent_packer() -> None:
    weight = normal(16, 64).to(torch.bfloat16)
    theirs = tiny.quantise_w4a16("m", weight, 32)
    mine = formats.quantise_w4a16(weight, 32, symmetric=False)
    assert {f"m.{k}" for k in mine} == set(theirs)
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[f"m.{name}"]), name


def test_dequantise_follows_the_layout_value_by_value() -> None:
    tensors = formats.quantise_w4a16(normal(16, 32), 16, symmetric=False)
    back = formats.dequantise(tensors, w4a16(16, False))
    for row, column in [(0, 0), (3, 9), (8, 17), (15, 31)]:
        nibble = (int(tensors["weight_packed"][row, column // 8]) >> 4 * (column % 8)) & 15
        zero = (int(tensors["weight_zero_point"][row // 8, column // 16]) >> 4 * (row % 8)) & 15
        assert back[row, column] == (nibble - zero) * tensors["weight_scale"][row, column // 16].float()


def test_w8a8_is_symmetric_by_row() -> None:
    weight = normal(6, 40) * torch.tensor([1.0, 10, 0.01, 3, 0, 1])[:, None]
    tensors = formats.quantise_w8a8(weight)
    assert tensors["weight"].dtype == torch.int8
    assert tensors["weight_scale"].shape == (6, 1)
    assert int(tensors["weight"].min()) >= -127
    assert tensors["weight"].abs().amax(1).tolist() == [127, 127, 127, 127, 0, 127]
    back = formats.dequantise(tensors, W8A8)
    assert ((back - weight).abs() <= tensors["weight_scale"] * 0.5001).all()


@pytest.mark.parametrize("symmetric", [True, False])
def test_constant_groups_keep_zero_and_finite_values(symmetric: bool) -> None:
    weight = torch.zeros(8, 24)
    weight[:, 8:16] = 3.0
    weight[:, 16:] = -3.0
    back = formats.dequantise(formats.quantise_w4a16(weight, 8, symmetric), w4a16(8, symmetric))
    assert (back[:, :8] == 0).all()
    assert ((back - weight).abs() <= 0.21).all()


def test_clipping_shrinks_the_range_and_saturates() -> None:
    weight = normal(8, 32, seed=1)
    clip = torch.full((8, 2), 0.5)
    plain = formats.quantise_w4a16(weight, 16, False)
    clipped = formats.quantise_w4a16(weight, 16, False, clip)
    assert torch.allclose(clipped["weight_scale"].float(), plain["weight_scale"].float() / 2, rtol=2**-7)
    back = formats.dequantise(clipped, w4a16(16, False))
    inside = (weight.view(8, 2, 16).amax(2) * 0.5).repeat_interleave(16, 1)
    low = (weight.view(8, 2, 16).amin(2) * 0.5).repeat_interleave(16, 1)
    fits = (weight < inside) & (weight > low)
    step = clipped["weight_scale"].float().repeat_interleave(16, 1)
    assert ((back - weight).abs()[fits] <= step[fits] * 1.05).all()
    assert (back.abs() <= weight.abs().amax() * 0.5 + step).all()


def test_a_group_size_that_does_not_fit_names_layer_dimension_and_sizes() -> None:
    formats.check_groups("m", (16, 160), 32, symmetric=False)
    with pytest.raises(
        SeatrialError,
        match=r"model\.layers\.0\.mlp\.down_proj: group_size 64 does not divide its input dimension 160; "
        r"sizes that do: 8, 16, 32, 40, 80, 160",
    ):
        formats.check_groups("model.layers.0.mlp.down_proj", (64, 160), 64, symmetric=False)
    with pytest.raises(SeatrialError, match="its output dimension 20 is not a multiple of 8"):
        formats.check_groups("m", (20, 64), 32, symmetric=False)
    formats.check_groups("m", (20, 64), 32, symmetric=True)


def test_a_spec_that_contradicts_the_tensors_is_refused() -> None:
    with pytest.raises(SeatrialError, match="spec says symmetric=True"):
        formats.dequantise(formats.quantise_w4a16(normal(8, 8), 8, False), w4a16(8, True))


def test_w8a16_packs_four_bytes_to_a_word() -> None:
    weight = normal(6, 40) * torch.tensor([1.0, 10, 0.01, 3, 0, 1])[:, None]
    tensors = formats.quantise_w8a16(weight)
    assert (tensors["weight_packed"].shape, tensors["weight_scale"].dtype) == ((6, 10), torch.bfloat16)
    spec = LinearSpec(pattern="*", scheme="w8a16")
    back = formats.dequantise(tensors, spec)
    for row, column in [(0, 0), (1, 5), (3, 39)]:
        byte = (int(tensors["weight_packed"][row, column // 4]) >> 8 * (column % 4)) & 255
        assert back[row, column] == (byte - 128) * tensors["weight_scale"][row, 0].float()
    assert ((back - weight).abs() <= tensors["weight_scale"].float() * 0.76).all()  # bf16 may round the scale down
    with pytest.raises(SeatrialError, match="m: its input dimension 42 is not a multiple of 4"):
        formats.check_linear("m", (8, 42), spec)


def test_fp8_keeps_four_significant_bits_of_every_weight() -> None:
    weight = normal(6, 40) * torch.tensor([1.0, 10, 0.01, 3, 0, 1])[:, None]
    tensors = formats.quantise_fp8(weight)
    assert (tensors["weight"].dtype, tensors["weight_scale"].shape) == (torch.float8_e4m3fn, (6, 1))
    assert tensors["weight"].float().abs().amax(1).tolist() == [448, 448, 448, 448, 0, 448]
    back = formats.dequantise(tensors, LinearSpec(pattern="*", scheme="fp8"))
    subnormal = tensors["weight_scale"] * 2**-10  # half of the smallest step
    assert ((back - weight).abs() <= weight.abs() / 16 * 1.001 + subnormal * 1.001).all()
