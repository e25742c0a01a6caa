from __future__ import annotations

import io
import queue
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.process import Inbox, Loop
from engine.protocol import AddRequest, StepRow, read_message
from engine.request import SamplingParams
from tests.engine.fake_runner import FakeRunner


@pytest.fixture
def parts() -> tuple[Loop, Inbox, io.BytesIO]:
    config = EngineConfig(block_size=4, max_num_batched_tokens=16, prefill_chunk_tokens=8)
    pipe, inbox = io.BytesIO(), queue.SimpleQueue[dict[str, Any]]()
    return Loop(EngineCore(FakeRunner(16, 4), config), inbox, pipe), inbox, pipe


def sent(pipe: io.BytesIO) -> list[dict[str, Any]]:
    pipe.seek(0)
    found = []
    while (message := read_message(pipe)) is not None:
        found.append(message)
    pipe.seek(0)
    pipe.truncate()
    return found


def test_one_message_a_step_with_the_news_of_all(parts: tuple[Loop, Inbox, io.BytesIO]) -> None:
    loop, inbox, pipe = parts
    params = SamplingParams(3).to_wire()
    inbox.put({"type": "add", "requests": [AddRequest(["a"], [1, 2], params), AddRequest(["b"], [3], params)]})
    for _ in range(3):
        loop.turn()
    messages = sent(pipe)
    assert [m["type"] for m in messages] == ["step"] * 3
    assert [sorted(o[0] for o in m["outputs"]) for m in messages] == [["a", "b"]] * 3
    assert messages[-1]["stats"]["generation_tokens"] == 6
    assert messages[-1]["stats"]["blocks_used"] == 0


def test_an_abort_ends_and_each_step_sends_its_row_once(parts: tuple[Loop, Inbox, io.BytesIO]) -> None:
    loop, inbox, pipe = parts
    inbox.put({"type": "add", "requests": [AddRequest(["a"], [1, 2], SamplingParams(30).to_wire())]})
    loop.turn()
    inbox.put({"type": "abort", "ids": ["a"]})
    loop.turn()
    loop.turn()
    first, last, beat = sent(pipe)
    assert first["outputs"][0][1] is not None
    assert last["outputs"][0][3] == "abort"
    assert last["stats"]["running"] == 0
    rows = [StepRow(*fields) for m in (first, last, beat) for fields in m["rows"]]
    assert [(r.step, r.prefill_tokens, r.running, r.finished) for r in rows] == [(1, 2, 1, 0), (2, 0, 0, 1)]
    assert 0 <= rows[0].start_s < rows[1].start_s < 3600


def test_a_turn_without_work_is_a_heartbeat(parts: tuple[Loop, Inbox, io.BytesIO]) -> None:
    loop, _, pipe = parts
    loop.turn()
    (beat,) = sent(pipe)
    assert beat["outputs"] == []
    assert beat["stats"]["steps"] == 0


def test_an_unknown_command_is_an_error(parts: tuple[Loop, Inbox, io.BytesIO]) -> None:
    loop, inbox, _ = parts
    inbox.put({"type": "dance"})
    with pytest.raises(ValueError, match="unknown command 'dance'"):
        loop.turn()
