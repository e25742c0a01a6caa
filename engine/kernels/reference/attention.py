"""Causal attention over a paged cache, one query row at a time.

Softmax is accumulated over chunks of ``CHUNK`` keys that start at absolute multiples (Milakov and Gimelshein 2018,
"Online normalizer calculation for softmax"). A row runs the same operations on the same shapes whatever else is in the
batch: that, not speed, is what this file is for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.interface import AttentionMeta, KvCache
from engine.kernels.reference import four_bits

CHUNK = 64


def paged_attention(q: Tensor, cache: KvCache, meta: AttentionMeta, scale: float, window: int | None) -> Tensor:
    """q [T, heads, D] -> [T, heads, D] in q's dtype."""
    out = torch.empty_like(q)
    starts, lengths = meta.query_starts.tolist(), meta.context_lens.tolist()
    for r, length in enumerate(lengths):
        keys = _gather(cache.k, cache.k_scale, four_bits.KEY_GROUP, meta.block_tables[r], length)
        values = _gather(cache.v, cache.v_scale, four_bits.VALUE_GROUP, meta.block_tables[r], length)
        for row in range(starts[r], starts[r + 1]):
            position = length - (starts[r + 1] - row)
            first = 0 if window is None else max(0, position - window + 1)
            out[row] = _attend(q[row].float() * scale, keys, values, first, position)
    return out


def _gather(stored: Tensor, scale: Tensor | None, group: int, table: Tensor, length: int) -> Tensor:
    """float32 [chunks, kv_heads, CHUNK, D], contiguous, zero beyond ``length``. ``group``: of codes of 4 bits."""
    block_size = stored.shape[1]
    blocks = table[: -(-length // block_size)].long()
    chunks = -(-length // CHUNK)
    held = _widen(stored[blocks], None if scale is None else scale[blocks], group).flatten(0, 1)[:length]
    flat = held.new_zeros(chunks * CHUNK, *held.shape[1:])
    flat[:length] = held
    return flat.view(chunks, CHUNK, *held.shape[1:]).transpose(1, 2).contiguous()


def _widen(held: Tensor, scale: Tensor | None, group: int) -> Tensor:
    """What is stored, as float32."""
    if scale is None:
        return held.float()
    if scale.dim() > held.dim():
        return four_bits.dequantise(held, scale, group)
    return (held.view(torch.float8_e4m3fn) if held.dtype == torch.uint8 else held).float() * scale[..., None]


def _attend(q: Tensor, keys: Tensor, values: Tensor, first: int, position: int) -> Tensor:
    """One row: q float32 [heads, D], scaled, at ``position``, which sees positions from ``first`` on -> [heads, D]."""
    heads, dim = q.shape
    kv_heads = keys.shape[1]
    grouped = q.view(kv_heads, heads // kv_heads, dim).contiguous()
    highest = torch.full((kv_heads, heads // kv_heads, 1), -torch.inf)
    total = torch.zeros_like(highest)
    acc = torch.zeros_like(grouped)
    offsets = torch.arange(CHUNK)
    for c in range(first // CHUNK, position // CHUNK + 1):
        seen = (offsets + c * CHUNK >= first) & (offsets + c * CHUNK <= position)
        scores = grouped @ keys[c].transpose(1, 2)  # [kv_heads, group, CHUNK]
        scores = scores.masked_fill(~seen, -torch.inf)
        new = torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights = (scores - new).exp()
        shrink = (highest - new).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        acc = acc * shrink + weights @ values[c].where(seen[:, None], torch.zeros(()))  # 0 x NaN is not 0
        highest = new
    return (acc / total).view(heads, dim)
