"""Every backend and compute dtype, for the tests that all of them must pass."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton import TritonKernels

DTYPES = [torch.float32, torch.bfloat16]
BACKENDS: list[Any] = [ReferenceKernels, CpuKernels]
if os.environ.get("TRITON_INTERPRET") == "1":  # these tests' tensors lie on the CPU; on a GPU: triton/test_gpu.py
    BACKENDS.append(TritonKernels)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2}  # relative to the largest value of a result


@pytest.fixture(params=BACKENDS, ids=lambda b: b.name)
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def kernels(request: pytest.FixtureRequest, backend: Any) -> Kernels:
    made: Kernels = backend(request.param, threads=2)
    return made


def slow(kernels: Kernels) -> bool:
    """Whether a call takes so long that a test should try less: Triton's interpreter takes milliseconds a program."""
    return kernels.name == "triton"


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Within the rounding of ``dtype``, measured against the largest expected value."""
    error = (found.double() - expected.double()).abs().max().item()
    assert error <= TOLERANCE[dtype] * expected.double().abs().max().item()
