"""Dense products whose rows do not depend on each other's presence.

A library product picks its blocking by the number of rows, and with it the order of additions: MKL's float32 results
change between 1, 3 and 12 rows, oneDNN's bf16 ones between 1 and 2, there so seldom (a few elements in a million, once
they are rounded) that trying does not find it. So rows always go through the library in tiles of a fixed size, padded
with zeros, in a buffer of the same alignment: the call is the same whatever the batch. What is tried is only that a
row's place in the tile does not matter; a tile of one row is right by construction and the last resort.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

PROBE_ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100)
TILES = (32, 16, 8)


def tiled_linear(x: Tensor, weight: Tensor, tile: int) -> Tensor:
    """x [T, K] @ weight [N, K].T -> [T, N] in tiles of ``tile`` rows."""
    rows = x.shape[0]
    out = x.new_empty(rows, weight.shape[0])
    buffer = x.new_zeros(tile, x.shape[1])
    for start in range(0, rows, tile):
        n = min(tile, rows - start)
        buffer[:n] = x[start : start + n]
        out[start : start + n] = F.linear(buffer, weight)[:n]
    return out


def fused_multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c of float32 tensors, rounded once.

    The product is exact in float64. Its sum with c is rounded to odd there: towards the neighbour whose last bit is 1
    where it is not exact, which the second rounding, to 29 bits fewer, cannot tell from the true sum (Boldo and
    Melquiond 2008, "Emulation of FMA and correctly rounded sums").
    """
    product, wide = a.double() * b.double(), c.double()
    total = product + wide
    seen = total - product
    lost = (product - (total - seen)) + (wide - seen)  # exact (Knuth's two-sum); NaN where something is not finite
    beyond = torch.nextafter(total, torch.where(lost > 0, torch.inf, -torch.inf).double())
    even = (total.view(torch.int64) & 1) == 0
    return torch.where((lost.abs() > 0) & even, beyond, total).float()


@cache
def row_tile(k: int, n: int, dtype: torch.dtype, threads: int) -> int:
    """The tile to use for products with a weight [n, k] on this machine with so many threads."""
    g = torch.Generator().manual_seed(0)
    n_probe = min(n, 4096)  # a head of 50,000 rows of weights is blocked the same way, and would take seconds
    weight = torch.randn(n_probe, k, generator=g).to(dtype)
    x = torch.randn(max(PROBE_ROWS), k, generator=g).to(dtype)
    return next((tile for tile in TILES if _invariant(x, weight, tile)), 1)


def _invariant(x: Tensor, weight: Tensor, tile: int) -> bool:
    """Whether rows keep their bits for other row counts (from the front and from the back) and other places."""
    full = tiled_linear(x, weight, tile)
    back = torch.arange(x.shape[0] - 1, -1, -1)
    if not torch.equal(tiled_linear(x[back], weight, tile)[back], full):
        return False
    return all(
        torch.equal(tiled_linear(x[:m], weight, tile), full[:m])
        and torch.equal(tiled_linear(x[-m:], weight, tile), full[-m:])
        for m in PROBE_ROWS
    )
