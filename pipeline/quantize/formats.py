"""Weights of one linear as stored tensors and back; the layout is that of ``engine.artifact`` (compressed-tensors).

Rounding is to the nearest with the scale as it is stored (bf16 for 4 bits), so that what :func:`dequantise` gives is
what the rounding aimed at. Zero always has an exact code.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.artifact import LinearSpec, Scheme
from pipeline.errors import SeatrialError

NIBBLES, BYTES = 8, 4  # values of 4 and of 8 bits in an int32 word
HEAD = "lm_head"
FP8_MAX = 448.0  # the largest e4m3


def quantised(weight: Tensor, spec: LinearSpec | None) -> dict[str, Tensor]:
    """[out, in] -> the tensors that a linear of this spec is stored as, rounded to the nearest."""
    if spec is None or spec.scheme == "bf16":
        return {"weight": weight.to(torch.bfloat16)}
    if spec.group_size is not None:
        return quantise_w4a16(weight, spec.group_size, spec.symmetric)
    return BY_ROW[spec.scheme](weight)


def quantise_w8a8(weight: Tensor) -> dict[str, Tensor]:
    """[out, in] -> int8 ``weight`` and float32 ``weight_scale`` [out, 1]: symmetric, one scale a row."""
    weight = weight.float()
    scale = _not_zero(weight.abs().amax(1, keepdim=True) / 127)
    return {"weight": (weight / scale).round().clamp(-127, 127).to(torch.int8), "weight_scale": scale}


def quantise_w8a16(weight: Tensor) -> dict[str, Tensor]:
    """[out, in] -> packed int8 ``weight_packed``, bf16 ``weight_scale`` [out, 1]: symmetric, one scale a row."""
    weight = weight.float()
    scale = _not_zero(weight.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    q = (weight / scale.float()).round().clamp(-128, 127)
    shape = torch.tensor(weight.shape, dtype=torch.int64)
    return {"weight_packed": pack_words(q, 8), "weight_scale": scale, "weight_shape": shape}


def quantise_fp8(weight: Tensor) -> dict[str, Tensor]:
    """[out, in] -> e4m3 ``weight`` and float32 ``weight_scale`` [out, 1]: one scale a row, to the largest e4m3."""
    weight = weight.float()
    scale = _not_zero(weight.abs().amax(1, keepdim=True) / FP8_MAX)
    codes = (weight / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}


def quantise_w4a16(weight: Tensor, group_size: int, symmetric: bool, clip: Tensor | None = None) -> dict[str, Tensor]:
    """[out, in] -> the packed tensors of ``w4a16`` and ``w4a8``.

    ``clip`` [out, in/group_size], at most 1, shrinks the range of each group; what lies outside saturates.
    """
    return packed_groups(*round_groups(weight, group_size, symmetric, clip))


def packed_groups(q: Tensor, scale: Tensor, zero: Tensor | None) -> dict[str, Tensor]:
    """The tensors of ``w4a16`` from codes, scales and zero points as :func:`round_groups` gives them."""
    tensors = {
        "weight_packed": pack_nibbles(q),
        "weight_scale": scale,
        "weight_shape": torch.tensor(q.shape, dtype=torch.int64),
    }
    if zero is not None:
        tensors["weight_zero_point"] = pack_nibbles(zero.t()).t().contiguous()
    return tensors


def round_groups(
    weight: Tensor, group_size: int, symmetric: bool, clip: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes int8 [out, in] in -8..7, scale bf16 [out, in/group], zero point int8 [out, in/group] or None."""
    n_out, n_in = weight.shape
    grouped = weight.float().view(n_out, n_in // group_size, group_size)
    scale, zero = group_grid(*group_range(grouped, symmetric), clip)
    codes = grouped / scale.float()[..., None]
    if zero is not None:
        codes += zero[..., None]
    q = codes.round_().clamp_(-8, 7).to(torch.int8).view(n_out, n_in)
    return q, scale, zero.to(torch.int8) if zero is not None else None


def group_range(grouped: Tensor, symmetric: bool) -> tuple[Tensor, Tensor | None]:
    """Least and greatest value of each group [out, groups, group], zero included; (greatest magnitude, None) if
    symmetric."""
    if symmetric:
        return grouped.abs().amax(2), None
    return grouped.amin(2).clamp_(max=0), grouped.amax(2).clamp_(min=0)


def group_grid(low: Tensor, high: Tensor | None, clip: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Scale (bf16) and zero point (float32 whole number, or None) of ranges as :func:`group_range` gives them."""
    wide = low / 7.5 if high is None else (high - low) / 15
    scale = _not_zero(wide if clip is None else wide * clip).to(torch.bfloat16)
    if high is None:
        return scale, None
    return scale, (-8 - (low if clip is None else low * clip) / scale.float()).round_().clamp_(-8, 7)


def expand_groups(q: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """float32 [out, in] from codes, scales and zero points as :func:`round_groups` gives them."""
    n_out, n_in = q.shape
    grouped = q.float().view(n_out, scale.shape[1], -1)
    if zero is not None:
        grouped = grouped - zero.float()[..., None]
    return (grouped * scale.float()[..., None]).view(n_out, n_in)


def dequantise(tensors: dict[str, Tensor], spec: LinearSpec | None) -> Tensor:
    """float32 [out, in] from the stored tensors of one linear (``weight``, ``weight_packed``, ... without prefix)."""
    if spec is None or spec.scheme == "bf16":
        return tensors["weight"].float()
    if spec.scheme in {"w8a8", "fp8"}:
        return tensors["weight"].float() * tensors["weight_scale"]
    n_out, n_in = (int(n) for n in tensors["weight_shape"])
    if spec.scheme == "w8a16":
        return unpack_words(tensors["weight_packed"], n_in, 8).float() * tensors["weight_scale"].float()
    q = unpack_nibbles(tensors["weight_packed"], n_in)
    zero = tensors.get("weight_zero_point")
    if spec.symmetric != (zero is None):
        raise SeatrialError(f"spec says symmetric={spec.symmetric}, the tensors are {', '.join(sorted(tensors))}")
    unpacked = unpack_nibbles(zero.t().contiguous(), n_out).t() if zero is not None else None
    return expand_groups(q, tensors["weight_scale"], unpacked)


def pack_nibbles(values: Tensor) -> Tensor:
    """Integers -8..7 [rows, columns] -> int32 [rows, columns/8], lowest bits first, value + 8."""
    return pack_words(values, 4)


def unpack_nibbles(packed: Tensor, columns: int) -> Tensor:
    """Inverse of :func:`pack_nibbles`: int8 [rows, columns]."""
    return unpack_words(packed, columns, 4)


def pack_words(values: Tensor, bits: int) -> Tensor:
    """Signed integers of ``bits`` [rows, columns] -> int32 [rows, columns * bits / 32], lowest bits first, each with
    2^(bits - 1) added."""
    places = torch.arange(0, 32, bits)
    words = (values.to(torch.int64) + 2 ** (bits - 1)).reshape(values.shape[0], -1, len(places)) << places
    total = words.sum(2)
    return torch.where(total < 2**31, total, total - 2**32).to(torch.int32)


def unpack_words(packed: Tensor, columns: int, bits: int) -> Tensor:
    """Inverse of :func:`pack_words`: int8 [rows, columns]."""
    shifted = packed[..., None] >> torch.arange(0, 32, bits, dtype=torch.int32)
    return ((shifted & (2**bits - 1)) - 2 ** (bits - 1)).to(torch.int8).reshape(packed.shape[0], -1)[:, :columns]


def _not_zero(scale: Tensor) -> Tensor:
    """A group of zeros has no range; any scale stores it exactly."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def check_groups(name: str, shape: tuple[int, ...], group_size: int, symmetric: bool) -> None:
    """
    Raises:
        SeatrialError: the group size does not divide the input dimension, or a dimension cannot be packed into words.
    """
    n_out, n_in = shape
    if n_in % group_size:
        fitting = ", ".join(str(g) for g in range(8, min(n_in, 256) + 1, 8) if n_in % g == 0)
        raise SeatrialError(
            f"{name}: group_size {group_size} does not divide its input dimension {n_in}; sizes that do: {fitting}"
        )
    for what, n in (("input", n_in), ("output", n_out if not symmetric else NIBBLES)):
        if n % NIBBLES:
            raise SeatrialError(
                f"{name}: its {what} dimension {n} is not a multiple of {NIBBLES}, so it cannot be packed"
            )


def check_linear(name: str, shape: tuple[int, ...], spec: LinearSpec | None) -> None:
    """
    Raises:
        SeatrialError: a linear of this shape cannot be stored as ``spec`` says.
    """
    if spec is not None and spec.group_size is not None:
        check_groups(name, shape, spec.group_size, spec.symmetric)
    elif spec is not None and spec.scheme == "w8a16" and shape[1] % BYTES:
        raise SeatrialError(
            f"{name}: its input dimension {shape[1]} is not a multiple of {BYTES}, so it cannot be packed"
        )


BY_ROW: dict[Scheme, Callable[[Tensor], dict[str, Tensor]]] = {
    "w8a8": quantise_w8a8,
    "w8a16": quantise_w8a16,
    "fp8": quantise_fp8,
}
