"""Recording work on a device once and repeating it without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], object]


class Graphs(Protocol):
    """Work that reads tensors which stay where they are, and leaves its results in such."""

    def capture(self, work: Work) -> Callable[[], None]:
        """Runs ``work`` for trial, then records it. Returns what repeats it: the same kernels on the same addresses,
        with what lies there by then.

        Raises:
            CaptureError: the work cannot be recorded, for instance because it waits for the device.
        """
        ...


class CaptureError(RuntimeError):
    """Work that cannot be recorded: the message is the device's reason."""


class CudaGraphs:
    """CUDA graphs that share one memory pool, since only one of them runs at a time. Record the largest first: the
    others fit into what it took. A pool ends with the last of its graphs: new ones need another CudaGraphs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._trial = torch.cuda.Stream(device)  # one for all: the allocator keeps what each stream has freed apart

    def capture(self, work: Work) -> Callable[[], None]:
        self._trial.wait_stream(torch.cuda.current_stream(self.device))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._trial):
                work()  # compiles what is not compiled yet, which a recording must not
            torch.cuda.current_stream(self.device).wait_stream(self._trial)
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as e:
            raise CaptureError(" ".join(str(e).split())[:300]) from e
        replay: Callable[[], None] = graph.replay
        return replay
