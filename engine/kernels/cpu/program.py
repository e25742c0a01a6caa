"""A model's step as a list of operations that csrc/step.c runs in one call.

    Model.run --(Recorder: once, with stand-ins for tensors)--> Recorded operations
        --(_quantise: 8-bit rows where products want them; _place: buffers to offsets)--> Program: Op structs

The list says nothing of how many rows a step has. Two operations that are one for C are found while they are recorded:
int8 rows of a norm's result are made where the norm is, other ones once for all their readers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.kernels.cpu.library import Library, pointer
from engine.kernels.cpu.pages import Reused, zeros
from engine.kernels.cpu.products import GATES, CpuLinear
from engine.kernels.interface import (
    Activation,
    Heads,
    KvCache,
    Model,
    PackedLinear,
    StepInput,
    StepOutput,
)

# As in csrc/cache.h; uint8: codes of 4 bits.
KV_KINDS, NO_WINDOW = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 3}, 0
# As in csrc/step.c.
KINDS = [
    "embed",
    "norm",
    "quantise",
    "product",
    "product_int",
    "gated_mul",
    "queries",
    "attend",
    "join",
    "pick",
    "best",
]
NONE, HIDDEN, LOGITS = -1, -2, -3
INS, OUTS = 2, 4
ALIGNMENT = 64  # of a buffer's bytes a row, and so of every buffer


class CKvPointers(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v", "k_scale", "v_scale")),
        ("kind", ctypes.c_long),
        ("block_size", ctypes.c_long),
    )


class COp(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "layer", "picked", "activation")),
        ("ins", ctypes.c_int64 * INS),
        ("outs", ctypes.c_int64 * OUTS),
        ("linear", ctypes.c_void_p),
        ("weights", ctypes.c_void_p * 2),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("cache", CKvPointers),
        *((name, ctypes.c_int64) for name in ("width", "stride", "column", "heads", "kv_heads", "dim", "window")),
        ("number", ctypes.c_float),
    )


class CProgram(ctypes.Structure):
    _fields_ = (
        ("ops", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("memory", ctypes.c_void_p),
        ("seconds", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("bf16", "dot", "threads")),
    )


class CInputs(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("tokens", "positions", "slots", "starts", "lengths", "tables", "wanted")),
        *((n, ctypes.c_int64) for n in ("rows", "requests", "max_blocks", "num_wanted")),
        *((n, ctypes.c_void_p) for n in ("hidden", "logits", "best", "best_values")),
    )


@dataclass(eq=False)
class Buffer:
    """A stand-in's memory: so many bytes a row, or at a fixed place outside the working memory (HIDDEN, LOGITS)."""

    row_bytes: int
    place: int | None = None


@dataclass(eq=False)
class Recorded:
    kind: str
    layer: int
    picked: bool  # its rows are the wanted ones, not all of the step
    ins: list[Buffer]
    outs: list[Buffer | None]
    arguments: dict[str, Any] = field(default_factory=dict)  # of COp

    def out(self, at: int, buffer: Buffer) -> None:
        self.outs += [None] * (at + 1 - len(self.outs))
        self.outs[at] = buffer


