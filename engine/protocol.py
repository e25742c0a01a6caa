"""What the server and the engine core say to each other: length-prefixed msgpack over two pipes.

    server -> core   {"type": "add", "requests": [AddRequest, ...]}   {"type": "abort", "ids": [...]}
                     (closing the pipe ends the core)
    core -> server   {"type": "ready", ...}   {"type": "failed", "message": ...}
                     {"type": "step", "outputs": [Output, ...], "rows": [StepRow, ...], "stats": {...}}

A `step` message is sent for every step and, without work, every ``HEARTBEAT_S``: it is also the heartbeat. `rows` has
the step's row of the log, or nothing if nothing was done.

Both processes read the same monotonic clock (``time.monotonic`` counts from the machine's start), so the `ready`
message names the moment from which the log counts, ``began_s`` on that clock, and the server's own times fit.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO, Literal, NamedTuple, cast

from engine.request import FinishReason, TokenLogprob

HEARTBEAT_S = 0.5
_LENGTH = struct.Struct("<I")
LENGTH_BYTES = _LENGTH.size
Refusal = Literal["queue_full", "too_long", "no_space", "invalid"]


class AddRequest(NamedTuple):
    """``ids``: one for each sample of the prompt; ``params``: ``SamplingParams.to_wire()``; a lower ``priority`` runs
    sooner. With ``branches`` each id has a prompt of its own, ``prompt`` and its entry there, which is only scored."""

    ids: list[str]
    prompt: list[int]
    params: dict[str, Any]
    priority: int = 0
    branches: list[list[int]] | None = None


class Output(NamedTuple):
    """News of one request: a token, an end, or a refusal (``refusal`` set, never with a token). With the finish reason
    ``error``, a refusal says that the request itself was at fault."""

    id: str
    token: int | None = None
    logprob: TokenLogprob | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    refusal: Refusal | None = None
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprob] | None = None  # with the first output, if asked for
    timings: dict[str, float | None] | None = None  # with the last output: seconds a phase, and num_preemptions
    score: dict[str, Any] | None = None  # with the last output, if the prompt was stored or compared (engine.scoring)

    @classmethod
    def from_wire(cls, fields: list[Any]) -> Output:
        output = cls(*fields)
        return output._replace(
            logprob=TokenLogprob(*output.logprob) if output.logprob else None,
            prompt_logprobs=[TokenLogprob(*p) for p in output.prompt_logprobs]
            if output.prompt_logprobs is not None
            else None,
        )


class StepRow(NamedTuple):
    """One row of the step log. Times are seconds since the core began; queue lengths are those after the step."""

    step: int
    start_s: float
    duration_s: float
    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    preempted: int
    finished: int
    kv_tokens_used: int  # positions with keys and values in the used blocks; the others are reserved for later
    blocks_stranded: int  # free, but in no run that is long enough for the first of the queue


def encode(message: dict[str, Any]) -> bytes:
    import msgpack  # here, so that a core in one process with who asks it needs no messages

    body = cast(bytes, msgpack.packb(message))
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> dict[str, Any]:
    import msgpack

    return cast(dict[str, Any], msgpack.unpackb(body, strict_map_key=False))


def length_of(prefix: bytes) -> int:
    return int(_LENGTH.unpack(prefix)[0])


def read_message(pipe: BinaryIO) -> dict[str, Any] | None:
    """The next message of a blocking pipe; None at its end."""
    prefix = pipe.read(LENGTH_BYTES)
    if len(prefix) < LENGTH_BYTES:
        return None
    length = length_of(prefix)
    body = pipe.read(length)
    return decode(body) if len(body) == length else None
