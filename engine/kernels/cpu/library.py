"""The C functions with their argument types: a wrong call fails in Python, not in memory."""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

P, L, I, F = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float  # noqa: E741

# Order and meaning as in csrc. Names ending in _ exist once for each dtype: _f32 and _bf16.
SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "rms_norm_": ([P, P, P, P, P, L, L, F, I], None),
    "rope_": ([P, L, P, L, P, P, P, P, L, L, L, L, I], None),
    "gated_mul_": ([P, P, L, L, I, I], None),
    "quantise_rows_": ([P, P, P, L, L, I], None),
    "write_kv": ([P, L, P, L, I, P, P, P, P, I, P, L, L, L, L, I], None),
    "paged_attention": ([P, I, P, P, P, P, P, I, P, P, P, L, L, L, L, L, L, L, F, I], I),
    "product_int": ([P, P, P, P, I, I, L, I], I),
    "product_float": ([P, P, I, P, I, I, I, I, L, I], I),
    "pool_pin": ([I, I], I),
    "run_program": ([P, P], L),
    "products_panel": ([], I),
    "products_have_dot": ([], I),
}


class Library:
    """Functions of the compiled library as attributes; per-dtype ones bound to the dtype asked for."""

    def __init__(self, library: ctypes.CDLL, suffix: str) -> None:
        for name, (arguments, result) in SIGNATURES.items():
            function = getattr(library, name[:-1] + suffix if name.endswith("_") else name)
            function.argtypes, function.restype = arguments, result
            setattr(self, name.rstrip("_"), function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the compiled kernels have no {name!r}; expected one of {', '.join(SIGNATURES)}")


def pointer(tensor: Tensor | None) -> int | None:
    """Address of the first element; NULL for None."""
    return None if tensor is None else int(tensor.data_ptr())
