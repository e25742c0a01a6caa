"""Triton kernels, for GPUs; without one they run in Triton's interpreter, for tests."""

from engine.kernels.triton.backend import TritonKernels

__all__ = ["TritonKernels"]
