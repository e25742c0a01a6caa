"""From a scheduled batch to logits: owns the weights and the KV pool.

ModelRunner
|- model (engine.models)       weights, in the kernels' layout; read-only after loading
`- caches, one a layer         [num_blocks, block_size, kv_heads, head_dim]; written by execute and copy_blocks only
block tables                   belong to the scheduler's BlockPool; the runner believes them
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine import ledger
from engine.ahead import Launched, Lookahead
from engine.artifact import read_manifest
from engine.batch import BatchEntry
from engine.config import EngineConfig, resolve_dtypes
from engine.isa import isa_features, reason_of, target_of, within
from engine.kernels.draws import COLUMNS, can_draw, row_of
from engine.kernels.interface import AttentionMeta, Kernels, StepInput, StepOutput, StepSizes
from engine.kernels.registry import capability_of, select
from engine.logits import DrawnRow, LazyLogits, OnHost, Rows
from engine.models.registry import load_model, read_config
from engine.models.weights import Weights

log = logging.getLogger(__name__)


class ModelRunner:
    """One model on one backend. Not thread-safe: one thread calls it, the step loop."""

    def __init__(
        self, artifact: Path, config: EngineConfig, store: Weights | None = None, kernels: Kernels | None = None
    ) -> None:
        """Loads the weights, those of the artifact or of a ``store`` in their place, and allocates the KV pool.
        ``kernels``: None: those that ``config`` asks for.

        Raises:
            ArtifactError: the artifact cannot be used, or does not fit the memory limit.
            MemoryError: a device has less memory than it said.
            engine.kernels.registry.UnavailableError: no kernels for the backend, or less of a CPU than ``config.isa``.
        """
        manifest, hf_config = read_manifest(artifact), read_config(artifact)
        self.shape = ledger.ModelShape.of_config(hf_config)
        threads = ledger.compute_threads(config)
        isa = isa_features()
        compute, kv, reason = resolve_dtypes(config, isa, None if kernels else capability_of(config.backend))
        target = target_of(config.isa, isa)
        kernels_reason = "as given"
        if kernels is None:
            kernels, kernels_reason = select(config.backend, getattr(torch, compute), threads, target)
        torch.set_num_threads(kernels.torch_threads)
        kernels.pin_threads(config.pin_threads)
        config = ledger.served(config, hf_config)
        config = config.model_copy(update={"memory_limit_bytes": kernels.grant(config.memory_limit_bytes)})
        self.max_model_len = config.max_model_len
        self.vocab_size = self.shape.vocab
        self.block_size = config.block_size
        with torch.inference_mode(), kernels.watched():
            self.model = load_model(artifact, hf_config, manifest, kernels, self.max_model_len, store)
            planned = ledger.plan(self.shape, self.model.nbytes, config, compute, kv)
            self.num_blocks = planned.num_blocks
            self.caches = [
                kernels.new_kv_cache(
                    self.num_blocks, config.block_size, self.shape.kv_heads, self.shape.head_dim, _stored(kv)
                )
                for _ in range(self.shape.layers)
            ]
            self._replay = kernels.record(
                self.model,
                self.caches,
                StepSizes(config.max_num_batched_tokens, config.max_num_seqs, self.max_model_len),
            )
        self._run = self._replay or self._run_plainly
        self.looks_ahead = self._replay is not None and self._replay.draws
        self._lookahead = Lookahead(self._execute, config.max_num_seqs)
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
            **({"device": about} if (about := kernels.about()) else {}),
        }
        log.info(
            "%s: %s, kernels/%s, %d threads, %d blocks", manifest.name, compute, kernels.name, threads, self.num_blocks
        )

    def memory(self) -> dict[str, int]:
        """Bytes that are really allocated: the storages of the tensors, and what a device's allocator says."""
        own = {"weights_bytes": self.model.nbytes, "kv_pool_bytes": sum(cache.nbytes for cache in self.caches)}
        return own | self.model.kernels.memory_facts()

    def execute(self, batch: list[BatchEntry]) -> list[Rows | None]:
        """Computes the batch's tokens; logits of each entry's rows, None where none are wanted.

        Writes keys and values of every token into its block. Each entry's result has the same bits in any batch.

        Raises:
            MemoryError: a kernel or the device's allocator got none.
            ValueError: an entry without tokens, with a token or a position that does not exist, or a block table
                too short (a fault of the scheduler, not of the user).
        """
        if not batch:
            return []
        for entry in batch:
            self._check(entry)
        with torch.inference_mode(), self.model.kernels.watched():
            return self._lookahead.execute(batch) if self.looks_ahead else self._execute(batch)[0]

    def ahead(self, batch: list[BatchEntry]) -> None:
        """See engine.ahead.Lookahead.ahead; for a runner that ``looks_ahead``. Raises what ``execute`` raises."""
        for entry in batch:
            self._check(entry, known=False)
        with torch.inference_mode(), self.model.kernels.watched():
            self._lookahead.ahead(batch)

    def _execute(self, batch: list[BatchEntry]) -> tuple[list[Rows | None], Launched | None]:
        scored = any(entry.logits == "all" for entry in batch)
        step = self._step(batch)
        if self.looks_ahead:
            step = replace(step, draws=_draws(batch))
        hidden, logits, best, drawn = self._run(step, with_logits=not scored)  # [W, hidden], [W, vocab]
        if scored:
            return self._scored_rows(batch, hidden), None
        rows: list[Rows | None] = [None] * len(batch)
        if logits is None:
            return rows, None
        there = OnHost(logits)
        wanted = [i for i, entry in enumerate(batch) if entry.logits == "last"]
        for row, i in enumerate(wanted):
            rows[i] = there[row : row + 1] if best is None else DrawnRow(there, row, best, drawn, batch[i].seed)
        if best is None or drawn is None or len(wanted) < len(batch):
            return rows, None
        return rows, Launched.of(batch, there, best, drawn)

    def _scored_rows(self, batch: list[BatchEntry], hidden: Tensor) -> list[Rows | None]:
        """Logits of the rows that are drawn from; those of the others, when somebody looks at them."""
        stops = list(accumulate(entry.num_rows for entry in batch))
        spans = [range(stop - entry.num_rows, stop) for entry, stop in zip(batch, stops, strict=True)]
        last = [span.start for entry, span in zip(batch, spans, strict=True) if entry.logits == "last"]
        drawn = iter(self.model.logits(hidden[last]).cpu().split(1) if last else [])
        scored = [span for entry, span in zip(batch, spans, strict=True) if entry.logits == "all"]
        lazily = LazyLogits(hidden, scored, self._logits)
        theirs = iter(lazily.of_entries())
        rows: list[Rows | None] = []
        for entry in batch:
            match entry.logits:
                case "none":
                    rows.append(None)
                case "last":
                    rows.append(next(drawn))
                case "all":
                    rows.append(next(theirs))
        return rows

    def _logits(self, hidden: Tensor) -> Tensor:
        with self.model.kernels.watched():
            return self.model.logits(hidden)

    def _run_plainly(self, step: StepInput, with_logits: bool) -> StepOutput:
        """What a replay does, one operation after the other."""
        hidden = self.model.run(self.model.kernels, step, self.caches)
        return StepOutput(hidden, self.model.logits(hidden) if with_logits and len(hidden) else None)

    def profile(self, on: bool) -> list[tuple[str, int | None, float]]:
        """Where the time of steps goes: see engine.kernels.interface.Replay.profile. What a step takes beyond the sum
        is Python's share. Always empty with kernels that have no replay."""
        return [] if self._replay is None else self._replay.profile(on)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copies whole blocks, (source, target) each, in all layers: copy-on-write. Every source is read before any
        target is written: a source that lost its last holder in this step can be another's target.

        Raises:
            MemoryError: the device's allocator got none.
        """
        if not pairs:
            return
        device = self.caches[0].k.device
        with torch.inference_mode(), self.model.kernels.watched():
            sources, targets = (torch.tensor(side, device=device) for side in zip(*pairs, strict=True))
            for tensor in (t for cache in self.caches for t in cache.tensors):
                tensor[targets] = tensor[sources]

    def _check(self, entry: BatchEntry, known: bool = True) -> None:
        """``known``: its tokens are."""
        stop = entry.start + len(entry.token_ids)
        name = f"request {entry.request_id}"
        if not entry.token_ids:
            raise ValueError(f"{name}: no tokens in this step; an entry computes at least one")
        if entry.start < 0 or stop > self.max_model_len:
            raise ValueError(f"{name}: positions {entry.start} to {stop - 1}; expected 0 to {self.max_model_len - 1}")
        needed = -(-stop // self.block_size)
        if len(entry.block_table) < needed:
            raise ValueError(f"{name}: {len(entry.block_table)} blocks; {stop} tokens need {needed}")
        if known and not 0 <= min(entry.token_ids) <= max(entry.token_ids) < self.vocab_size:
            raise ValueError(f"{name}: token ids must be 0 to {self.vocab_size - 1}")
        if not 0 <= min(entry.block_table) <= max(entry.block_table) < self.num_blocks:
            raise ValueError(f"{name}: block ids must be 0 to {self.num_blocks - 1}")

    def _step(self, batch: list[BatchEntry]) -> StepInput:
        """Lists first: for the few rows of a decode step nothing is quicker, and a prompt's are soon made beside what
        the model does with them."""
        size = self.block_size
        tokens, positions, slots, wanted, lengths = (list[int]() for _ in range(5))
        starts = [0]
        for entry in batch:
            stop = entry.start + len(entry.token_ids)
            tokens += entry.token_ids
            positions += range(entry.start, stop)
            slots += [entry.block_table[p // size] * size + p % size for p in range(entry.start, stop)]
            wanted += range(len(tokens) - entry.num_rows, len(tokens))
            starts.append(len(tokens))
            lengths.append(stop)
        tables = np.zeros((len(batch), -(-max(lengths) // size)), np.int32)
        for row, entry in zip(tables, batch, strict=True):
            used = entry.block_table[: len(row)]
            row[: len(used)] = used
        a_row = torch.from_numpy(np.array([tokens, positions, slots]))  # [3, T]
        a_request = torch.from_numpy(np.array([starts, [*lengths, 0]], np.int32))  # [2, R + 1]
        return StepInput(
            a_row[0],
            a_row[1],
            a_row[2],
            AttentionMeta(a_request[0], a_request[1, :-1], torch.from_numpy(tables)),
            torch.from_numpy(np.array(wanted, np.int64)),
        )


def _stored(kv_dtype: str) -> torch.dtype:
    named = {"fp8": torch.float8_e4m3fn, "int4": torch.uint4}
    found: torch.dtype = named.get(kv_dtype) or getattr(torch, kv_dtype)
    return found


def _draws(batch: list[BatchEntry]) -> Tensor | None:
    """Of the rows that are drawn from; None where none has a temperature."""
    drawn = [entry for entry in batch if entry.logits == "last"]
    if not any(entry.params is not None and can_draw(entry.params) for entry in drawn):
        return None
    rows = [
        row_of(entry.params, entry.seed, entry.start + len(entry.token_ids))
        if entry.params is not None and can_draw(entry.params)
        else [0] * COLUMNS
        for entry in drawn
    ]
    return torch.tensor(rows)
