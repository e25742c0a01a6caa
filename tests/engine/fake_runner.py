"""A model whose logits are a function of the whole token history, read back through the block tables.

It keeps, for every block and offset, the token and position written there. Logits of a row come from a hash of all
tokens from position 0 on; a wrong table, a lost copy, a block reused too early or a token skipped changes the output.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from engine.batch import BatchEntry


class FakeRunner:
    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 50, max_model_len: int = 10_000) -> None:
        self.num_blocks, self.block_size, self.vocab_size = num_blocks, block_size, vocab_size
        self.max_model_len = max_model_len
        self.derived = {"kernels": "fake"}
        self.cache: dict[tuple[int, int], tuple[int, int]] = {}
        self.batches: list[list[BatchEntry]] = []
        self.poison: set[int] = set()  # positions whose logits are not a number

    def memory(self) -> dict[str, int]:
        return {"weights_bytes": 0, "kv_pool_bytes": 0}

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        old = {
            (target, offset): self.cache[source, offset]
            for source, target in pairs
            for offset in range(self.block_size)
            if (source, offset) in self.cache
        }
        self.cache.update(old)

    def execute(self, batch: list[BatchEntry]) -> list[torch.Tensor | None]:
        self.batches.append(batch)
        written: set[tuple[int, int]] = set()
        for entry in batch:
            for position, token in enumerate(entry.token_ids, entry.start):
                slot = (entry.block_table[position // self.block_size], position % self.block_size)
                assert slot not in written, f"slot {slot} written twice in one step"
                written.add(slot)
                self.cache[slot] = (position, token)
        return [self._logits(entry) for entry in batch]

    def _logits(self, entry: BatchEntry) -> torch.Tensor | None:
        end = entry.start + len(entry.token_ids)
        history = []
        for position in range(end):
            slot = (entry.block_table[position // self.block_size], position % self.block_size)
            at, token = self.cache[slot]
            assert at == position, f"{entry.request_id}: slot {slot} holds position {at}, expected {position}"
            history.append(token)
        if entry.logits == "none":
            return None
        first = max(entry.start, entry.rows_from) if entry.logits == "all" else end - 1
        rows = torch.stack([fake_logits(history[: p + 1], self.vocab_size) for p in range(first, end)])
        for p in range(first, end):
            if p in self.poison:
                rows[p - first] = float("nan")
        return rows


def fake_logits(history: list[int], vocab_size: int) -> torch.Tensor:
    digest = hashlib.sha256(np.asarray(history, dtype=np.int32).tobytes()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return torch.from_numpy(generator.standard_normal(vocab_size).astype(np.float32) * 2)
