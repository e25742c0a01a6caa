"""Readable PyTorch kernels: they define what is right."""

from engine.kernels.reference.backend import ReferenceKernels

__all__ = ["ReferenceKernels"]
