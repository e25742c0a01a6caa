"""How another engine answers the benchmark: the driver's side of what ``engine.bench.engines.protocol`` reads.

    first line    {"ready": true, "engine": "name", "version": "...", "weights": "Q4_0", "about": {...}}
    a job         {"requests": [{"prompt": [ids], "max_tokens": n}, ...]}
    its answer    {"requests": [{"tokens": [ids], "times": [seconds since the job began, one a token]}, ...],
                   "seconds": total}
    or            {"error": "why it cannot be done"}

All requests of a job are submitted at once; decoding is greedy and the end of sequence does not end a request, so each
returns exactly ``max_tokens`` tokens. A time is read when the engine hands the token out, before anything is done with
it. A job that an engine refuses before it begins is an error and the driver goes on; what goes wrong later ends the
driver, with the reason as the last line of stderr: half-done work would slow the next job down.

The drivers run in the environments of their engines, so this file needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

Emit = Callable[[int, int], None]  # index of the request in its job, its next token


@dataclass(frozen=True)
class Request:
    prompt: list[int]  # token ids, taken as they are: no template, nothing put in front
    max_tokens: int

    def __post_init__(self) -> None:
        if not self.prompt or self.max_tokens < 1:
            raise ValueError(
                f"expected a prompt and 1 token or more to make, found {len(self.prompt)}, {self.max_tokens}"
            )


class Refusal(Exception):
    """Why an engine does not take a job: one line."""


class Engine(Protocol):
    """What a driver wraps its engine in."""

    name: str
    version: str
    weights: str  # as the engine calls them: Q4_0, int8, bf16
    about: dict[str, Any]  # what else is worth keeping with its results

    def run(self, requests: list[Request], emit: Emit) -> None:
        """Run all of them to their end, calling ``emit`` once a token as the engine hands it out.

        Raises:
            Refusal: it cannot take this job, and has done nothing of it.
        """
        ...


class Recorder:
    """Takes the tokens of one job and when they came, in seconds since it was made."""

    def __init__(self, requests: list[Request], clock: Callable[[], float] = time.perf_counter) -> None:
        self.requests = requests
        self.tokens: list[list[int]] = [[] for _ in requests]
        self.times: list[list[float]] = [[] for _ in requests]
        self._clock = clock
        self._began = clock()

    def emit(self, index: int, token: int) -> None:
        now = self._clock() - self._began
        self.times[index].append(now)
        self.tokens[index].append(int(token))

    def answer(self) -> dict[str, Any]:
        """Raises:
        RuntimeError: a request got another number of tokens than it asked for.
        """
        seconds = self._clock() - self._began
        for i, (request, tokens) in enumerate(zip(self.requests, self.tokens, strict=True)):
            if len(tokens) != request.max_tokens:
                raise RuntimeError(f"request {i}: the engine made {len(tokens)} tokens, expected {request.max_tokens}")
        rows = [{"tokens": t, "times": s} for t, s in zip(self.tokens, self.times, strict=True)]
        return {"requests": rows, "seconds": seconds}


def serve(load: Callable[[], Engine]) -> None:
    """Load the engine and answer jobs until stdin ends."""
    answers = _take_stdout()
    serve_on(load(), sys.stdin, answers)


def serve_on(engine: Engine, jobs: Iterable[str], answers: TextIO) -> None:
    facts = {"engine": engine.name, "version": engine.version, "weights": engine.weights, "about": engine.about}
    _say({"ready": True} | facts, answers)
    for line in jobs:
        requests = [Request(row["prompt"], row["max_tokens"]) for row in json.loads(line)["requests"]]
        recorder = Recorder(requests)
        try:
            engine.run(requests, recorder.emit)
        except Refusal as e:
            _say({"error": str(e)}, answers)
        else:
            _say(recorder.answer(), answers)


def _say(message: dict[str, Any], to: TextIO) -> None:
    to.write(json.dumps(message) + "\n")
    to.flush()


def _take_stdout() -> TextIO:
    """The stdout that the benchmark reads; what an engine prints there, from C too, goes to stderr from now on."""
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(2, 1)
    return kept
