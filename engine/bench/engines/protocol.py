"""How a driver speaks: an engine in a process of its own, one line of JSON each way for every piece of work.

The driver prints, once it can work, a line about itself:

    {"ready": true, "engine": "llama.cpp", "version": "b1234", "weights": "Q4_0"}

and then, for each line ``{"requests": [{"prompt": [ids], "max_tokens": n}, ...]}`` on its standard input, one line:

    {"requests": [{"tokens": [ids], "times": [seconds since the line was read, one a token]}, ...], "seconds": total}

All requests begin at once, are decoded greedily, and produce exactly ``max_tokens`` tokens: the end of sequence does
not count, and no prompt is remembered from one line to the next. Work that cannot be done is ``{"error": "why"}``,
after which the driver goes on. The end of standard input is the end of the driver. Nothing else may come out on
standard output; standard error is free, and its last line is shown if the driver dies.

Optional in the first line, for the shares of the machine's ceilings: ``step_weight_bytes`` (bytes of weights that one
decode step reads), ``layer_weights`` (number of weights outside embedding and head), ``arithmetic`` (``int8``, ``bf16``
or ``float32``: what most products are computed in); ``about``, an object of anything worth keeping with the results.
Optional in an answer: ``notes``, a list of sentences on what was not as asked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.bench.engines.workloads import Job

QUOTED = 120  # characters of what was found, in an error
SLACK_S = 0.05  # between the driver's clock and ours


class DriverError(Exception):
    """What a driver did that it should not, without its name."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore")  # a driver may say more than is asked


class Ready(_Message):
    ready: Literal[True]
    engine: str
    version: str = ""
    weights: str = ""
    step_weight_bytes: int | None = None
    layer_weights: int | None = None
    arithmetic: Literal["int8", "bf16", "float32"] | None = None
    about: dict[str, Any] = {}


class Produced(_Message):
    tokens: list[int]
    times: list[float]


class Answer(_Message):
    requests: list[Produced]
    seconds: float
    notes: list[str] = []


class Failed(_Message):
    error: str


def encode_work(jobs: Sequence[Job]) -> bytes:
    requests = [{"prompt": j.prompt, "max_tokens": j.max_tokens} for j in jobs]
    return json.dumps({"requests": requests}, separators=(",", ":")).encode() + b"\n"


def _object(line: bytes, expected: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        shown = line[:QUOTED].decode(errors="replace").strip()
        raise DriverError(f"printed {shown!r}; expected {expected} as one line of JSON")
    return found


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"


def decode_ready(line: bytes) -> Ready:
    """
    Raises:
        DriverError: something else, or the reason why it cannot work.
    """
    found = _object(line, '{"ready": true, ...}')
    _raise_failure(found)
    try:
        return Ready.model_validate(found)
    except ValidationError as e:
        raise DriverError(f"its first line is not as the protocol says: {_problem(e)}") from e


def decode_answer(line: bytes, jobs: Sequence[Job], wall_s: float) -> Answer:
    """``wall_s``: what we saw it take.

    Raises:
        DriverError: an error of its own, or not an answer to these requests.
    """
    found = _object(line, '{"requests": [...], "seconds": ...}')
    _raise_failure(found)
    try:
        answer = Answer.model_validate(found)
    except ValidationError as e:
        raise DriverError(f"its answer is not as the protocol says: {_problem(e)}") from e
    if len(answer.requests) != len(jobs):
        raise DriverError(f"answered {len(answer.requests)} requests of {len(jobs)}")
    for i, (job, got) in enumerate(zip(jobs, answer.requests, strict=True)):
        if len(got.tokens) != job.max_tokens:
            raise DriverError(f"request {i}: {len(got.tokens)} tokens; expected exactly {job.max_tokens}")
        if len(got.times) != len(got.tokens):
            raise DriverError(f"request {i}: {len(got.times)} times for {len(got.tokens)} tokens")
        times = got.times
        if not all(math.isfinite(t) and t > 0 for t in times) or any(b < a for a, b in pairwise(times)):
            raise DriverError(f"request {i}: its times do not grow from above 0 on")
        if times[-1] > wall_s + SLACK_S:
            raise DriverError(
                f"request {i}: its last token came after {times[-1]:.3f} s, the answer after {wall_s:.3f} s"
            )
    return answer


def _raise_failure(found: dict[str, Any]) -> None:
    if "error" in found:
        raise DriverError(f"reports: {Failed.model_validate({'error': str(found['error'])}).error}")
