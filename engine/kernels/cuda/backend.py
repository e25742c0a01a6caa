"""Kernels on a device: their data is moved there, their steps are replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from engine.kernels.composed import Composed
from engine.kernels.cuda.graphs import Graphs
from engine.kernels.cuda.memory import DeviceMemory
from engine.kernels.cuda.replay import DeviceReplay
from engine.kernels.cuda.transfers import Transfers
from engine.kernels.errors import UnavailableError
from engine.kernels.interface import KvCache, Model, StepSizes


@dataclass(frozen=True)
class Device:
    """What a device offers beyond computing. ``memory`` None: it keeps no books; ``graphs``: makes what records work;
    None: it records nothing.
    On the CPU, with neither, everything else here is the same: that is what tests without a GPU run."""

    device: torch.device
    name: str
    graphs: Callable[[], Graphs] | None
    memory: DeviceMemory | None
    capability: tuple[int, int] | None = None


class OnDevice(Composed):
    """A mixin before a class of kernels that pack weights for, make caches on and compute on the device of ``own``: a
    model comes there one linear after the other."""

    own: Device  # set by the class that mixes this in, before anything else is called
    _replay: DeviceReplay | None = None
    _step_bytes: int | None = None

    def place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.own.device)

    def new_kv_cache(self, blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KvCache:
        """With one block more, the last: scratch, see DeviceReplay."""
        cache: KvCache = super().new_kv_cache(blocks + 1, block_size, kv_heads, head_dim, dtype)  # type: ignore[misc]
        return cache

    def record(self, model: Model, caches: Sequence[KvCache], largest: StepSizes) -> DeviceReplay:
        """Rehearses the largest step and records decode steps: takes the memory that they will take, now."""
        memory = self.own.memory
        before = 0
        if memory is not None:
            memory.forget_peak()
            before = memory.read().allocated
        transfers = Transfers(self.own.device)
        graphs = None if self.own.graphs is None else self.own.graphs()
        self._replay = DeviceReplay(self, model, caches, transfers, graphs, largest)  # type: ignore[arg-type]
        if memory is not None:
            self._step_bytes = memory.read().highest - before
        return self._replay

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext() if self.own.memory is None else self.own.memory.told()

    def grant(self, limit: int) -> int:
        return limit if self.own.memory is None else self.own.memory.grant(limit)

    def memory_facts(self) -> dict[str, int]:
        if self.own.memory is None:
            return {}
        return {f"device_{name}_bytes": size for name, size in asdict(self.own.memory.read()).items()}

    def about(self) -> dict[str, Any]:
        return {
            "name": self.own.name,
            "capability": None if self.own.capability is None else list(self.own.capability),
            "graphs": 0 if self._replay is None else len(self._replay.graphs),
            "graphs_reason": "no step is recorded" if self._replay is None else self._replay.graphs_reason,
            "step_bytes": self._step_bytes,  # that the allocator gave beside weights and pool, at most, up to here
        }

    def pin_threads(self, on: bool) -> None:
        if on:
            raise UnavailableError("pin_threads: the device computes, no threads of the process; set it to false")
