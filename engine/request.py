"""A request as the engine core sees it: token ids and counters. Phases are derived from the counters, not stored."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.blocks import BlockTable

FinishReason = Literal["stop", "length", "abort", "error"]


class RequestError(ValueError):
    """A request that cannot be served: says which numbers do not fit, and which parameter is at fault if one is."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class TooLongError(RequestError):
    """More tokens than the model or the KV pool can ever hold."""


class DrawError(RuntimeError):
    """No token can be drawn for a request, which ends it and no other."""


class Matcher(Protocol):
    """What an output's grammar says of its next token; see ``engine.grammar.compiler``."""

    def allowed(self) -> NDArray[np.int64]: ...
    def accept(self, token: int) -> bool: ...


class TokenLogprob(NamedTuple):
    """Log-probability of one token and of the most likely ones in its place, from the unmodified logits."""

    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn and when to stop. Text (stop strings) is the server's business.

    ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off; ``logprobs`` is how many alternatives
    to report beside each generated token (None: report nothing), ``prompt_logprobs`` the same for the prompt's tokens
    from number ``scored_from`` on (nothing predicts token 0);
    ``store`` and ``reference`` name where the prompt's whole distributions are kept, and those they are compared with;
    ``stop_token_ids`` end the request unless ``ignore_eos``, and not before ``min_tokens`` tokens. Penalties
    and biases are bounded so that no float32 logit overflows.
    """

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    scored_from: int = 1
    store: str | None = None
    reference: str | None = None
    grammar: tuple[str, str] | None = None  # kind and source, as in engine.grammar.sources

    def __post_init__(self) -> None:
        scores = self.only_scores
        stores = self.store is not None or self.reference is not None
        limits = [
            (self.max_tokens >= 0, "max_tokens", self.max_tokens, "0 or more"),
            (self.temperature >= 0, "temperature", self.temperature, "0 or more"),
            (self.top_k >= 0, "top_k", self.top_k, "0 (off) or more"),
            (0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1"),
            (0 <= self.min_p <= 1, "min_p", self.min_p, "0 (off) to 1"),
            (0.01 <= self.repetition_penalty <= 100, "repetition_penalty", self.repetition_penalty, "0.01 to 100"),
            (0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, f"0 to {self.max_tokens}"),
            (self.scored_from >= 1, "scored_from", self.scored_from, "1 or more"),
            (not stores or self.scored_from == 1, "scored_from", self.scored_from, "1 with store or reference"),
            (scores or self.store is None, "store", self.store, "null unless a prompt is scored without output"),
            (scores or self.reference is None, "reference", self.reference, "null unless it is scored without output"),
        ]
        for good, name, found, expected in limits:
            if not good:
                raise RequestError(f"{name} is {found}, expected {expected}", name)
        if self.grammar is not None:
            for name, found in (("min_tokens", self.min_tokens), ("ignore_eos", self.ignore_eos)):
                if found:
                    words = f"{name} is {found} beside a grammar, which alone says where the output ends"
                    raise RequestError(words, name)

    @property
    def only_scores(self) -> bool:
        """Whether all that is asked for are log-probabilities of the prompt."""
        return self.max_tokens == 0 and self.prompt_logprobs is not None

    @property
    def modifies_logits(self) -> bool:
        """Whether the logits a token is drawn from differ from the model's."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.logit_bias
            or (self.min_tokens and self.stop_token_ids and not self.ignore_eos)
        )

    def to_wire(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> SamplingParams:
        grammar = tuple(data["grammar"]) if data["grammar"] is not None else None
        return cls(**{**data, "stop_token_ids": tuple(data["stop_token_ids"]), "grammar": grammar})


@dataclass(eq=False)
class Request:
    """One sequence. The scheduler's job is to let ``num_computed_tokens`` catch up with ``num_due_tokens``.

    ``forks`` are further samples of the same prompt (``n > 1``): they begin when the prompt has been computed once and
    share its blocks; until then they name their ``parent``. With ``branch_at`` they are prompts of their own, of which
    so many first tokens are this one's as well: they begin when these have been computed. ``seed`` is resolved:
    requests without one get one from the engine. A lower ``priority`` runs sooner.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    seed: int = 0
    arrival: int = 0
    forks: list[Request] = field(default_factory=list)
    priority: int = 0
    parent: Request | None = None
    branch_at: int | None = None

    tokens: list[int] = field(init=False)
    table: BlockTable = field(init=False, default_factory=BlockTable)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens that the first admission found in the prefix cache
    takes_slot: bool = True  # of the places for requests that run; see engine.scheduler
    high_water_tokens: int = 0  # the most that was ever computed: what lies below it is recomputed after a preemption
    num_preemptions: int = 0
    last_step: int = 0  # the scheduler's last step that computed something of it
    prefill_mark: int = 0  # prefill tokens that the scheduler had planned in all, up to and with that step
    finish_reason: FinishReason | None = None
    matcher: Matcher | None = None  # of a request with a grammar
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # entry i: of prompt token scored_from + i
    arrived_s: float = field(default_factory=time.monotonic)
    admitted_s: float | None = None
    first_token_s: float | None = None
    preempted_since_s: float | None = None
    preempted_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("the prompt has no token, expected at least one")
        if self.params.scored_from > max(1, len(self.prompt) - 1):
            raise RequestError(
                f"scored_from is {self.params.scored_from} in a prompt of {len(self.prompt)} tokens; its last token is "
                f"number {len(self.prompt) - 1}",
                "scored_from",
            )
        self.tokens = list(self.prompt)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def num_due_tokens(self) -> int:
        """Tokens to compute: all; the last of a prompt that is only scored predicts nothing that is asked for."""
        return max(1, len(self.tokens) - 1) if self.params.only_scores else len(self.tokens)

    @property
    def remaining_tokens(self) -> int:
        return self.num_due_tokens - self.num_computed_tokens

    @property
    def next_stop(self) -> int:
        """How many tokens are computed when something becomes of it: its branches part, or all that is due is done."""
        if self.branch_at is not None and self.forks and self.num_computed_tokens < self.branch_at:
            return self.branch_at
        return self.num_due_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether all that is left to compute is the last token drawn."""
        count = len(self.tokens)  # asked for every request in every step: without properties between
        return count - self.num_computed_tokens == 1 and count > len(self.prompt)

    @property
    def order(self) -> tuple[int, int]:
        """Its place among others: importance, then arrival. No two are equal."""
        return self.priority, self.arrival

    @property
    def max_total_tokens(self) -> int:
        return len(self.prompt) + self.params.max_tokens

    @property
    def width(self) -> int:
        """Sequences that this request stands for in the queue."""
        return 1 + len(self.forks)

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.params.prompt_logprobs is not None and self.owed_row < len(self.prompt) - 1

    @property
    def owed_row(self) -> int:
        """The position whose logits are the next prompt log-probability."""
        return self.params.scored_from - 1 + len(self.prompt_logprobs)

    @property
    def reusable_prefix_tokens(self) -> int:
        """The longest prefix whose rows need not be computed: at least one row is needed to draw a token, and every
        row whose logits are prompt log-probabilities still owed."""
        if self.wants_prompt_logprobs:
            return self.owed_row
        return self.num_due_tokens - 1
