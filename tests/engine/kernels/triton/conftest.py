"""For tests that run Triton's kernels in its interpreter."""

from __future__ import annotations

import os

import pytest
import torch

from engine.kernels.triton import TritonKernels

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="the tensors of these tests lie on the CPU; see test_gpu.py"
)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def triton(request: pytest.FixtureRequest) -> TritonKernels:
    return TritonKernels(request.param, threads=2)
