"""What may be named as a cause, and what to try; and how one is chosen among several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# cause: (in words, the knob to try)
CAUSES: dict[str, tuple[str, str]] = {
    "queue": ("requests wait for a place in the batch", "max_num_seqs, or fewer users a server"),
    "prefill_compute": ("the prompt's own computation", "prefill kernels (isa, threads), shorter prompts"),
    "prefill_phase": (
        "from the first step to the first token: the prompt's computation and what shares its steps",
        "shorter prompts, the size of prefill chunks, prefill kernels",
    ),
    "decode_steps": (
        "the server's own steps between two tokens",
        "decode kernels and memory bandwidth, fewer requests in the batch, smaller prefill chunks beside them",
    ),
    "behind_prefill": ("other prompts are computed first", "max_num_batched_tokens, prefill_chunk_tokens"),
    "decodes_beside": ("decodes share the steps of the prompt", "prefill: separate, max_num_batched_tokens"),
    "preempted": ("preempted: the KV pool was full", "memory_limit_bytes, kv_dtype: int8 or int4, fewer max_num_seqs"),
    "cold_cache": ("the prefix cache does not hit", "prefix_caching, a shared system message"),
    "stall": ("steps that take far longer than their batch explains", "what else runs on the machine; pin_threads"),
    "between_steps": ("the engine's loop between two steps", "the core's own work: grammars, copies, aborts"),
    "outside_engine": ("outside the engine: tokenising, HTTP, the client", "the server process, the load client"),
    "decode_compute": ("a decode step computes slower", "decode kernels and memory bandwidth: tier, isa, threads"),
    "larger_batches": ("more requests decode in a step", "max_num_seqs"),
    "prefill_interference": ("prefill shares the steps of decodes", "prefill_chunk_tokens, decode_gap_tokens"),
    "leak": ("KV blocks stay in use that no request has", "the block pool: every end releases once"),
    "admission": ("requests wait although places and blocks are free", "batching: continuous, admission"),
    "kv_limit": ("the KV pool is full", "memory_limit_bytes, kv_dtype: int8 or int4"),
    "batch_full": ("the batch is full while requests wait", "max_num_seqs"),
    "offered_load": ("nothing waits: the load offered is all that is asked", "more users, to see the limit"),
    "settings": ("the engine was asked to work otherwise", "the setting named"),
    "restarted": ("the server began anew while it was measured", "its log: why its process ended"),
    "failing": ("requests fail or are refused", "the reason named"),
    "cut_short": ("answers end early and say that they are whole", "max_tokens handling under load"),
    "template": ("prompts have other tokens than before", "chat template, BOS handling, tokenizer files"),
    "stop_handling": ("answers no longer end by themselves", "stop tokens: generation_config.json, tokenizer"),
    "context": ("the loss is in long documents", "context cut, rotary scaling, kv_dtype"),
    "engine": (
        "the same artifact answers otherwise: the engine computes or keeps it wrong",
        "kv_dtype and its scales, prefix_caching, the kernels (isa)",
    ),
    "tier": ("answers are worse throughout", "the tier's recipe: smoothing, group size, calibration"),
}


@dataclass(frozen=True)
class Cause:
    """``weight``: how much of the symptom it explains, as a share of 1. ``figure``: what shows it."""

    code: str
    weight: float
    figure: str

    @property
    def words(self) -> str:
        return CAUSES[self.code][0]

    @property
    def knob(self) -> str:
        return CAUSES[self.code][1]


@dataclass(frozen=True)
class Finding:
    """One step of the walk. ``causes``: the named one first; empty: nothing is wrong, or it is not explained."""

    symptom: str
    state: str  # "worse", "as before", "measured", "not measured"
    figure: str
    causes: tuple[Cause, ...] = ()

    def as_json(self) -> dict[str, object]:
        causes = [
            {"cause": c.code, "words": c.words, "share": round(c.weight, 3), "figure": c.figure, "try": c.knob}
            for c in self.causes
        ]
        return {"symptom": self.symptom, "state": self.state, "figure": self.figure, "causes": causes}


LEAST_SHARE = 0.3  # of the symptom: below, the first cause does not explain it
SHOWN = 3


def ranked(parts: Mapping[str, float], total: float, figures: Mapping[str, str]) -> tuple[Cause, ...]:
    """The parts of ``total`` that were found, largest first; nothing where the largest explains too little of it."""
    if total <= 0:
        return ()
    found = [Cause(code, ms / total, figures[code]) for code, ms in parts.items() if ms > 0]
    found.sort(key=lambda c: -c.weight)
    return tuple(found[:SHOWN]) if found and found[0].weight >= LEAST_SHARE else ()
