"""The CUDA device of this process, or why there is none."""

from __future__ import annotations

import torch

from engine.kernels.cuda.backend import Device
from engine.kernels.cuda.graphs import CudaGraphs
from engine.kernels.cuda.memory import DeviceMemory
from engine.kernels.errors import UnavailableError


def capability() -> tuple[int, int]:
    """Compute capability (CUDA C programming guide, appendix "Compute Capabilities").

    Raises:
        UnavailableError: no device, or a PyTorch that is built for none.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        raise UnavailableError(
            f"PyTorch {torch.__version__} is built without CUDA; install requirements/lock-cuda.txt (make "
            "TORCH=cuda), or set backend to cpu"
        )
    if not torch.cuda.is_available():
        raise UnavailableError("no CUDA device is visible to this process; check nvidia-smi, or set backend to cpu")
    major, minor = torch.cuda.get_device_capability()
    return int(major), int(minor)


def current() -> Device:
    """
    Raises:
        UnavailableError: see capability.
    """
    found = capability()
    device = torch.device("cuda", torch.cuda.current_device())
    return Device(
        device, torch.cuda.get_device_name(device), lambda: CudaGraphs(device), DeviceMemory.of_cuda(device), found
    )
