"""The Triton kernels on a device."""

from __future__ import annotations

import torch

from engine.kernels.cuda.backend import Device, OnDevice
from engine.kernels.triton.backend import TritonKernels


class CudaKernels(OnDevice, TritonKernels):
    """Implements engine.kernels.interface.Kernels."""

    name = "cuda"

    def __init__(self, dtype: torch.dtype, threads: int, own: Device) -> None:
        """``threads``: of the host, for what is drawn and scored there."""
        TritonKernels.__init__(self, dtype, threads, own.device)
        self.own = own
