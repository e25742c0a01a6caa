"""Compiled C kernels for any CPU with a C compiler."""

from engine.kernels.cpu.backend import CpuKernels

__all__ = ["CpuKernels"]
