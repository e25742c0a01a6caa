"""The shared cases see a kernel whose indices are off by one: each fault is planted in a copy of the source."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from engine.kernels.interface import Kernels
from engine.kernels.triton import TritonKernels, backend
from engine.kernels.triton.jit import attention, heads, products, rows
from tests.engine.kernels import test_attention, test_linear, test_rows
from tests.engine.kernels.triton.conftest import interpreted

pytestmark = interpreted


def plain_attention(kernels: Kernels) -> None:
    test_attention.test_equals_plain_attention(kernels, 8, 1, 24, 4, torch.float32, None)


def window(kernels: Kernels) -> None:
    test_attention.test_equals_plain_attention(kernels, 8, 1, 24, 4, torch.float32, 20)


def product(scheme: str) -> Callable[[Kernels], None]:
    return lambda kernels: test_linear.test_equals_the_dequantised_product(kernels, scheme, 64, 96)


def norm(kernels: Kernels) -> None:
    test_rows.test_rms_norm(kernels, 40)


def rope(kernels: Kernels) -> None:
    test_rows.test_rope_turns_pairs_by_their_angle(kernels, 10)


# Read and written places stay within the tensors.
FAULTS: list[tuple[ModuleType, str, str, Callable[[Kernels], None]]] = [
    (attention, "table + key // block_size", "table + tl.maximum(key - 1, 0) // block_size", plain_attention),
    (attention, "seen = (key[None, :] <= position", "seen = (key[None, :] < position", plain_attention),
    (attention, "position - window + 1, 0), 0x7FFFFFFF", "position - window, 0), 0x7FFFFFFF", window),
    (heads, "= slot // block_size, ", "= tl.maximum(slot - 1, 0) // block_size, ", plain_attention),
    (heads, "tl.where(first_half, column + half", "tl.where(first_half, column + half - 1", rope),
    (products, "at = start + tl.arange(0, DEPTH)", "at = start + 1 + tl.arange(0, DEPTH)", product("bf16")),
    (products, "tl.load(w_scales + out_at", "tl.load(w_scales + out_at // 2", product("w8a8")),
    (products, "+ (start + HALF) // group", "+ start // group", product("w4a16")),
    (products, "start + HALF + at[None, :]", "start + HALF - 1 + at[None, :]", product("w4a8")),
    (rows, "tl.load(weight + column", "tl.load(weight + tl.maximum(column - 1, 0)", norm),
]


@pytest.mark.parametrize(("module", "right", "wrong", "case"), FAULTS, ids=[fault[2] for fault in FAULTS])
def test_a_shared_case_fails(
    module: ModuleType,
    right: str,
    wrong: str,
    case: Callable[[Kernels], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = TritonKernels(torch.float32)
    case(kernels)
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert right in source
    copy = tmp_path / "planted.py"
    copy.write_text(source.replace(right, wrong), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("planted", copy)
    assert spec is not None
    assert spec.loader is not None
    planted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(planted)
    monkeypatch.setattr(backend, module.__name__.rpartition(".")[2], planted)
    with pytest.raises(AssertionError):
        case(kernels)
