from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.sse import SseReader

TEXTS = ["plain", "größer", "漢字かな", "🙂 and 👩‍👩‍👧", "", "tab\tand \\n"]
STREAM = b"".join(b"data: " + json.dumps({"t": t}, ensure_ascii=False).encode() + b"\n\n" for t in TEXTS)


def texts(events: list[bytes]) -> list[str]:
    return [json.loads(e)["t"] for e in events]


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_read_may_end_after_any_byte(cut: int) -> None:
    reader = SseReader()
    assert texts(reader.feed(STREAM[:cut]) + reader.feed(STREAM[cut:])) == TEXTS


@given(st.lists(st.integers(1, len(STREAM)), max_size=30), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_cutting_and_any_line_end_give_the_same_events(sizes: list[int], newline: bytes) -> None:
    stream = STREAM.replace(b"\n", newline)
    reader, found, at = SseReader(), [], 0
    for size in sizes:
        found += reader.feed(stream[at : at + size])
        at += size
    assert texts(found + reader.feed(stream[at:])) == TEXTS


def test_an_event_comes_with_the_read_that_completes_it() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\ndata: b\n\ndata: c") == [b"a", b"b"]
    assert reader.feed(b"\n\n") == [b"c"]


def test_comments_names_and_several_data_lines() -> None:
    reader = SseReader()
    assert reader.feed(b": ping\n\nevent: message\nid: 3\ndata:one\ndata: two\n\n") == [b"one\ntwo"]


@pytest.mark.timeout(30)
def test_a_long_reply_in_small_reads_is_linear() -> None:
    """4 MB in 16-byte reads: were each read to join what came before, it would copy 500 GB."""
    reader, body = SseReader(), b"data: " + b"x" * (4 << 20) + b"\n\n"
    found = [e for i in range(0, len(body), 16) for e in reader.feed(body[i : i + 16])]
    assert [len(e) for e in found] == [4 << 20]
