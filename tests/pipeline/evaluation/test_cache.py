"""Answers survive a kill, and never answer for anyone else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.evaluation.cache import open_cache
from pipeline.evaluation.client import Reply, request_for
from tests.pipeline.evaluation.make import chat_item

REPLY = Reply("Paris", "stop", 5, 1, None, "2026-11-29T10:00:00Z")
A = {"artifact": "a", "engine": "e"}


def test_an_answer_is_found_again(tmp_path: Path) -> None:
    item = chat_item()
    request = request_for(item, "m")
    with open_cache(A, tmp_path) as cache:
        assert cache.get(item, request) is None
        cache.put(item, request, REPLY)
    with open_cache(A, tmp_path) as cache:
        assert cache.get(item, request) == REPLY


@pytest.mark.parametrize("other", [{**A, "artifact": "b"}, {**A, "engine": "f"}, {**A, "compute_dtype": "float32"}])
def test_another_model_or_engine_never_gets_it(tmp_path: Path, other: dict[str, str]) -> None:
    item = chat_item()
    with open_cache(A, tmp_path) as cache:
        cache.put(item, request_for(item, "m"), REPLY)
    with open_cache(other, tmp_path) as cache:
        assert cache.get(item, request_for(item, "m")) is None


def test_another_prompt_item_or_length_never_gets_it(tmp_path: Path) -> None:
    item = chat_item()
    with open_cache(A, tmp_path) as cache:
        cache.put(item, request_for(item, "m"), REPLY)
        for other in (chat_item(question="Which town?"), chat_item(max_tokens=9), chat_item("extract.two")):
            assert cache.get(other, request_for(other, "m")) is None
        assert cache.get(item, request_for(item, "another name")) is None


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_last_line_costs_one_answer(tmp_path: Path, cut: int) -> None:
    first, second, third = (chat_item(f"extract.{i}") for i in range(3))
    with open_cache(A, tmp_path) as cache:
        cache.put(first, request_for(first, "m"), REPLY)
        cache.put(second, request_for(second, "m"), REPLY)
    (path,) = tmp_path.glob("*/answers.jsonl")
    path.write_bytes(path.read_bytes()[:-cut])
    with open_cache(A, tmp_path) as cache:
        assert cache.get(first, request_for(first, "m")) == REPLY
        assert cache.get(second, request_for(second, "m")) is None
        cache.put(third, request_for(third, "m"), REPLY)
    with open_cache(A, tmp_path) as cache:
        assert cache.get(first, request_for(first, "m")) == REPLY
        assert cache.get(third, request_for(third, "m")) == REPLY


def test_garbage_in_the_middle_is_asked_again(tmp_path: Path) -> None:
    item = chat_item()
    with open_cache(A, tmp_path) as cache:
        cache.put(item, request_for(item, "m"), REPLY)
    (path,) = tmp_path.glob("*/answers.jsonl")
    path.write_bytes(
        b'\xff\xfe{"schema_version": 1}\n[]\n{"schema_version": 1, "key": "k", "reply": {}}\n' + path.read_bytes()
    )
    with open_cache(A, tmp_path) as cache:
        assert cache.get(item, request_for(item, "m")) == REPLY


def test_a_row_is_on_disk_before_the_next_is_asked(tmp_path: Path) -> None:
    item = chat_item()
    with open_cache(A, tmp_path) as cache:
        cache.put(item, request_for(item, "m"), REPLY)
        (path,) = tmp_path.glob("*/answers.jsonl")
        assert path.read_bytes().endswith(b"}\n")


def test_without_an_identity_nothing_is_kept(tmp_path: Path) -> None:
    item = chat_item()
    with open_cache(None, tmp_path) as cache:
        cache.put(item, request_for(item, "m"), REPLY)
    assert not list(tmp_path.iterdir())
