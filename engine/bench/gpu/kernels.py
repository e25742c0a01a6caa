"""Each kernel's bytes and operations a second on a model's shapes, beside ceilings of the same minute.

Weights and keys are read from memory and not from a cache: as many copies of them take turns as fill BEYOND_CACHE
bytes. Bytes are those that the work needs at least (weights, scales, keys, values, inputs, outputs), whatever the
kernel moves; operations are two for each multiplication with its addition, of causal attention only those that count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from engine.bench.gpu.clock import Ceilings, Clock
from engine.bench.gpu.models import SHAPES, SPECS, linears_of, random_tensors
from engine.kernels.cuda.graphs import Work
from engine.kernels.draws import row_of
from engine.kernels.interface import AttentionMeta, Heads, Kernels, KvCache, StepInput
from engine.request import SamplingParams

BEYOND_CACHE, MOST_COPIES = 2**28, 64
BATCHES, CONTEXTS, PROMPT, BLOCK = (1, 2, 4, 8), (1024, 4096), 2048, 16
DRAWS: dict[str, dict[str, Any]] = {"": {}, "top_k": {"top_k": 50}, "top_p": {"top_p": 0.95}}
PROMPT_SCHEMES = ("bf16", "w8a8", "w4a16", "fp8")


@dataclass(frozen=True)
class Row:
    """``share``: of the ceiling that bounds the work, ``bound`` by name; None where that was not measured."""

    model: str
    operation: str
    scheme: str
    rows: int
    context: int | None
    microseconds: float
    gb_per_s: float
    tflops: float
    bound: str
    share: float | None


@dataclass(frozen=True)
class Case:
    """``works``: the same work on as many copies of its data. ``integer``: in 8 bits on both sides; ``fp8``: in
    e4m3 on both."""

    operation: str
    scheme: str
    rows: int
    context: int | None
    works: list[Work]
    nbytes: int
    operations: int
    integer: bool = False
    fp8: bool = False


class Cases:
    """The work of one shape; toy sizes are for trying the benchmark itself."""

    def __init__(self, kernels: Kernels, device: torch.device, model: str, toy: bool = False) -> None:
        self.kernels, self.device, self.model, self.toy = kernels, device, model, toy
        self.config = SHAPES[model]
        self.batches: tuple[int, ...] = (1,) if toy else BATCHES
        self.contexts: tuple[int, ...] = (40,) if toy else CONTEXTS
        self.prompt = 24 if toy else PROMPT
        dim = self.config["head_dim"]
        self.heads = Heads(self.config["num_attention_heads"], self.config["num_key_value_heads"], dim)

    def copies(self, nbytes: int) -> int:
        return 1 if self.toy else max(1, min(MOST_COPIES, -(-BEYOND_CACHE // nbytes)))

    def x(self, rows: int, width: int) -> Tensor:
        return torch.randn(rows, width, device=self.device, dtype=torch.float32).to(self.kernels.dtype)

    def products(self) -> Iterator[Case]:
        """Each scheme's four products of a layer as one piece of work, at the batches of decoding and for a prompt."""
        for scheme in SPECS:
            for name, (n, k) in linears_of(self.config).items():
                stored = random_tensors(n, k, scheme, self.device, len(name))
                turns = [self.kernels.pack_linear(stored, SPECS[scheme], None)]
                w = turns[0]
                for _ in range(self.copies(w.nbytes) - 1):
                    own = {key: t.clone() for key, t in stored.items()}
                    turns.append(self.kernels.pack_linear(own, SPECS[scheme], None))
                prompts = [self.prompt] if scheme in PROMPT_SCHEMES else []
                for rows in (*self.batches, *prompts):
                    x = self.x(rows, w.in_features)
                    moved = x.element_size() * rows * (w.in_features + w.out_features)
                    yield Case(
                        name,
                        scheme,
                        rows,
                        None,
                        [_call(self.kernels.linear, x, t) for t in turns],
                        w.nbytes + moved,
                        2 * rows * w.in_features * w.out_features,
                        scheme in {"w8a8", "w4a8"},
                        scheme == "fp8",
                    )

    def attention(self) -> Iterator[Case]:
        """Of one layer: a token of each request after its context; a prompt by itself."""
        about, scale = self.heads, self.heads.dim**-0.5
        width, size = about.heads * about.dim, self.kernels.dtype.itemsize

        def work(step: StepInput, cache: KvCache, rows: int) -> Work:
            q = self.x(rows, width)
            return lambda: self.kernels.attend(q, about, cache, step, scale, None)

        for context in self.contexts:
            per_token = 2 * about.kv_heads * about.dim * size
            for batch in self.batches:
                blocks = batch * -(-context // BLOCK)
                copies = self.copies(batch * context * per_token)
                yield Case(
                    "attention",
                    "decode",
                    batch,
                    context,
                    [work(self.step(batch, 1, context), self.cache(blocks), batch) for _ in range(copies)],
                    batch * (context * per_token + 2 * width * size),
                    4 * batch * context * width,
                )
        prompt = self.prompt
        step, cache = self.step(1, prompt, prompt), self.cache(-(-prompt // BLOCK))
        moved = prompt * (2 * width + 2 * about.kv_heads * about.dim) * size
        operations = 4 * width * prompt * (prompt + 1) // 2
        yield Case("attention", "prompt", prompt, prompt, [work(step, cache, prompt)] * 2, moved, operations)

    def others(self) -> Iterator[Case]:
        """Rows in, rows out; in the batch of decoding they take no longer than their launch."""
        kernels, hidden, inner = self.kernels, self.config["hidden_size"], self.config["intermediate_size"]
        about, size, rows = self.heads, kernels.dtype.itemsize, self.prompt
        weight = torch.ones(hidden, device=self.device)
        copies = range(self.copies(2 * rows * hidden * size))
        xs = [self.x(rows, hidden) for _ in copies]
        yield Case(
            "rms_norm",
            "",
            rows,
            None,
            [_call(kernels.rms_norm, x, weight, 1e-5) for x in xs],
            2 * rows * hidden * size,
            0,
        )
        yield Case(
            "add_rms_norm",
            "",
            rows,
            None,
            [_call(kernels.add_rms_norm, x, xs[0], weight, 1e-5) for x in xs],
            4 * rows * hidden * size,
            0,
        )
        gates = [self.x(rows, 2 * inner) for _ in range(self.copies(3 * rows * inner * size))]
        works = [_call(kernels.gated_mul, x, "silu") for x in gates]
        yield Case("gated_mul", "", rows, None, works, 3 * rows * inner * size, 0)
        step, cache = self.step(1, rows, rows), self.cache(-(-rows // BLOCK))
        cos, sin = (torch.rand(rows, about.dim // 2, device=self.device) for _ in range(2))
        fused = (about.heads + 2 * about.kv_heads) * about.dim
        qkvs = [self.x(rows, fused) for _ in range(self.copies(2 * rows * fused * size))]
        works = [_call(kernels.queries, qkv, about, cos, sin, step, cache) for qkv in qkvs]
        yield Case("queries and KV write", "", rows, None, works, 2 * rows * fused * size, 0)
        vocab = self.config["vocab_size"]
        logits = [torch.randn(8, vocab, device=self.device) for _ in range(self.copies(8 * vocab * 4))]
        yield Case("best", "", 8, None, [_call(kernels.best, row) for row in logits], 8 * vocab * 4, 0)
        largest = [row.amax(dim=1) for row in logits]
        for name, filters in DRAWS.items():
            params = SamplingParams(max_tokens=1, temperature=0.8, **filters)
            how = torch.tensor([row_of(params, seed, 9) for seed in range(8)], device=self.device)
            works = [_call(kernels.draw, row, top, how) for row, top in zip(logits, largest, strict=True)]
            yield Case("draw", name, 8, None, works, 8 * vocab * 4, 0)

    def step(self, requests: int, tokens: int, context: int) -> StepInput:
        """``tokens`` of each request, the last ones of ``context``; no two requests share a block."""
        width = -(-context // BLOCK)
        positions = torch.arange(context - tokens, context)
        blocks = torch.arange(requests * width).view(requests, width)
        slots = (blocks[:, positions // BLOCK] * BLOCK + positions % BLOCK).flatten()
        rows = requests * tokens

        def there(tensor: Tensor, dtype: torch.dtype) -> Tensor:
            return tensor.to(self.device, dtype)

        meta = AttentionMeta(
            there(torch.arange(requests + 1) * tokens, torch.int32),
            there(torch.full((requests,), context), torch.int32),
            there(blocks, torch.int32),
        )
        return StepInput(
            there(torch.zeros(rows), torch.int64),
            there(positions.repeat(requests), torch.int64),
            there(slots, torch.int64),
            meta,
            there(torch.arange(rows), torch.int64),
        )

    def cache(self, blocks: int) -> KvCache:
        about = self.heads
        cache = self.kernels.new_kv_cache(blocks, BLOCK, about.kv_heads, about.dim, self.kernels.dtype)
        for tensor in cache.tensors:
            tensor.normal_()
        return cache


def measure(
    cases: Cases, kinds: list[Callable[[Cases], Iterator[Case]]], clock: Clock, ceilings: Ceilings
) -> Iterator[Row]:
    """One row after the other, so that those that are there can be kept."""
    with torch.inference_mode():
        for kind in kinds:
            for case in kind(cases):
                yield _row(cases.model, case, clock.seconds(case.works), ceilings)


def _row(model: str, case: Case, seconds: float, ceilings: Ceilings) -> Row:
    """The bound is the ceiling that the work, at its least, would take longer under."""
    gb, tera = case.nbytes / 1e9, case.operations / 1e12
    peak, dtype = ceilings.bf16_tflops, ceilings.float_dtype
    if case.integer:
        peak, dtype = ceilings.int8_tops, "int8"
    elif case.fp8 and ceilings.fp8_tflops:  # where nothing multiplies it, it is widened
        peak, dtype = ceilings.fp8_tflops, "fp8"
    by_memory = gb / ceilings.copy_gb_per_s
    by_arithmetic = tera / peak if peak else 0.0
    bound, least = ("copy", by_memory) if by_memory >= by_arithmetic else (f"{dtype} peak", by_arithmetic)
    return Row(
        model,
        case.operation,
        case.scheme,
        case.rows,
        case.context,
        seconds * 1e6,
        gb / seconds,
        tera / seconds,
        bound,
        least / seconds,
    )


def summary(rows: list[Row], prompt: int) -> dict[str, Any]:
    """The demands' figures: shares of the ceiling of a layer's products of a scheme together, of attention."""
    found: dict[str, Any] = {}
    for scheme in SPECS:
        for count in sorted({r.rows for r in rows if r.scheme == scheme}):
            own = [r for r in rows if r.scheme == scheme and r.rows == count and r.share is not None]
            least = sum(r.microseconds * (r.share or 0.0) for r in own)
            found[f"products {scheme} at {count} rows"] = least / sum(r.microseconds for r in own)
    for r in rows:
        if r.operation == "attention":
            what = f"prompt of {prompt}" if r.scheme == "prompt" else f"decode at {r.rows}, context {r.context}"
            found[f"attention {what}"] = r.share
    return {"share_of_ceiling": found, "rows": [asdict(r) for r in rows]}


def _call(operation: Callable[..., object], *arguments: object) -> Work:
    return lambda: operation(*arguments)
