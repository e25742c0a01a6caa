"""What is compared with what: settings that differ from the engine's own, and the policy each is measured against."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.bench.errors import BenchError
from engine.bench.traces import Lengths
from engine.config import EngineConfig


@dataclass(frozen=True)
class Policy:
    """``settings`` override the engine's config; ``against`` is the policy that ratios refer to (None: itself one).

    ``small_pool``: the KV pool is cut to a share of what a full batch of average requests would reserve, so that
    requests wait for memory and not only for a slot.
    """

    name: str
    about: str
    settings: Callable[[EngineConfig], dict[str, Any]] = lambda _: {}
    against: str | None = "baseline"
    small_pool: bool = False

    def config(self, base: EngineConfig) -> EngineConfig:
        """The settings of all policies are stated, so that a base of another policy changes none of them."""
        return EngineConfig.model_validate(base.model_dump() | DEFAULTS | self.settings(base))


def _contiguous(_: EngineConfig) -> dict[str, Any]:
    return {"kv_reservation": "contiguous", "prefix_caching": False}  # the engine refuses the one with the other


DEFAULTS = {"batching": "continuous", "prefill": "mixed", "kv_reservation": "paged"}
POLICIES = {
    p.name: p
    for p in (
        Policy("baseline", "continuous batching, mixed prefill, paged KV", against=None),
        Policy("static", "a batch starts when the one before has ended", lambda _: {"batching": "static"}),
        Policy("separate", "a step computes prompts or decodes, never both", lambda _: {"prefill": "separate"}),
        Policy("contiguous", "KV of prompt and output reserved in one piece, nothing shared", _contiguous),
        Policy(
            "short-gap",
            "at most one chunk of prompts between two tokens",
            lambda base: {"decode_gap_tokens": base.prefill_chunk_tokens},
        ),
        Policy("small-paged", "baseline in a small KV pool", against=None, small_pool=True),
        Policy(
            "small-contiguous",
            "contiguous in a small KV pool",
            _contiguous,
            against="small-paged",
            small_pool=True,
        ),
    )
}
DEFAULT_POLICIES = [name for name in POLICIES if name != "short-gap"]


def choose(names: list[str]) -> list[Policy]:
    """The named policies and those they are measured against, in the order of the table above.

    Raises:
        BenchError: a name is unknown.
    """
    unknown = [n for n in names if n not in POLICIES]
    if unknown or not names:
        raise BenchError(f"unknown policy {(unknown or ['(none)'])[0]!r}; known: {', '.join(POLICIES)}")
    wanted = set(names) | {against for n in names if (against := POLICIES[n].against)}
    return [p for p in POLICIES.values() if p.name in wanted]


def small_pool_blocks(lengths: list[Lengths], config: EngineConfig, share: float, num_blocks: int) -> int:
    """Blocks of the small pool: ``share`` of what ``max_num_seqs`` requests of average length reserve in full.

    Raises:
        BenchError: the longest request would not fit, or the pool would not be smaller than the engine's own.
    """
    blocks = [-(-r.total // config.block_size) for r in lengths]
    full = config.max_num_seqs * sum(blocks) / len(blocks)
    small = math.ceil(share * full)
    found = f"a pool of {small} blocks, {share:g} of what {config.max_num_seqs} average requests reserve,"
    if small < max(blocks):
        raise BenchError(
            f"{found} cannot hold the longest request, which needs {max(blocks)}; give --pool-share "
            f"{math.ceil(100 * max(blocks) / full) / 100:g} or more, or leave out the small- policies"
        )
    if small >= num_blocks:
        raise BenchError(
            f"{found} is no smaller than the engine's own of {num_blocks}; give a smaller --pool-share or leave out "
            "the small- policies"
        )
    return small
