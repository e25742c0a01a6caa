"""A device without a GPU: the CPU's memory, graphs that run their work again, books that are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig, resolve_dtypes
from engine.kernels.cuda.backend import Device, OnDevice
from engine.kernels.cuda.graphs import CaptureError, Graphs
from engine.kernels.cuda.memory import DeviceMemory, Figures
from engine.kernels.cuda.replay import DeviceReplay
from engine.kernels.reference import ReferenceKernels
from engine.runner import ModelRunner

CONFIG: dict[str, Any] = {
    "backend": "cuda",
    "max_model_len": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "prefill_chunk_tokens": 32,
    "threads": 1,  # a step of a tiny model is over before a second one has begun
    "kv_pool_bytes": 2**20,
}


class FakeGraphs:
    """Implements Graphs: a repetition is the work again, which finds of the step what lies in its buffers."""

    def __init__(self, fail: bool = False) -> None:
        self.fail, self.captures, self.replays = fail, 0, 0

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        if self.fail:
            raise CaptureError("operation not permitted when stream is capturing")
        work()
        self.captures += 1

        def run() -> None:
            self.replays += 1
            work()

        return run


class OnReference(OnDevice, ReferenceKernels):
    """The readable kernels in the place of Triton's."""

    def __init__(self, dtype: torch.dtype, threads: int, own: Device) -> None:
        ReferenceKernels.__init__(self, dtype, threads)
        self.own = own


def device_runner(
    artifact: Path,
    graphs: Graphs | None,
    kernels: Callable[[torch.dtype, int, Device], Any] = OnReference,
    memory: DeviceMemory | None = None,
    **config: Any,
) -> ModelRunner:
    asked = EngineConfig(**(CONFIG | config))
    dtype = getattr(torch, resolve_dtypes(asked, [])[0])
    own = Device(torch.device("cpu"), "a CPU", None if graphs is None else lambda: graphs, memory, (9, 0))
    return ModelRunner(artifact, asked, kernels=kernels(dtype, 1, own))


def replay_of(runner: ModelRunner) -> DeviceReplay:
    assert isinstance(runner._replay, DeviceReplay)
    return runner._replay


class Books:
    """Figures that a test sets. ``step``: what the highest lies above the allocated."""

    def __init__(self, total: int = 1000, free: int = 600, reserved: int = 300, allocated: int = 200) -> None:
        self.figures = Figures(total, free, reserved, allocated, allocated)
        self.forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1

    @property
    def memory(self) -> DeviceMemory:
        return DeviceMemory(lambda: self.figures, self.forget)
