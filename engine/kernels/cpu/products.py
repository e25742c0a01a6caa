"""Packed weights as the C products read them: ``Linear`` of csrc/products.h."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from engine.kernels.cpu.library import pointer
from engine.kernels.interface import Activation, PackedLinear

W_BF16, W_F32, W_INT4, W_INT8, W_INT4A8 = range(5)
INTEGER_KINDS = {W_INT8, W_INT4A8}  # whose activations are quantised
GATES: dict[Activation | None, int] = {None: -1, "silu": 0, "gelu_tanh": 1}  # as in csrc/activation.h


class CLinear(ctypes.Structure):
    """Holds addresses only: valid while the CpuLinear that it is made from lives."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("panels", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("k", ctypes.c_long),
        ("n", ctypes.c_long),
        ("group", ctypes.c_long),
    )


@dataclass(frozen=True)
class CpuLinear(PackedLinear):
    """``tensors``: panels, and where the kind has them scales and zeros."""

    kind: int = W_BF16
    group: int = 0
    c: CLinear = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = self.tensors
        c = CLinear(
            self.kind,
            pointer(own["panels"]),
            pointer(own.get("scales")),
            pointer(own.get("zeros")),
            pointer(self.bias),
            self.in_features,
            self.out_features,
            self.group,
        )
        object.__setattr__(self, "c", c)

    @property
    def integer(self) -> bool:
        """Whether activations are quantised to 8 bits for it."""
        return self.kind in INTEGER_KINDS
