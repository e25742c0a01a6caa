"""Operations of a model that a backend can have from its simpler ones. They say what the fused kernels must equal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from engine.kernels.draws import draw_rows
from engine.kernels.interface import Activation, Heads, Kernels, KvCache, PackedLinear, StepInput


class Composed:
    """A base for backends; see engine.kernels.interface.Operations. They compute in the process's own memory, unless
    they say otherwise."""

    def place(self, tensor: Tensor) -> Tensor:
        return tensor

    def grant(self, limit: int) -> int:
        return limit

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext()

    def memory_facts(self) -> dict[str, int]:
        return {}

    def about(self) -> dict[str, Any]:
        return {}

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        token = logits.argmax(dim=1, keepdim=True)  # PyTorch takes NaN for larger than any number
        return token[:, 0], logits.gather(1, token)[:, 0]

    def draw(self, logits: Tensor, largest: Tensor, draws: Tensor) -> Tensor:
        return torch.tensor(draw_rows(logits, largest, draws), dtype=torch.int64, device=logits.device)

    def follow(self, tokens: Tensor, best: Tensor) -> Tensor:
        row = (-1 - tokens).clamp(min=0)
        said = torch.where(best[row, 2] < 0, best[row, 0], best[row, 2])
        return torch.where(tokens < 0, said, tokens)

    def gated_linear(self: Kernels, x: Tensor, w: PackedLinear, activation: Activation) -> Tensor:
        return self.gated_mul(self.linear(x, w), activation)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), dim=1)

    def pick(self, x: Tensor, rows: Tensor) -> Tensor:
        return x[rows]

    def queries(
        self: Kernels, qkv: Tensor, heads: Heads, cos: Tensor, sin: Tensor, step: StepInput, cache: KvCache
    ) -> Tensor:
        kinds = qkv.split([n * heads.dim for n in (heads.heads, heads.kv_heads, heads.kv_heads)], dim=1)
        q, k, v = (t.unflatten(1, (-1, heads.dim)) for t in kinds)  # [T, heads or kv_heads, dim]
        if heads.q_norm is not None and heads.k_norm is not None:
            q = self.rms_norm(q.reshape(-1, heads.dim), heads.q_norm, heads.eps).view(q.shape)
            k = self.rms_norm(k.reshape(-1, heads.dim), heads.k_norm, heads.eps).view(k.shape)
        turns = (torch.cat((half, half), dim=1) for half in (cos[step.positions], sin[step.positions]))
        q, k = self.rope(q, k, *turns)
        self.write_kv(k, v, cache, step.slots)
        return q.flatten(1)

    def attend(
        self: Kernels, q: Tensor, heads: Heads, cache: KvCache, step: StepInput, scale: float, window: int | None
    ) -> Tensor:
        q = q.unflatten(1, (-1, heads.dim))
        return self.paged_attention(q, cache, step.meta, scale, window).flatten(1)
