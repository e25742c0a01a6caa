"""What a simulated server does: ``Scenario``, read from YAML or JSON.

Times of day are seconds since the first chat request arrived, which of a load test is its preflight. Faults that act
on the clock (stall, spikes, drift) act on all requests; the others act on the requests that their ``when`` selects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError


class ScenarioError(Exception):
    """A scenario that cannot be played: says what was found and what was expected."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class When(_Strict):
    """Which requests; all conditions must hold. Requests are numbered from 0 as they arrive."""

    every: int = Field(1, ge=1, description="each so-many-th of those from ``first`` on, ``first`` itself included")
    first: int = Field(1, ge=0, description="number of the first; 0 would hit the preflight of a load test")
    above: int | None = Field(None, ge=0, description="only while more than so many requests are open, itself included")
    from_s: float = 0.0
    to_s: float | None = None

    def selects(self, number: int, open_requests: int, at_s: float) -> bool:
        return (
            number >= self.first
            and (number - self.first) % self.every == 0
            and (self.above is None or open_requests > self.above)
            and self.from_s <= at_s
            and (self.to_s is None or at_s < self.to_s)
        )


class Stall(_Strict):
    """Nothing is sent for a while; what was due meanwhile is sent at its end, and goes on from there."""

    kind: Literal["stall"]
    at_s: float = Field(ge=0)
    for_s: float = Field(gt=0)


class Spikes(_Strict):
    """A stall that comes again and again."""

    kind: Literal["spikes"]
    every_s: float = Field(gt=0)
    for_s: float = Field(gt=0)
    first_s: float = Field(0.0, ge=0)


class Drift(_Strict):
    """Every delay grows by ``share``, linearly from ``from_s`` over ``over_s``, and stays there."""

    kind: Literal["drift"]
    share: float = Field(gt=-1)
    from_s: float = Field(0.0, ge=0)
    over_s: float = Field(gt=0)


class Refusal(_Strict):
    """An answer that is no stream."""

    kind: Literal["refusal"]
    status: int = Field(ge=400, le=599)
    message: str = "refused by the scenario"
    retry_after: str | None = Field(None, description="the Retry-After header as sent: seconds or an HTTP date")
    when: When = When()


class Break(_Strict):
    """The stream ends badly after so many tokens."""

    kind: Literal["break"]
    how: Literal["reset", "close", "error_event", "hang"] = Field(
        description="a TCP reset; a proper close in the middle; an error in the stream; nothing any more"
    )
    after_tokens: int = Field(ge=0)
    when: When = When()


class Truncate(_Strict):
    """The answer is cut to ``to_tokens`` and claims that this is how it should be."""

    kind: Literal["truncate"]
    to_tokens: int = Field(ge=1)
    finish_reason: str = "stop"
    when: When = When()


class Finish(_Strict):
    """The answer, whole as it is, names ``reason`` as that of its end, true or not."""

    kind: Literal["finish"]
    reason: str = "stop"
    when: When = When()


class Restart(_Strict):
    """As request number ``at_request`` arrives the process ends and another takes its place: all connections are reset,
    that request's too, what was counted and cached is gone, and the start time is a new one.
    """

    kind: Literal["restart"]
    at_request: int = Field(ge=1)


class SlowHead(_Strict):
    """The response's head comes only after ``delay_ms``; tokens cannot come before it."""

    kind: Literal["slow_head"]
    delay_ms: float = Field(gt=0)
    when: When = When()


class Omit(_Strict):
    """Something that belongs at the end of a stream is left out."""

    kind: Literal["omit"]
    what: Literal["usage", "done", "finish"]
    when: When = When()


class Leak(_Strict):
    """Blocks, and if asked bytes of memory, that a finished request keeps for good."""

    kind: Literal["leak"]
    blocks: int = Field(0, ge=0)
    memory_bytes: int = Field(0, ge=0)
    when: When = When()


Fault = Annotated[
    Stall | Spikes | Drift | Refusal | Break | Truncate | Finish | Restart | SlowHead | Omit | Leak,
    Field(discriminator="kind"),
]


class Form(_Strict):
    """How an answer is put on the wire."""

    role: Literal["with_first", "own_chunk", "none"] = Field(
        "with_first", description="own_chunk: a chunk without a token goes out with the response's head"
    )
    usage: Literal["continuous", "final", "as_asked"] = Field("as_asked", description="continuous: also if not asked")
    tokens_per_chunk: int = Field(1, ge=1)
    silent_every: int = Field(
        0, ge=0, description="each so-many-th token yields no text (special tokens); 0: none does"
    )
    unicode: bool = Field(False, description="text of several bytes a character")
    eos: bool = Field(False, description="usage counts an end-of-sequence token that comes with the finish reason")
    piece_bytes: int | None = Field(None, ge=1, description="an event goes out in writes of so many bytes")
    piece_gap_ms: float = Field(0.0, ge=0, description="between these writes")
    newline: Literal["lf", "crlf", "cr"] = "lf"
    split_data: bool = Field(False, description="the JSON of an event goes over two data lines")
    comment_every: int = Field(
        0, ge=0, description="a comment line as keep-alive before each so-many-th event; 0: none"
    )
    framing: Literal["chunked", "until_close"] = "chunked"


class Scenario(_Strict):
    name: str = "plain"
    model: str = "sim"
    ttft_ms: float = Field(20.0, ge=0, description="from a request's start (see slots) to its first chunk of tokens")
    itl_ms: float = Field(10.0, ge=0, description="from one token to the next; several in a chunk come together")
    itl_per_request_ms: float = Field(0.0, ge=0, description="added to itl_ms for each other request that runs")
    prefill_ms_per_token: float = Field(0.0, ge=0, description="added to ttft_ms for each token of the prompt")
    gaps_ms: tuple[float, ...] | None = Field(None, description="instead of itl_ms: gaps between tokens, taken in turn")
    step_ms: float | None = Field(None, gt=0, description="tokens go out at multiples of this only, as in a batch")
    slots: int | None = Field(None, ge=1, description="requests that run at once; the others wait, first come")
    queue: int | None = Field(None, ge=0, description="how many may wait; beyond it 429 with Retry-After: 1")
    natural_tokens: int | None = Field(None, ge=1, description="where answers end without ignore_eos, by prompt: 1-2x")
    cached: int | Literal["repeats"] | None = Field(
        0, description="cached_tokens: a number, null: not reported, repeats: all but one token of a prompt seen before"
    )
    blocks_total: int = Field(4096, ge=1)
    exports: Literal["seatrial", "vllm", "sglang", "none"] = Field(
        "seatrial", description="under whose names /metrics tells what is counted; none: there is no /metrics"
    )
    form: Form = Form()
    faults: tuple[Fault, ...] = ()


def load_scenario(path: Path) -> Scenario:
    """Reads YAML or JSON.

    Raises:
        ScenarioError: no such file, not YAML, or a key is unknown, missing or out of range.
    """
    try:
        return Scenario.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except OSError as e:
        raise ScenarioError(f"cannot read {path}: {e}") from e
    except yaml.YAMLError as e:
        raise ScenarioError(f"{path} is not YAML: {e}") from e
    except ValidationError as e:
        lines = (f"  {'.'.join(map(str, x['loc'])) or '(top)'}: {x['msg']}" for x in e.errors())
        raise ScenarioError(f"{path} has {e.error_count()} problem(s):\n" + "\n".join(lines)) from e
