"""Weights of one linear as stored tensors and back; the layout is that of ``engine.artifact`` (compressed-tensors).

Rounding is to the nearest with the scale as it is stored (bf16 for 4 bits), so that what :func:`dequantise` gives is
what the rounding aimed at. Zero always has an exact code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.artifact import LinearSpec
from pipeline.errors import SeatrialError

NIBBLES = 8  # 4-bit values in an int32 word
HEAD = "lm_head"
FORMATS = {"w8a8": "int-quantized", "w4a16": "pack-quantized", "w4a8": "pack-quantized"}  # of compressed-tensors


def quantise_w8a8(weight: Tensor) -> dict[str, Tensor]:
    """[out, in] -> int8 ``weight`` and float32 ``weight_scale`` [out, 1]: symmetric, one scale a row."""
    weight = weight.float()
    scale = _not_zero(weight.abs().amax(1, keepdim=True) / 127)
    return {"weight": (weight / scale).round().clamp(-127, 127).to(torch.int8), "weight_scale": scale}


def quantise_w4a16(weight: Tensor, group_size: int, symmetric: bool, clip: Tensor | None = None) -> dict[str, Tensor]:
    """[out, in] -> the packed tensors of ``w4a16`` and ``w4a8``.

    ``clip`` [out, in/group_size], at most 1, shrinks the range of each group; what lies outside saturates.
    """
    q, scale, zero = round_groups(weight, group_size, symmetric, clip)
    tensors = {
        "weight_packed": pack_nibbles(q),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
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
    if spec.scheme == "w8a8":
        return tensors["weight"].float() * tensors["weight_scale"]
    n_out, n_in = (int(n) for n in tensors["weight_shape"])
    q = unpack_nibbles(tensors["weight_packed"], n_in)
    zero = tensors.get("weight_zero_point")
    if spec.symmetric != (zero is None):
        raise SeatrialError(f"spec says symmetric={spec.symmetric}, the tensors are {', '.join(sorted(tensors))}")
    unpacked = unpack_nibbles(zero.t().contiguous(), n_out).t() if zero is not None else None
    return expand_groups(q, tensors["weight_scale"], unpacked)


def pack_nibbles(values: Tensor) -> Tensor:
    """Integers -8..7 [rows, columns] -> int32 [rows, columns/8], lowest bits first, value + 8."""
    words = (values.to(torch.int64) + 8).reshape(values.shape[0], -1, NIBBLES) << torch.arange(0, 32, 4)
    total = words.sum(2)
    return torch.where(total < 2**31, total, total - 2**32).to(torch.int32)


def unpack_nibbles(packed: Tensor, columns: int) -> Tensor:
    """Inverse of :func:`pack_nibbles`: int8 [rows, columns]."""
    shifted = packed[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32)
    return ((shifted & 15) - 8).to(torch.int8).reshape(packed.shape[0], -1)[:, :columns]


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


def compressed_tensors_config(specs: list[LinearSpec]) -> dict[str, Any] | None:
    """``quantization_config`` of config.json, by which vLLM, SGLang and transformers load the same files.

    Fields: compressed-tensors, ``QuantizationConfig``. A recipe treats all linears of the layers alike; the head may
    have a spec of its own. A group says its format where the format of the whole does not: of several, or where
    4 bits beside 8-bit activations would be taken for one value a byte.
    """
    quantised = sorted(
        (s for s in specs if s.scheme != "bf16"), key=lambda s: s.pattern != HEAD
    )  # the first match counts
    if not quantised:
        return None
    formats = {FORMATS[s.scheme] for s in quantised}
    told = len(formats) > 1 or any(s.scheme == "w4a8" for s in quantised)
    groups = [_group(s) | ({"format": FORMATS[s.scheme]} if told else {}) for s in quantised]
    return {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision" if len(formats) > 1 else formats.pop(),
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
        "ignore": [] if any(s.pattern == HEAD for s in quantised) else [HEAD],
        "kv_cache_scheme": None,
    }


def _group(spec: LinearSpec) -> dict[str, Any]:
    int8 = spec.scheme == "w8a8"
    weights = {
        "num_bits": 8 if int8 else 4,
        "type": "int",
        "strategy": "channel" if int8 else "group",
        "group_size": spec.group_size,
        "symmetric": spec.symmetric,
        "dynamic": False,
    }
    activations = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
    return {
        "targets": [HEAD if spec.pattern == HEAD else "Linear"],
        "weights": weights,
        "input_activations": None if spec.scheme == "w4a16" else activations,
        "output_activations": None,
    }
