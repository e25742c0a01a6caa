"""The Triton kernels behind the interface: one or two launches an operation, on the device where the tensors are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.artifact import LinearSpec
from engine.kernels.composed import Composed
from engine.kernels.draws import NOT_DRAWN
from engine.kernels.errors import UnavailableError
from engine.kernels.interface import (
    CODES,
    SCALED,
    Activation,
    AttentionMeta,
    Heads,
    KvCache,
    Model,
    PackedLinear,
    Replay,
    StepInput,
    StepSizes,
)
from engine.kernels.reference import four_bits
from engine.kernels.triton.jit import attention, heads, products, rows, sampling
from engine.kernels.triton.launch import (
    DRAW_BLOCK,
    DRAW_WAYS,
    INTERPRETED,
    SPLIT_PROGRAMS,
    AttentionTile,
    contiguous_rows,
    has_fp8,
    next_power,
    product_tile,
    row_tile,
    run,
)
from engine.kernels.triton.weights import TritonLinear, pack

NO_WINDOW = 1 << 30  # longer than any context
BEST_PART = 4096  # logits a program looks at
FOLLOW_BLOCK = 128  # tokens


class TritonKernels(Composed):
    """Implements engine.kernels.interface.Kernels, but for ``record``: it prepares nothing.

    No operation waits for the device or looks at a tensor's values, so that a step of them can be captured in a graph.
    """

    name = "triton"

    def __init__(
        self,
        dtype: torch.dtype,
        threads: int = 1,
        device: torch.device | None = None,
        tile: AttentionTile | None = None,
        split_programs: int = SPLIT_PROGRAMS,
        launch: Callable[..., None] | None = None,
        native_fp8: bool | None = None,
    ) -> None:
        """``threads``: of PyTorch, for what the host computes. ``device``: of what is allocated here; None: the current
        GPU, or in the interpreter the CPU. ``tile`` and ``split_programs``: of attention, see launch.py. ``launch``:
        what is done instead of ``launch.run``, with any device. ``native_fp8``: whether products of e4m3 codes are left
        to instructions for them; None: where there are such.

        Raises:
            UnavailableError: neither a GPU nor the interpreter is there.
        """
        if device is None:
            device = torch.device("cpu" if INTERPRETED else "cuda")
        there = device.type == "cpu" if INTERPRETED else device.type == "cuda" and torch.cuda.is_available()
        if launch is None and not there:
            raise UnavailableError(
                f"Triton's kernels need a GPU that this PyTorch ({torch.__version__}) can use, found none for device "
                f"{device}; for tests without one, set TRITON_INTERPRET=1 before triton is imported"
            )
        self.dtype, self.device, self.torch_threads = dtype, device, threads
        self._launch = launch or run
        self.tile, self.split_programs = tile or AttentionTile(), split_programs
        self.native_fp8 = has_fp8(device) if native_fp8 is None else native_fp8

    # Weights and products

    def pack_linear(self, tensors: dict[str, Tensor], spec: LinearSpec | None, bias: Tensor | None) -> TritonLinear:
        return pack(tensors, spec, bias, self.dtype, self.device)

    def linear(self, x: Tensor, w: PackedLinear) -> Tensor:
        return self._product(x, w, self.dtype, None)

    def logits(self, x: Tensor, w: PackedLinear) -> Tensor:
        return self._product(x, w, torch.float32, None)

    def gated_linear(self, x: Tensor, w: PackedLinear, activation: Activation) -> Tensor:
        return self._product(x, w, self.dtype, activation)

    def _product(self, x: Tensor, w: PackedLinear, dtype: torch.dtype, gate: Activation | None) -> Tensor:
        assert isinstance(w, TritonLinear)  # nothing else comes out of pack_linear
        x = x.contiguous()
        count, own, tile = x.shape[0], w.tensors, product_tile(x.shape[0])
        out = x.new_empty(count, w.out_features // (1 if gate is None else 2), dtype=dtype)
        grid = (-(-count // tile.rows), -(-w.out_features // tile.outs))
        shape = (count, w.out_features, w.in_features)
        constants = {
            "BIAS": w.bias is not None,
            "GATED": gate is not None,
            "GELU": gate == "gelu_tanh",
            "OUTS": tile.outs,
            "ROWS": tile.rows,
        }
        rounded = products.TYPES[self.dtype]
        how = {"warps": tile.warps, "stages": tile.stages}
        if w.scheme in {"w8a8", "w4a8"}:
            x, scales = self.quantise(x)
        elif w.scheme == "fp8":
            x, scales = self.quantise(x, torch.uint8)
        if w.scheme in {"bf16", "w8a16"}:
            constants["DEPTH"] = max(16, tile.depth_bytes // self.dtype.itemsize)
            self._launch(products.dense, grid, x, own["weight"], w.bias, out, *shape, **constants, **how)
        elif w.scheme in {"w8a8", "fp8"}:
            constants |= {"DEPTH": tile.depth_bytes, "DTYPE": rounded}
            kernel = products.int8
            if w.scheme == "fp8":
                kernel = products.fp8
                constants |= {"NATIVE": self.native_fp8}
                if not self.native_fp8:  # codes are as wide as numbers where they are multiplied
                    constants["DEPTH"] = max(16, tile.depth_bytes // self.dtype.itemsize)
            self._launch(kernel, grid, x, scales, own["weight"], own["scale"], w.bias, out, *shape, **constants, **how)
        else:
            packed = (own["codes"], own["scale"], own["zero"], w.bias, out, *shape, w.group)
            constants |= {"HALF": w.half, "PART": max(32 if w.scheme == "w4a8" else 16, w.half)}
            if w.scheme == "w4a8":
                self._launch(products.int4a8, grid, x, scales, *packed, DTYPE=rounded, **constants, **how)
            else:
                self._launch(products.int4, grid, x, *packed, **constants, **how)
        return out

    def quantise(self, x: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
        """x [T, K], contiguous -> (int8 [T, K], float32 scales [T]), as the reference's ``quantise_rows``; uint8: e4m3
        codes, as its ``quantise_rows_fp8``."""
        count, width = x.shape
        q, scales = x.new_empty(x.shape, dtype=dtype), x.new_empty(count, dtype=torch.float32)
        tile = row_tile(width)
        self._launch(
            rows.quantise_rows, (tile.grid(count),), x, q, scales, count, width,
            BLOCK_T=tile.rows, BLOCK=tile.width, warps=tile.warps,
        )  # fmt: skip
        return q, scales

    def embed(self, tokens: Tensor, w: PackedLinear, scale: float = 1.0) -> Tensor:
        found = w.tensors["weight"][tokens]
        return found if scale == 1.0 else found * torch.tensor(scale).to(self.dtype).item()

    # Rows

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._norm(x, None, weight, eps)[0]

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return self._norm(x, residual.contiguous(), weight, eps)

    def _norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        out = torch.empty_like(x)
        total = x if residual is None else torch.empty_like(x)
        tile = row_tile(x.shape[1])
        self._launch(
            rows.rms_norm, (tile.grid(x.shape[0]),), x, residual, weight, out, total, *x.shape, eps,
            ADD=residual is not None, BLOCK_T=tile.rows, BLOCK=tile.width, warps=tile.warps,
        )  # fmt: skip
        return out, total

    def gated_mul(self, gate_up: Tensor, activation: Activation) -> Tensor:
        gate_up = gate_up.contiguous()
        count, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(count, width)
        tile = row_tile(min(width, 1024))
        self._launch(
            rows.gated_mul, (tile.grid(count), -(-width // tile.width)), gate_up, out, count, width,
            GELU=activation == "gelu_tanh", BLOCK_T=tile.rows, BLOCK=tile.width, warps=tile.warps,
        )  # fmt: skip
        return out

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """float32 [W, vocab] -> (int64 [W], float32 [W]): the first of the largest and its value, NaN where a row has
        one: a greedy draw."""
        count, vocab = logits.shape
        parts = -(-vocab // BEST_PART)
        values, value = logits.new_empty(count, parts), logits.new_empty(count)
        places = logits.new_empty(count, parts, dtype=torch.int32)
        place = logits.new_empty(count, dtype=torch.int64)
        logits = logits.contiguous()
        self._launch(rows.best_of_part, (count, parts), logits, values, places, vocab, parts, BLOCK=BEST_PART)
        self._launch(
            rows.best_of_parts, (count,), values, places, value, place, parts, BLOCK=next_power(parts), warps=1,
        )  # fmt: skip
        return place, value

    def draw(self, logits: Tensor, largest: Tensor, draws: Tensor) -> Tensor:
        """See engine.kernels.interface.Kernels.draw; what the host is left to tell: jit/sampling.py."""
        count, vocab = logits.shape
        if vocab > sampling.NO_ID.value:
            return draws.new_full((count,), NOT_DRAWN)  # a rank has no room for so many tokens
        logits, largest, draws = logits.contiguous(), largest.contiguous(), draws.contiguous()
        parts = -(-vocab // BEST_PART)
        surely, perhaps, tokens = (draws.new_empty(count) for _ in range(3))
        firsts, seconds = (logits.new_empty(count, parts, dtype=torch.float64) for _ in range(2))
        places = logits.new_empty(count, parts, dtype=torch.int32)
        rows_of = (logits, largest, draws)
        self._launch(
            sampling.limits, (count,), *rows_of, surely, perhaps, vocab, WAYS=DRAW_WAYS, BLOCK=DRAW_BLOCK, warps=8
        )  # fmt: skip
        self._launch(
            sampling.race_of_part, (count, parts), *rows_of, perhaps, firsts, seconds, places, vocab, parts,
            BLOCK=BEST_PART, warps=8,
        )  # fmt: skip
        self._launch(
            sampling.race_of_parts, (count,), *rows_of, surely, firsts, seconds, places, tokens, vocab, parts,
            BLOCK=next_power(parts), warps=1,
        )  # fmt: skip
        return tokens

    def follow(self, tokens: Tensor, best: Tensor) -> Tensor:
        best, out = best.contiguous(), torch.empty_like(tokens)
        count, block = len(tokens), FOLLOW_BLOCK
        self._launch(rows.follow, (-(-count // block),), tokens, best, out, count, BLOCK=block, warps=1)
        return out

    # Attention

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.contiguous(), sin.contiguous()

        def turned(x: Tensor) -> Tensor:
            x = contiguous_rows(x)
            count, own_heads, dim = x.shape
            out, tile = x.new_empty(x.shape), row_tile(dim)
            self._launch(
                heads.rope, (tile.grid(count), own_heads), x, out, cos, sin, count, own_heads, dim, x.stride(0),
                BLOCK_T=tile.rows, BLOCK_D=tile.width, warps=tile.warps,
            )  # fmt: skip
            return out

        return turned(q), turned(k)

    def queries(self, qkv: Tensor, about: Heads, cos: Tensor, sin: Tensor, step: StepInput, cache: KvCache) -> Tensor:
        qkv = qkv.contiguous()
        count = qkv.shape[0]
        out, tile = qkv.new_empty(count, about.heads * about.dim), row_tile(about.dim)
        self._launch(
            heads.queries, (tile.grid(count), about.heads + 2 * about.kv_heads),
            qkv, out, cache.k, cache.v, cache.k_scale, cache.v_scale, cos, sin, step.positions, step.slots,
            about.q_norm, about.k_norm, count, about.heads, about.kv_heads, about.dim, about.eps, *_strides(cache),
            NORM=about.q_norm is not None, QUANTISED=cache.k_scale is not None,
            BLOCK_T=tile.rows, BLOCK_D=tile.width, warps=tile.warps,
        )  # fmt: skip
        return out

    def new_kv_cache(self, blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KvCache:
        """A head's tokens of a block are neighbours in memory."""
        shape, stored = (blocks, kv_heads, block_size, head_dim), CODES.get(dtype, dtype)
        if dtype == torch.uint4:
            return self._four_bits(shape)
        k, v = (torch.zeros(shape, dtype=stored, device=self.device).transpose(1, 2) for _ in range(2))
        if stored not in SCALED:
            return KvCache(k, v)
        k_scale, v_scale = (torch.zeros(shape[:3], device=self.device).transpose(1, 2) for _ in range(2))
        return KvCache(k, v, k_scale, v_scale)

    def _four_bits(self, shape: tuple[int, int, int, int]) -> KvCache:
        about = [four_bits.scale_shape(shape[3], group) for group in (four_bits.KEY_GROUP, four_bits.VALUE_GROUP)]
        k, v = (torch.zeros(*shape[:3], shape[3] // 2, dtype=torch.uint8, device=self.device) for _ in range(2))
        scales = (torch.zeros(*shape[:3], *own, dtype=torch.bfloat16, device=self.device) for own in about)
        return KvCache(*(tensor.transpose(1, 2) for tensor in (k, v, *scales)))

    def write_kv(self, k: Tensor, v: Tensor, cache: KvCache, slots: Tensor) -> None:
        k, v = contiguous_rows(k), contiguous_rows(v)
        count, kv_heads, dim = k.shape
        tile = row_tile(dim)
        self._launch(
            heads.write_kv, (tile.grid(count), kv_heads), k, v, cache.k, cache.v, cache.k_scale, cache.v_scale,
            slots, count, kv_heads, dim, k.stride(0), v.stride(0), *_strides(cache),
            QUANTISED=cache.k_scale is not None, BLOCK_T=tile.rows, BLOCK_D=tile.width, warps=tile.warps,
        )  # fmt: skip

    def paged_attention(
        self, q: Tensor, cache: KvCache, meta: AttentionMeta, scale: float, window: int | None = None
    ) -> Tensor:
        q = q.contiguous()
        out = torch.empty_like(q)
        if not len(q):
            return out
        tokens, own_heads, dim = q.shape
        kv_heads, requests, tile = cache.k.shape[2], len(meta.context_lens), self.tile
        group = own_heads // kv_heads
        tile_rows = max(tile.rows, next_power(group))  # a token's heads stay together
        tiles = tokens // (tile_rows // group) + requests
        chunks = -(-meta.block_tables.shape[1] * cache.block_size // tile.chunk)
        split = chunks > 1 and tokens * kv_heads <= self.split_programs
        sizes = (chunks, tokens, own_heads) if split else (0, 0, 0)
        part_acc = q.new_empty(*sizes, dim, dtype=torch.float32)
        part_highest, part_total = (q.new_empty(sizes, dtype=torch.float32) for _ in range(2))
        seen = NO_WINDOW if window is None else window
        constants = {"GROUP": group, "ROWS": tile_rows, "CHUNK": tile.chunk, "BLOCK_D": next_power(dim, 16)}
        where = (meta.query_starts, meta.context_lens)
        self._launch(
            attention.attend, (tiles, kv_heads, chunks if split else 1),
            q, out, part_acc, part_highest, part_total, cache.k, cache.v, cache.k_scale, cache.v_scale,
            *where, meta.block_tables, requests, meta.block_tables.stride(0), tokens, own_heads, dim,
            scale * math.log2(math.e), seen, *_strides(cache),
            SPLIT=split, QUANTISED=cache.k_scale is not None, KEYS=tile.keys, **constants,
            warps=tile.warps, stages=tile.stages,
        )  # fmt: skip
        if split:
            self._launch(
                attention.reduce, (tiles, kv_heads), out, part_acc, part_highest, part_total, *where,
                requests, tokens, own_heads, dim, seen, **constants, warps=tile.warps,
            )  # fmt: skip
        return out

    # What only other backends have

    def pin_threads(self, on: bool) -> None:
        if on:
            raise UnavailableError("pin_threads: the kernels run on a device, not on threads; set it to false")

    def record(self, model: Model, caches: Sequence[KvCache], largest: StepSizes) -> Replay | None:
        return None


def _strides(cache: KvCache) -> tuple[int, ...]:
    """Block size, then the strides of block, token and head in keys and values, and in the scales: in those of 4 bits,
    which keys and values have different numbers of, counted in a token's for a head."""
    scales = (0, 0, 0) if cache.k_scale is None else cache.k_scale.stride()[:3]
    entry = 1 if cache.k_scale is None else math.prod(cache.k_scale.shape[3:])
    return (cache.block_size, *cache.k.stride()[:3], *(stride // entry for stride in scales))
