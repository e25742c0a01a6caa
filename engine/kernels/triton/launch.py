"""How kernels are launched, on a device or in the interpreter, and the shapes of their tiles.

What a tile's shape may depend on: the widths of a row, and so the weight; never, where the order of a sum would follow
it, the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from engine.kernels.triton.jit.language import INTERPRET

INTERPRETED: bool = INTERPRET.value


def run(kernel: Any, grid: Sequence[int], *arguments: Any, warps: int = 4, stages: int = 2, **constants: Any) -> None:
    """Launches ``kernel`` on ``grid`` programs; none where one of them is 0.

    Multiplications and additions are not fused behind the kernels' back: their bits are those that the source says, in
    whichever kernel an expression stands.
    """
    if 0 in grid:
        return
    if INTERPRETED:
        with np.errstate(all="ignore"):  # infinity and NaN are values here
            kernel[tuple(grid)](*arguments, **constants)
        return
    kernel[tuple(grid)](*arguments, **constants, **options(_backend(), warps, stages))


@cache  # the driver is asked once, not at every launch
def _backend() -> str:
    return str(triton.runtime.driver.active.get_current_target().backend)


@cache
def options(backend: str, warps: int, stages: int) -> dict[str, Any]:
    """What a kernel is compiled with on "cuda" or "hip". On AMD, matrix instructions come in two shapes whose steps
    along the sum differ: one of them for all tiles; and shared memory is 64 KiB: no room for more than two stages. The
    answer is not to be changed.
    """
    own = {"enable_fp_fusion": False, "num_warps": warps, "num_stages": stages}
    return own | {"matrix_instr_nonkdim": 16, "num_stages": min(stages, 2)} if backend == "hip" else own


FP8_CAPABILITY = (8, 9)  # from which on a multiprocessor multiplies e4m3 as torch.float8_e4m3fn has it


def has_fp8(device: torch.device) -> bool:
    """AMD's gfx942 multiplies another e4m3 (fnuz): codes are widened there, as on older GPUs."""
    if INTERPRETED or device.type != "cuda" or torch.version.hip is not None:
        return False
    return bool(torch.cuda.get_device_capability(device) >= FP8_CAPABILITY)


class RowTile(NamedTuple):
    rows: int
    width: int
    warps: int

    def grid(self, rows: int) -> int:
        return -(-rows // self.rows)


ROW_TILE_ELEMENTS = 65_536 if INTERPRETED else 2048  # of tiles of whole rows; an interpreted program costs milliseconds


def row_tile(width: int) -> RowTile:
    """Whole rows, for operations that add up or compare along them: memory-bound, so 16 elements or more a thread, and
    a long row by itself."""
    block = next_power(width)
    return RowTile(max(1, ROW_TILE_ELEMENTS // block), block, 8 if block > 4096 else 4)


class ProductTile(NamedTuple):
    """Of x ``rows``, of the weight ``outs``, ``depth`` bytes of a row of either at a time."""

    rows: int
    outs: int
    depth_bytes: int
    warps: int
    stages: int


# By the number of rows up to which they are used. A decode step reads each weight once and is over when they have come
# from memory: on an H100 (3.35 TB/s, some 800 ns away) 2.7 MB must be under way. An output projection of an 8B model
# (4096 x 4096) has 64 programs of 64 outputs; with 256 bytes of a row and four stages each has 64 KiB under way, 4 MiB
# in all. 64 outputs are what a warp group's instruction takes at least. A prompt is bound by arithmetic instead:
# 128 x 128 with 8 warps leaves each thread 64 accumulators, and shared memory for two programs a multiprocessor.
PRODUCT_TILES: tuple[tuple[int, ProductTile], ...] = (
    (16, ProductTile(16, 64, 256, 4, 4)),
    (64, ProductTile(64, 64, 256, 4, 3)),
    (1 << 62, ProductTile(128, 128, 128, 8, 3)),
)
INTERPRETED_TILES: tuple[tuple[int, ProductTile], ...] = (
    (4, ProductTile(16, 64, 128, 1, 1)),
    (1 << 62, ProductTile(128, 128, 128, 1, 1)),
)


def product_tile(rows: int) -> ProductTile:
    tiles = INTERPRETED_TILES if INTERPRETED else PRODUCT_TILES
    return next(tile for most, tile in tiles if rows <= most)


class AttentionTile(NamedTuple):
    """See jit/attention.py. 64 rows, a warp for each 16; 64 keys and values of 128 bf16 numbers are 32 KiB a stage.
    With chunks of 256, an 8B model's 8 KV heads make 128 programs of one request at 4,096 tokens: one a multiprocessor.
    """

    rows: int = 64
    chunk: int = 256
    keys: int = 64
    warps: int = 4
    stages: int = 2


# Ranks that a pass over a row's logits asks about, logits at a time: each thread of eight warps holds 32 float64.
DRAW_WAYS, DRAW_BLOCK = 8, 4096 if INTERPRETED else 1024
SPLIT_PROGRAMS = 512  # from so many queries times KV heads on, a device is busy without splitting; costs memory if high


def next_power(n: int, least: int = 1) -> int:
    """The least power of 2 from n on."""
    return max(least, 1 << (n - 1).bit_length())


def contiguous_rows(x: Tensor) -> Tensor:
    """[T, heads, D] whose rows are contiguous, at any distance from each other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
