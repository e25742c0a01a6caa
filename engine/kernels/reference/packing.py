"""Stored tensors of a linear layer (engine.artifact) to plain integers and scales, with their shapes checked."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.artifact import GROUPED, ArtifactError, LinearSpec

KEYS = {
    "bf16": {"weight"},
    "w8a8": {"weight", "weight_scale"},
    "w4a16": {"weight_packed", "weight_scale", "weight_shape"},
    "w4a8": {"weight_packed", "weight_scale", "weight_shape"},
    "w8a16": {"weight_packed", "weight_scale", "weight_shape"},
    "fp8": {"weight", "weight_scale"},
}


def check_keys(tensors: dict[str, Tensor], spec: LinearSpec | None) -> str:
    """The scheme, after checking that exactly its tensors are there.

    Raises:
        ArtifactError: tensors missing or too many.
    """
    scheme = "bf16" if spec is None else spec.scheme
    want = set(KEYS[scheme])
    if spec is not None and scheme in GROUPED and not spec.symmetric:
        want.add("weight_zero_point")
    if tensors.keys() != want:
        raise ArtifactError(
            f"a {scheme} linear has the tensors {sorted(tensors)}; expected {sorted(want)}: "
            "the manifest and the weights disagree, build the artifact again"
        )
    return scheme


def check_dtype(tensors: dict[str, Tensor], key: str, *dtypes: torch.dtype) -> Tensor:
    """``tensors[key]``.

    Raises:
        ArtifactError: of another dtype.
    """
    tensor = tensors[key]
    if tensor.dtype not in dtypes:
        raise ArtifactError(f"{key} is {tensor.dtype}; expected {' or '.join(map(str, dtypes))}")
    return tensor


def check_shape(name: str, tensor: Tensor, *shape: int) -> None:
    """
    Raises:
        ArtifactError: another shape.
    """
    if tuple(tensor.shape) != shape:
        raise ArtifactError(f"{name} has shape {list(tensor.shape)}; expected {list(shape)}")


def unpack_nibbles(words: Tensor) -> Tensor:
    """int32 [r, c/8] -> uint8 [r, c] in 0 ... 15, lowest bits first."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return ((words[..., None] >> shifts) & 15).to(torch.uint8).flatten(1)


def unpack_w4a16(tensors: dict[str, Tensor], group_size: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """(q uint8 [N, K] in 0 ... 15, scale [N, K/group], zero uint8 [N, K/group]); weight = (q - zero) * scale.

    Raises:
        ArtifactError: shapes that do not fit each other or the group size.
    """
    packed = check_dtype(tensors, "weight_packed", torch.int32)
    scale = check_dtype(tensors, "weight_scale", torch.bfloat16, torch.float32)
    n, k = int(packed.shape[0]), int(packed.shape[1]) * 8
    if not group_size or k % group_size or group_size % 8:
        raise ArtifactError(f"group_size is {group_size}; expected a multiple of 8 that divides the {k} input features")
    check_shape("weight_scale", scale, n, k // group_size)
    q = unpack_nibbles(packed)
    if "weight_zero_point" not in tensors:
        return q, scale, torch.full((n, k // group_size), 8, dtype=torch.uint8, device=packed.device)
    words = check_dtype(tensors, "weight_zero_point", torch.int32)
    check_shape("weight_zero_point", words, n // 8, k // group_size)
    return q, scale, unpack_nibbles(words.t().contiguous()).t().contiguous()


def dequantise_w4a16(q: Tensor, scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """[N, K] weights: the product in float32, rounded once to ``dtype``."""
    n, groups = scale.shape
    centred = q.view(n, groups, -1).float() - zero.float()[..., None]
    return (centred * scale.float()[..., None]).to(dtype).view(n, -1)


def unpack_w8a16(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(q int8 [N, K], scale float32 [N, 1]); weight = q * scale.

    Raises:
        ArtifactError: a shape or dtype that the scheme does not have.
    """
    packed = check_dtype(tensors, "weight_packed", torch.int32)
    scale = check_dtype(tensors, "weight_scale", torch.bfloat16, torch.float32)
    check_shape("weight_scale", scale, int(packed.shape[0]), 1)
    shifts = torch.arange(0, 32, 8, dtype=torch.int32, device=packed.device)
    codes = ((packed[..., None] >> shifts) & 255).flatten(1) - 128
    return codes.to(torch.int8), scale.float()


def unpack_fp8(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(codes float8_e4m3fn [N, K], scale float32 [N, 1]); weight = code * scale.

    Raises:
        ArtifactError: a shape or dtype that the scheme does not have.
    """
    weight = check_dtype(tensors, "weight", torch.float8_e4m3fn)
    scale = check_dtype(tensors, "weight_scale", torch.float32, torch.bfloat16)
    check_shape("weight_scale", scale, int(weight.shape[0]), 1)
    return weight.contiguous(), scale.float()
