"""Which backend runs here, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from engine.kernels.errors import UnavailableError
from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels

log = logging.getLogger(__name__)


def _cpu(dtype: torch.dtype, threads: int, target: str | None) -> Kernels:
    from engine.kernels.cpu import CpuKernels

    return CpuKernels(dtype, threads, target)


def _reference(dtype: torch.dtype, threads: int, target: str | None) -> Kernels:
    if target is not None:
        log.warning("PyTorch chooses its instructions itself: the limit of the C kernels, %s, is not kept", target)
    return ReferenceKernels(dtype, threads)


def _cuda(dtype: torch.dtype, threads: int, target: str | None) -> Kernels:
    from engine.kernels.cuda.device import current
    from engine.kernels.cuda.kernels import CudaKernels

    return CudaKernels(dtype, threads, current())


def capability_of(backend: str) -> tuple[int, int] | None:
    """Of the device that ``config.backend`` asks for; None for a CPU.

    Raises:
        UnavailableError: there is no such device here.
    """
    if backend != "cuda":
        return None
    from engine.kernels.cuda.device import capability

    return capability()


# For each config.backend, the kernels to try in order. With the last one missing the backend is.
BACKENDS: dict[str, list[tuple[str, Callable[[torch.dtype, int, str | None], Kernels]]]] = {
    "cpu": [("cpu", _cpu), ("reference", _reference)],
    "cuda": [("cuda", _cuda)],  # a user who asks for a GPU does not want to wait for a CPU
}


def select(backend: str, dtype: torch.dtype, threads: int, target: str | None = None) -> tuple[Kernels, str]:
    """(kernels, reason) for ``config.backend``. ``target``: as of ``engine.isa.target_of``.

    Raises:
        UnavailableError: no kernels of this backend can run here.
    """
    if backend not in BACKENDS:
        raise UnavailableError(
            f"backend {backend!r} has no kernels in this version; expected one of {', '.join(BACKENDS)}"
        )
    refused = []
    for name, build in BACKENDS[backend]:
        try:
            kernels = build(dtype, threads, target)
        except UnavailableError as e:
            log.warning("kernels/%s cannot be used: %s", name, e)
            refused.append(f"{name} -> {e}")
            continue
        return kernels, "; ".join(refused) or "available"
    raise UnavailableError(f"no kernels for backend {backend!r}: {'; '.join(refused)}")
