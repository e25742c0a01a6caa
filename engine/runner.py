"""From a scheduled batch to logits: owns the weights and the KV pool.

ModelRunner
|- model (engine.models)       weights, in the kernels' layout; read-only after loading
`- caches, one a layer         [num_blocks, block_size, kv_heads, head_dim]; written by execute and copy_blocks only
block tables                   belong to the scheduler's BlockPool; the runner believes them
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from engine import ledger
from engine.artifact import read_manifest
from engine.batch import BatchEntry
from engine.config import EngineConfig, resolve_dtypes
from engine.isa import isa_features, reason_of, target_of, within
from engine.kernels.interface import AttentionMeta
from engine.kernels.registry import select
from engine.layers.step import StepInput
from engine.logits import LazyRows, Rows
from engine.models.registry import load_model, read_config

log = logging.getLogger(__name__)


class ModelRunner:
    """One model on one backend. Not thread-safe: one thread calls it, the step loop."""

    def __init__(self, artifact: Path, config: EngineConfig) -> None:
        """Loads the weights and allocates the KV pool.

        Raises:
            ArtifactError: the artifact cannot be used, or does not fit the memory limit.
            engine.kernels.registry.UnavailableError: no kernels for the backend, or less of a CPU than ``config.isa``.
        """
        manifest, hf_config = read_manifest(artifact), read_config(artifact)
        self.shape = ledger.ModelShape.of_config(hf_config)
        threads = ledger.compute_threads(config)
        isa = isa_features()
        compute, kv, reason = resolve_dtypes(config, isa)
        target = target_of(config.isa, isa)
        kernels, kernels_reason = select(config.backend, getattr(torch, compute), threads, target)
        torch.set_num_threads(kernels.torch_threads)
        config = ledger.served(config, hf_config)
        self.max_model_len = config.max_model_len
        self.vocab_size = self.shape.vocab
        self.block_size = config.block_size
        with torch.inference_mode():
            self.model = load_model(artifact, hf_config, manifest, kernels, self.max_model_len)
            planned = ledger.plan(self.shape, self.model.nbytes, config, compute, kv)
            self.num_blocks = planned.num_blocks
            self.caches = [
                kernels.new_kv_cache(
                    self.num_blocks, config.block_size, self.shape.kv_heads, self.shape.head_dim, getattr(torch, kv)
                )
                for _ in range(self.shape.layers)
            ]
        self.derived: dict[str, Any] = {
            "compute_dtype": compute,
            "compute_dtype_reason": reason,
            "kv_dtype": kv,
            "kernels": kernels.name,
            "kernels_reason": kernels_reason,
            "isa": within(config.isa, isa),
            "isa_reason": reason_of(config.isa, isa),
            "threads": threads,
            "max_model_len": self.max_model_len,
            "ledger": planned.model_dump(),
        }
        log.info(
            "%s: %s, kernels/%s, %d threads, %d blocks", manifest.name, compute, kernels.name, threads, self.num_blocks
        )

    def memory(self) -> dict[str, int]:
        """Bytes that are really allocated: the storages of the tensors."""
        return {"weights_bytes": self.model.nbytes, "kv_pool_bytes": sum(cache.nbytes for cache in self.caches)}

    def execute(self, batch: list[BatchEntry]) -> list[Rows | None]:
        """Computes the batch's tokens; logits of each entry's rows, None where none are wanted.

        Writes keys and values of every token into its block. Each entry's result has the same bits in any batch.

        Raises:
            ValueError: an entry without tokens, with a token or a position that does not exist, or a block table
                too short (a fault of the scheduler, not of the user).
        """
        if not batch:
            return []
        for entry in batch:
            self._check(entry)
        with torch.inference_mode():
            return self._execute(batch)

    def _execute(self, batch: list[BatchEntry]) -> list[Rows | None]:
        hidden = self.model.forward(self._step(batch), self.caches)  # [T, hidden], normed
        ends = torch.tensor([len(entry.token_ids) for entry in batch]).cumsum(0)
        last = [int(end) - 1 for entry, end in zip(batch, ends, strict=True) if entry.logits == "last"]
        found = iter(self.model.logits(hidden[last]).split(1) if last else [])
        rows: list[Rows | None] = []
        for entry, part in zip(batch, hidden.tensor_split(ends[:-1]), strict=True):
            match entry.logits:
                case "none":
                    rows.append(None)
                case "last":
                    rows.append(next(found))
                case "all":
                    rows.append(LazyRows(part, self.model.logits))
        return rows

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copies whole blocks, (source, target) each, in all layers: copy-on-write. Every source is read before any
        target is written: a source that lost its last holder in this step can be another's target."""
        if not pairs:
            return
        sources, targets = (torch.tensor(side) for side in zip(*pairs, strict=True))
        with torch.inference_mode():
            for tensor in (t for cache in self.caches for t in cache.tensors):
                tensor[targets] = tensor[sources]

    def _check(self, entry: BatchEntry) -> None:
        stop = entry.start + len(entry.token_ids)
        name = f"request {entry.request_id}"
        if not entry.token_ids:
            raise ValueError(f"{name}: no tokens in this step; an entry computes at least one")
        if entry.start < 0 or stop > self.max_model_len:
            raise ValueError(f"{name}: positions {entry.start} to {stop - 1}; expected 0 to {self.max_model_len - 1}")
        needed = -(-stop // self.block_size)
        if len(entry.block_table) < needed:
            raise ValueError(f"{name}: {len(entry.block_table)} blocks; {stop} tokens need {needed}")
        if not 0 <= min(entry.token_ids) <= max(entry.token_ids) < self.vocab_size:
            raise ValueError(f"{name}: token ids must be 0 to {self.vocab_size - 1}")
        if not 0 <= min(entry.block_table) <= max(entry.block_table) < self.num_blocks:
            raise ValueError(f"{name}: block ids must be 0 to {self.num_blocks - 1}")

    def _step(self, batch: list[BatchEntry]) -> StepInput:
        size = self.block_size
        tokens = torch.tensor([t for entry in batch for t in entry.token_ids])
        positions = torch.tensor([p for e in batch for p in range(e.start, e.start + len(e.token_ids))])
        slots = torch.tensor(
            [
                e.block_table[p // size] * size + p % size
                for e in batch
                for p in range(e.start, e.start + len(e.token_ids))
            ]
        )
        lengths = [e.start + len(e.token_ids) for e in batch]
        widest = max(-(-n // size) for n in lengths)
        tables = torch.zeros(len(batch), widest, dtype=torch.int32)
        for row, entry in zip(tables, batch, strict=True):
            used = entry.block_table[:widest]
            row[: len(used)] = torch.tensor(used, dtype=torch.int32)
        starts = torch.zeros(len(batch) + 1, dtype=torch.int32)
        starts[1:] = torch.tensor([len(e.token_ids) for e in batch]).cumsum(0)
        meta = AttentionMeta(starts, torch.tensor(lengths, dtype=torch.int32), tables)
        return StepInput(tokens, positions, slots, meta)
