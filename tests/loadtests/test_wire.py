from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.wire import ResponseReader, WireError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
BODY = "größer 漢字 0\r\n\r\n".encode() * 3


def chunked(*sizes: int) -> bytes:
    """BODY in chunks of these sizes and the rest, with an extension and a trailer."""
    out, at = [], 0
    for size in [*sizes, len(BODY)]:
        part = BODY[at : at + size]
        if part:
            out.append(b"%X;x=y\r\n%b\r\n" % (len(part), part))
        at += size
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(out) + b"0\r\nT: 1\r\n\r\n"


FORMS = {
    "length": HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "chunked": chunked(3, 1, 10),
    "until close": HEAD + b"Connection: close\r\n\r\n" + BODY,
    "interim first": b"HTTP/1.1 100 Continue\r\n\r\n" + chunked(5),
}


def read(stream: bytes, cuts: list[int], end: bool) -> tuple[ResponseReader, bytes]:
    reader, out, at = ResponseReader(), b"", 0
    for size in cuts:
        if piece := stream[at : at + size]:
            out += reader.feed(piece)
        at += size
    if piece := stream[at:]:
        out += reader.feed(piece)
    if end:
        reader.eof()
    return reader, out


@pytest.mark.parametrize("form", FORMS)
@given(cuts=st.lists(st.integers(1, 60), max_size=40))
def test_any_cutting_of_the_reads_gives_the_same_body(form: str, cuts: list[int]) -> None:
    reader, body = read(FORMS[form], cuts, form == "until close")
    assert body == BODY
    assert (reader.status, reader.done, reader.keep) == (200, True, form != "until close")


@pytest.mark.parametrize("form", FORMS)
def test_an_end_in_the_middle_is_an_error(form: str) -> None:
    for cut in range(len(FORMS[form])):
        reader = ResponseReader()
        if cut:
            reader.feed(FORMS[form][:cut])
        if form == "until close" and reader.status is not None:
            continue  # nobody can tell
        with pytest.raises(WireError, match=r"without an answer|in the middle"):
            reader.eof()


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"SSH-2.0-x\r\n\r\n", "expected an HTTP/1.1 status line"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n", "expected the size of a chunk"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", "longer than it said"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 5000, "no end of line"),
        (HEAD + b"Content-Length: 2\r\n\r\nabc", "1 bytes more"),
        (HEAD + b"Content-Length: x\r\n\r\n", "Content-Length is 'x'"),
        (HEAD + b"Content-Encoding: gzip\r\n\r\n", "not asked for"),
        (HEAD + b"X: " + b"y" * 70000, "no end of the response's head"),
    ],
)
def test_what_is_not_http_is_an_error(stream: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        ResponseReader().feed(stream)


@pytest.mark.parametrize(
    ("head", "keep"),
    [
        (b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nRetry-After: 3\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
    ],
)
def test_whether_the_connection_stays(head: bytes, keep: bool) -> None:
    reader = ResponseReader()
    assert reader.feed(head) == b""
    assert (reader.done, reader.keep) == (True, keep)


@pytest.mark.timeout(30)
def test_a_long_answer_in_small_reads_is_linear() -> None:
    """One chunk of 8 MB in 64-byte reads: were each read to join what came before, it would copy 500 GB."""
    size = 8 << 20
    stream = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size + b"x" * size + b"\r\n0\r\n\r\n"
    reader = ResponseReader()
    assert sum(len(reader.feed(stream[i : i + 64])) for i in range(0, len(stream), 64)) == size
    assert reader.done
