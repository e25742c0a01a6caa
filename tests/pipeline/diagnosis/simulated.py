"""An engine on paper: requests on a schedule, steps at a known price, faults of known size; leaves what a run does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from loadtests.records import SCHEMA
from pipeline.diagnosis.inputs import Run
from pipeline.load.summary import summarise

HTTP_S = 0.002


@dataclass
class Engine:
    """Prices in seconds. ``leaks``: blocks that stay in use after each request; ``admits``: places that it uses."""

    fixed_s: float = 0.008
    token_s: float = 0.0004
    decode_s: float = 0.001
    slots: int = 8
    admits: int = 8
    stall_every: int = 0
    stall_s: float = 0.3
    cached_share: float = 0.0
    leaks: int = 0
    blocks: int = 1000
    chunk: int = 64
    http_s: float = HTTP_S
    output: int | None = None  # tokens of each answer; None: 6 to 10
    fails: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Request:
    id: str
    due: float
    prompt: int
    output: int
    cached: int
    computed: int = 0
    seen: float = math.inf  # when the engine, between two steps, took note of it
    admitted: float | None = None
    tokens: list[float] = field(default_factory=list)


def run(engine: Engine, name: str = "run", requests: int = 160, gap_s: float = 0.12, burst: int = 1) -> Run:
    """``burst`` requests arrive together, every ``gap_s * burst``."""
    todo = [_Request(f"r{i}", (i // burst) * burst * gap_s, 40 + (i * 37) % 120, engine.output or 6 + i % 5, 0)
            for i in range(requests)]  # fmt: skip
    for r in todo:
        r.cached = int(engine.cached_share * r.prompt)
    waiting, running, ended, steps, now = list(todo), list[_Request](), list[_Request](), list[dict[str, Any]](), 0.0
    while waiting or running:
        if not running and waiting[0].due > now:
            now = waiting[0].due
        for r in waiting:
            if r.due + engine.http_s / 2 <= now:
                r.seen = min(r.seen, now)
        while waiting and waiting[0].seen <= now and len(running) < min(engine.slots, engine.admits):
            r = waiting.pop(0)
            r.admitted, r.computed = now, r.cached
            running.append(r)
        if not running:
            now += 0.001
            continue
        decoding = [r for r in running if r.computed >= r.prompt]
        chunk = next((r for r in running if r.computed < r.prompt), None)
        tokens = min(engine.chunk, chunk.prompt - chunk.computed) if chunk else 0
        took = engine.fixed_s + engine.token_s * tokens + engine.decode_s * len(decoding)
        if engine.stall_every and len(steps) % engine.stall_every == engine.stall_every - 1:
            took += engine.stall_s
        start, now = now, now + took
        for r in decoding:
            r.tokens.append(now)
        if chunk:
            chunk.computed += tokens
            if chunk.computed >= chunk.prompt:
                chunk.tokens.append(now)
        done = [r for r in running if len(r.tokens) >= r.output]
        running = [r for r in running if r not in done]
        ended += done
        used = sum(-(-(r.computed + len(r.tokens)) // 16) for r in running) + engine.leaks * len(ended)
        steps.append(
            {
                "step": len(steps) + 1, "start_s": start, "duration_s": took,
                "prefill_requests": int(chunk is not None), "prefill_tokens": tokens,
                "decode_requests": len(decoding), "running": len(running),
                "waiting": sum(w.due <= now for w in waiting), "blocks_used": used, "blocks_cached": 0, "preempted": 0,
                "finished": len(done), "kv_tokens_used": 0, "blocks_stranded": 0,
            }
        )  # fmt: skip
    return _run(engine, name, todo, steps)


def _run(engine: Engine, name: str, todo: list[_Request], steps: list[dict[str, Any]]) -> Run:
    records, requests = [], []
    for i, r in enumerate(todo):
        assert r.admitted is not None
        row: dict[str, Any] = dict.fromkeys(SCHEMA)
        seen = [t + engine.http_s / 2 for t in r.tokens]
        bad = engine.fails and i % 10 == 0
        row |= {
            "request_id": r.id, "stage": "s", "phase": "measured", "seed": 1, "due_s": r.due, "sent_s": r.due,
            "first_byte_s": seen[0], "first_token_s": None if bad else seen[0], "end_s": seen[-1],
            "token_times_s": [] if bad else seen, "status": "refused" if bad else "ok",
            "reason": "queue full" if bad else None, "finish_reason": "length", "prompt_tokens": r.prompt,
            "output_tokens": len(seen), "cached_tokens": r.cached, "max_tokens": r.output, "server_id": r.id,
            "arrival": i,
        }  # fmt: skip
        records.append(row)
        requests.append(
            {
                "id": r.id, "received_s": r.due, "first_token_s": r.tokens[0], "ended_s": r.tokens[-1],
                "prompt_tokens": r.prompt, "cached_tokens": r.cached, "output_tokens": len(r.tokens),
                "queued_s": r.admitted - r.seen, "prefill_s": r.tokens[0] - r.admitted,
                "decode_s": r.tokens[-1] - r.tokens[0], "preempted_s": 0.0, "num_preemptions": 0,
            }
        )  # fmt: skip
    frame = pl.DataFrame(records, schema=SCHEMA)
    figures = summarise(frame, {"s": (0.0, steps[-1]["start_s"])}, fixed_output=True, goodput=None)
    config = {"max_num_seqs": engine.slots, "max_num_batched_tokens": 512} | engine.settings
    info = {"config": config, "derived": {"ledger": {"num_blocks": engine.blocks}}, "memory": {"weights_bytes": 10**8}}
    load = {"stages": {"s": figures}, "overall": figures}
    return Run(name, load, frame, pl.DataFrame(steps), pl.DataFrame(requests), {"info": info}, None)
