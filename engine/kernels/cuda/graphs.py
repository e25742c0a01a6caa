"""Recording work on a device once and repeating it without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")


class Graphs(Protocol):
    """Work that reads fixed buffers and leaves its results in fixed tensors."""

    def capture(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Runs ``work`` for trial, then records it. Returns the tensors that every repetition writes to, and what
        repeats it: the same kernels on the same addresses, with what lies there by then.

        Raises:
            CaptureError: the work cannot be recorded, for instance because it waits for the device.
        """
        ...


class CaptureError(RuntimeError):
    """Work that cannot be recorded: the message is the device's reason."""


class CudaGraphs:
    """CUDA graphs that share one memory pool: only one of them runs at a time, and the results of one are read before
    the next one starts. Record the largest first: the others fit into what it took."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):
                work()  # compiles what is not compiled yet, which a recording must not
            torch.cuda.current_stream(self.device).wait_stream(stream)
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                results = work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as e:
            raise CaptureError(" ".join(str(e).split())[:300]) from e
        return results, graph.replay
