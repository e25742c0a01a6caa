"""The protocol of the peers, with an engine whose tokens and times are known."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crosscheck.peers.protocol import Emit, Recorder, Refusal, Request, serve_on

HERE = Path(__file__).parent

# Counts on from the last token of a prompt, one step a time for all; prints on both of its stdouts, as engines do.
COUNTER = """
import os, sys, time
sys.path.insert(0, {here!r})
import protocol

class Counter:
    name, version, weights, about = "counter", "1.2", "none", dict(step_s=0.01)
    def run(self, requests, emit):
        print("noise of Python's")
        os.write(1, b"noise of C's\\n")
        for step in range(max(r.max_tokens for r in requests)):
            time.sleep(0.01)
            for i, r in enumerate(requests):
                if step < r.max_tokens:
                    emit(i, r.prompt[-1] + 1 + step)

protocol.serve(Counter)
"""


def driven(*jobs: dict[str, Any]) -> list[dict[str, Any]]:
    script = COUNTER.format(here=str(HERE))
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run([sys.executable, "-c", script], input=lines, capture_output=True, text=True, check=True)
    assert done.stderr.count("noise of") == 2 * len(jobs)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_driver_says_what_it_is_and_answers_each_job_on_a_line() -> None:
    job = {"requests": [{"prompt": [5, 7], "max_tokens": 3}, {"prompt": [20], "max_tokens": 1}]}
    ready, first, second = driven(job, {"requests": [{"prompt": [1], "max_tokens": 2}]})
    assert (ready["ready"], ready["engine"], ready["version"], ready["weights"]) == (True, "counter", "1.2", "none")
    assert ready["about"] == {"step_s": 0.01}
    assert [row["tokens"] for row in first["requests"]] == [[8, 9, 10], [21]]
    assert [row["tokens"] for row in second["requests"]] == [[2, 3]]


def test_times_count_from_the_start_of_their_own_job() -> None:
    job = {"requests": [{"prompt": [1], "max_tokens": 3}, {"prompt": [1], "max_tokens": 2}]}
    _, *answers = driven(job, job)
    for answer in answers:
        long, short = (row["times"] for row in answer["requests"])
        assert len(long) == 3
        assert len(short) == 2
        assert all(0.01 * (step + 1) <= at <= answer["seconds"] for step, at in enumerate(long))
        assert long == sorted(long)


def test_a_recorder_reads_the_clock_at_each_token() -> None:
    ticks = iter([100.0, 100.5, 101.0, 103.0, 104.0])
    recorder = Recorder([Request([1], 2), Request([2], 1)], clock=lambda: next(ticks))
    for index, token in ((1, 9), (0, 7), (0, 8)):
        recorder.emit(index, token)
    answer = recorder.answer()
    assert answer["requests"] == [{"tokens": [7, 8], "times": [1.0, 3.0]}, {"tokens": [9], "times": [0.5]}]
    assert answer["seconds"] == 4.0


class Short:
    """Ends a request a token early, as an engine does that heeds the end of sequence."""

    name = version = weights = "short"

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}

    def run(self, requests: list[Request], emit: Emit) -> None:
        for index, request in enumerate(requests):
            for token in range(request.max_tokens - index):
                emit(index, token)


def test_an_engine_that_stops_early_is_not_taken_for_a_fast_one() -> None:
    job = json.dumps({"requests": [{"prompt": [1], "max_tokens": 4}] * 2})
    answers = io.StringIO()
    with pytest.raises(RuntimeError, match="request 1: the engine made 3 tokens, expected 4"):
        serve_on(Short(), [job], answers)
    assert len(answers.getvalue().splitlines()) == 1  # that it is ready, and no answer


@pytest.mark.parametrize("row", [{"prompt": [], "max_tokens": 1}, {"prompt": [1], "max_tokens": 0}])
def test_a_request_for_nothing_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected a prompt and 1 token or more"):
        serve_on(Short(), [json.dumps({"requests": [row]})], io.StringIO())


class Picky(Short):
    """Takes one request at a time."""

    def run(self, requests: list[Request], emit: Emit) -> None:
        if len(requests) > 1:
            raise Refusal(f"{len(requests)} requests at once")
        super().run(requests, emit)


def test_a_job_that_is_refused_is_an_error_and_the_next_is_answered() -> None:
    row = {"prompt": [1], "max_tokens": 1}
    answers = io.StringIO()
    serve_on(Picky(), [json.dumps({"requests": [row] * count}) for count in (2, 1)], answers)
    _, refused, answered = map(json.loads, answers.getvalue().splitlines())
    assert refused == {"error": "2 requests at once"}
    assert answered["requests"][0]["tokens"] == [0]