class Recorder:
    """Implements engine.kernels.interface.Operations: notes what is asked for, computes nothing.

    A tensor on the `meta` device, of one row, stands for each buffer.
    """

    def __init__(self, dtype: torch.dtype, step: StepInput, caches: Sequence[KvCache]) -> None:
        self.dtype, self.step, self.ops = dtype, step, list[Recorded]()
        self._layer_of = {id(cache): i for i, cache in enumerate(caches)}
        self._layer, self._picked = -1, False
        self._buffers: dict[int, tuple[Tensor, Buffer]] = {}  # by the tensor's id; the tensor, so that it keeps it

    def stand_in(self, width: int, dtype: torch.dtype | None = None) -> Tensor:
        tensor = torch.empty(1, width, dtype=dtype or self.dtype, device="meta")
        self._buffers[id(tensor)] = tensor, Buffer(width * tensor.element_size())
        return tensor

    def buffer(self, tensor: Tensor) -> Buffer:
        if id(tensor) not in self._buffers:
            raise ValueError("a tensor that no operation has made: a model only hands on what operations give it")
        return self._buffers[id(tensor)][1]

    def _add(self, kind: str, ins: Sequence[Tensor], *outs: Tensor | None, **arguments: Any) -> Recorded:
        own = [None if t is None else self.buffer(t) for t in outs]
        op = Recorded(kind, self._layer, self._picked, [self.buffer(t) for t in ins], own, arguments)
        self.ops.append(op)
        return op

    def embed(self, tokens: Tensor, w: PackedLinear, scale: float = 1.0) -> Tensor:
        if tokens is not self.step.tokens:
            raise ValueError("only the tokens of the step can be embedded")
        out = self.stand_in(w.in_features)
        self._add("embed", [], out, linear=w, number=float(torch.tensor(scale).to(self.dtype)))
        return out

    def linear(self, x: Tensor, w: PackedLinear) -> Tensor:
        return self._product(x, w, self.stand_in(w.out_features), None)

    def gated_linear(self, x: Tensor, w: PackedLinear, activation: Activation) -> Tensor:
        return self._product(x, w, self.stand_in(w.out_features // 2), activation)

    def logits(self, x: Tensor, w: PackedLinear) -> Tensor:
        self._layer = -1
        return self._product(x, w, self.stand_in(w.out_features, torch.float32), None)

    def _product(self, x: Tensor, w: PackedLinear, out: Tensor, activation: Activation | None) -> Tensor:
        assert isinstance(w, CpuLinear)  # nothing else comes out of this backend's pack_linear
        kind = "product_int" if w.integer else "product"  # int8 rows of x are made by _quantise
        self._add(kind, [x], out, linear=w, activation=GATES[activation])
        return out

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        widths = [part.shape[1] for part in parts]
        out = self.stand_in(sum(widths))
        for i, part in enumerate(parts):
            self._add("join", [part], out, width=widths[i], stride=sum(widths), column=sum(widths[:i]))
        return out

    def pick(self, x: Tensor, rows: Tensor) -> Tensor:
        if rows is not self.step.wanted:
            raise ValueError("only the wanted rows of the step can be picked")
        self._picked = True
        out = self.stand_in(x.shape[1])
        self._add("pick", [x], out, width=x.shape[1])
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = self.stand_in(x.shape[1])
        self._add("norm", [x], out, width=x.shape[1], weights=[weight], number=eps)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        out, total = self.stand_in(x.shape[1]), self.stand_in(x.shape[1])
        self._add("norm", [x, residual], out, total, width=x.shape[1], weights=[weight], number=eps)
        return out, total

    def queries(self, qkv: Tensor, heads: Heads, cos: Tensor, sin: Tensor, step: StepInput, cache: KvCache) -> Tensor:
        self._layer = self._layer_of[id(cache)]
        for op in reversed(self.ops):  # the product before it is of this layer, too
            if op.kind == "norm":
                break
            op.layer = self._layer
        q = self.stand_in(heads.heads * heads.dim)
        norms = [] if heads.q_norm is None else [heads.q_norm, heads.k_norm]
        self._add("queries", [qkv], q, weights=norms, number=heads.eps, cos=cos, sin=sin, heads=heads, cache=cache)
        return q

    def attend(
        self, q: Tensor, heads: Heads, cache: KvCache, step: StepInput, scale: float, window: int | None
    ) -> Tensor:
        out = self.stand_in(q.shape[1])
        self._add("attend", [q], out, heads=heads, cache=cache, number=scale, window=window or NO_WINDOW)
        return out

    def gated_mul(self, gate_up: Tensor, activation: Activation) -> Tensor:
        out = self.stand_in(gate_up.shape[1] // 2)
        self._add("gated_mul", [gate_up], out, width=gate_up.shape[1] // 2, activation=GATES[activation])
        return out

    def best(self, logits: Tensor) -> None:
        self._add("best", [logits], width=logits.shape[1])

    def put(self, tensor: Tensor, place: int) -> None:
        """Its buffer lies outside the working memory."""
        self.buffer(tensor).place = place


def _quantise(ops: list[Recorded]) -> list[Recorded]:
    """With int8 rows and scales for the products that read them: made by the norm whose result they are, or else by an
    operation of their own before the first reader."""
    made: dict[Buffer, list[Buffer]] = {}
    writers = {op.outs[0]: op for op in ops if op.outs}
    done: list[Recorded] = []
    for op in ops:
        if op.kind == "product_int":
            x, k = op.ins[0], op.arguments["linear"].in_features
            if x not in made:
                made[x] = [Buffer(k), Buffer(4)]
                maker = writers[x]
                if maker.kind != "norm" or maker.picked != op.picked:
                    maker = Recorded("quantise", op.layer, op.picked, [x], [], {"width": k})
                    done.append(maker)
                for i, buffer in enumerate(made[x]):
                    maker.out(2 + i, buffer)
            op.ins = made[x]
        done.append(op)
    return done


def _place(ops: list[Recorded]) -> int:
    """Gives every buffer an offset, in bytes a row, such that no two that are needed at once overlap. Returns where
    the highest one ends."""
    last: dict[Buffer, int] = {}  # the last operation that needs it
    for i, op in enumerate(ops):
        for buffer in (*op.ins, *op.outs):
            if buffer is not None:
                last[buffer] = i
    held: list[Buffer] = []
    highest = 0
    for i, op in enumerate(ops):
        if op.kind == "norm":  # which works in place: what it is given becomes what it gives
            for old, new in zip(op.ins, op.outs, strict=False):
                if new is not None and new.place is None and last[old] == i and old.row_bytes == new.row_bytes:
                    new.place = old.place
                    held.append(new)
        for buffer in op.outs:
            if buffer is None or buffer.place is not None:
                continue
            size = -(-buffer.row_bytes // ALIGNMENT) * ALIGNMENT
            at = 0
            for other in sorted(held, key=_start):
                if _start(other) - at >= size:
                    break
                at = max(at, _start(other) + -(-other.row_bytes // ALIGNMENT) * ALIGNMENT)
            buffer.place = at
            highest = max(highest, at + size)
            held.append(buffer)
        held = [b for b in held if last[b] > i]
    return highest


def _start(buffer: Buffer) -> int:
    assert buffer.place is not None  # held ones have their place
    return buffer.place


def _struct(op: Recorded) -> COp:
    given = dict(op.arguments)
    c = COp(KINDS.index(op.kind), op.layer, op.picked, given.pop("activation", GATES[None]))
    for places, buffers in ((c.ins, op.ins), (c.outs, op.outs)):
        for i in range(len(places)):
            buffer = buffers[i] if i < len(buffers) else None
            places[i] = NONE if buffer is None else _start(buffer)
    if (linear := given.pop("linear", None)) is not None:
        c.linear = ctypes.addressof(linear.c)
    for i, weight in enumerate(given.pop("weights", [])):
        c.weights[i] = pointer(weight)
    if (cache := given.pop("cache", None)) is not None:
        tensors = map(pointer, (cache.k, cache.v, cache.k_scale, cache.v_scale))
        c.cache = CKvPointers(*tensors, KV_KINDS[cache.k.dtype], cache.block_size)
    if (heads := given.pop("heads", None)) is not None:
        c.heads, c.kv_heads, c.dim = heads.heads, heads.kv_heads, heads.dim
    for name in {"cos", "sin"} & given.keys():
        given[name] = pointer(given[name])
    for name, value in given.items():
        setattr(c, name, value)
    return c


class Program:
    """Implements engine.kernels.interface.Replay. Owns the working memory of the steps; ``kept`` is all that the
    operations point to."""

    def __init__(
        self,
        library: Library,
        ops: list[Recorded],
        row_bytes: int,
        dtype: torch.dtype,
        threads: int,
        dot: bool,
        kept: Any,
    ) -> None:
        self.draws = False  # csrc knows the largest logit only
        self.row_bytes, self._kept, self._dtype = row_bytes, kept, dtype
        self._run = library.run_program
        self._kinds = [(op.kind, None if op.layer < 0 else op.layer) for op in ops]
        self._ops = (COp * len(ops))(*map(_struct, ops))
        widths = {b.place: b.row_bytes for op in ops for b in op.outs if b is not None}
        self._hidden, self._vocab = widths[HIDDEN] // dtype.itemsize, widths[LOGITS] // 4
        self._memory, self._logits = torch.empty(0, dtype=torch.uint8), Reused()
        self._seconds: Any = None
        bf16 = dtype == torch.bfloat16
        self._c = CProgram(ctypes.addressof(self._ops), len(ops), None, None, bf16, dot, threads)
        self._inputs = CInputs()

    def reserve(self, rows: int) -> None:
        """Working memory for steps of so many rows."""
        need = rows * self.row_bytes + ALIGNMENT
        if need > len(self._memory):
            self._memory = zeros((need,), torch.uint8)
            start = self._memory.data_ptr()
            self._c.memory = start + -start % ALIGNMENT

    def __call__(self, step: StepInput, with_logits: bool) -> StepOutput:
        """
        Raises:
            MemoryError: a kernel got no memory for its buffers.
        """
        rows, wanted, meta = len(step.tokens), len(step.wanted), step.meta
        self.reserve(rows)
        with_logits = with_logits and wanted > 0
        hidden = torch.empty(wanted, self._hidden, dtype=self._dtype)
        logits = self._logits.empty(wanted, self._vocab) if with_logits else None
        best, values = (ctypes.c_int64 * wanted)(), (ctypes.c_float * wanted)()
        requests, max_blocks = meta.block_tables.shape
        inputs = CInputs(
            *map(pointer, (step.tokens, step.positions, step.slots)),
            *map(pointer, (meta.query_starts, meta.context_lens, meta.block_tables, step.wanted)),
            *(rows, requests, max_blocks, wanted),
            pointer(hidden),
            pointer(logits),
            ctypes.addressof(best),
            ctypes.addressof(values),
        )
        failed = self._run(ctypes.addressof(self._c), ctypes.addressof(inputs))
        if failed:
            kind, layer = self._kinds[failed - 1]
            raise MemoryError(f"no memory for the buffers of {kind} in layer {layer}, a step of {rows} rows")
        return StepOutput(hidden, logits, list(zip(best, values, strict=True)) if with_logits else None)

    def profile(self, on: bool) -> list[tuple[str, int | None, float]]:
        found = [] if self._seconds is None else list(self._seconds)
        self._seconds = (ctypes.c_double * len(self._ops))() if on else None
        self._c.seconds = ctypes.addressof(self._seconds) if on else None
        return [(*self._kinds[i], seconds) for i, seconds in enumerate(found)]


def record(
    library: Library, dtype: torch.dtype, threads: int, model: Model, caches: Sequence[KvCache], rows: int
) -> Program:
    """The model's step on these caches, with working memory for ``rows`` rows."""
    none = torch.empty(0, device="meta")
    step = StepInput(none.clone(), none, none, None, none.clone())  # type: ignore[arg-type]  # nobody looks into it
    recorder = Recorder(dtype, step, caches)
    hidden = model.run(recorder, step, caches)
    recorder.put(hidden, HIDDEN)
    logits = recorder.logits(hidden, model.head)
    recorder.put(logits, LOGITS)
    recorder.best(logits)
    ops = _quantise(recorder.ops)
    row_bytes = _place(ops)
    dot = bool(dtype == torch.bfloat16 and library.products_have_dot())
    program = Program(library, ops, row_bytes, dtype, threads, dot, (ops, model, caches))
    program.reserve(rows)
    return program
