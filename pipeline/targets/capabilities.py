"""What a server can do beyond answering, since some task needs it; and what becomes of that task where it cannot.

``eval.json`` and ``load.json`` hold the whole under ``capabilities`` (:meth:`Capabilities.json`). What could not be
measured for want of one stands beside it: in ``eval.json`` under ``not_measurable_by`` (capability -> items, kinds,
why), in ``load.json`` under ``not_comparable`` (capability -> what of the figures, and why).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

State = Literal["yes", "no", "unknown"]
PREFIX = "not measurable here"

TITLES = {
    "prompt_logprobs": "log-probabilities of the prompt's tokens (echo with logprobs)",
    "prompt_logprobs_from": "log-probabilities of the end of a prompt alone (prompt_logprobs_from)",
    "stream_usage": "token counts at the end of a stream (stream_options.include_usage)",
    "running_usage": "token counts with every chunk of a stream (stream_options.continuous_usage_stats)",
    "token_ids": "prompts as token ids",
    "metrics": "metrics in Prometheus form (/metrics)",
    "deterministic": "the same greedy request twice gives the same text",
    "deterministic_in_company": "a greedy request gives the same text alone and among others",
    "ignore_eos": "going on to the length asked for (ignore_eos)",
    "min_tokens": "a least length of an answer (min_tokens)",
}


@dataclass(frozen=True)
class Finding:
    """``seen``: what it rests on. ``unknown``: it could not be told; a task that needs it must not rely on it."""

    state: State
    seen: str


@dataclass(frozen=True)
class Capabilities:
    """One finding a capability; ``source``: asked of the server at ``probed_at``, or promised by the bundled engine."""

    prompt_logprobs: Finding
    prompt_logprobs_from: Finding
    stream_usage: Finding
    running_usage: Finding
    token_ids: Finding
    metrics: Finding
    deterministic: Finding
    deterministic_in_company: Finding
    ignore_eos: Finding
    min_tokens: Finding
    source: Literal["probed", "promised"]
    probed_at: str | None

    def lacking(self, name: str) -> str | None:
        """None where it is surely there; else why a task that needs it is not measurable, capability named."""
        found: Finding = getattr(self, name)
        if found.state == "yes":
            return None
        how = "the server lacks it" if found.state == "no" else "it could not be told whether the server has it"
        return f"{PREFIX}: {name}, {TITLES[name]}: {how}: {found.seen}"

    def json(self) -> dict[str, Any]:
        found = {name: asdict(getattr(self, name)) for name in TITLES}
        return {"source": self.source, "probed_at": self.probed_at, "found": found}

    @classmethod
    def read(cls, value: dict[str, Any]) -> Self:
        """What :meth:`json` gave.

        Raises:
            KeyError, TypeError: something else.
        """
        found = {name: Finding(**value["found"][name]) for name in TITLES}
        return cls(**found, source=value["source"], probed_at=value["probed_at"])


def promised() -> Capabilities:
    """Of the bundled engine, whose tests hold it to them."""
    found = Finding("yes", "promised by the bundled engine")
    return Capabilities(**dict.fromkeys(TITLES, found), source="promised", probed_at=None)
