"""One HTTP/1.1 response from raw reads, without a socket: what was read goes in, what it holds of the body comes out.

Own code, because ``http.client`` hands out a read piece by piece and so stamps the later pieces late, at several times
the CPU. Covers what a server may send to a POST over a kept connection: RFC 9112, sections 4 to 7. No compression: the
client asks for none.
"""

from __future__ import annotations

_MOST_HEAD_BYTES = 65536
_MOST_LINE_BYTES = 4096  # of a chunk's size line and of a trailer


class WireError(Exception):
    """The answer is not what HTTP/1.1 allows, or it ended too soon."""


class ResponseReader:
    """``status`` is None until the head is whole; ``done`` once the body is. ``keep``: the connection can be reused.

    ``headers`` has lower-case names; of one that stands there twice, the last.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.done = False
        self.keep = False
        self._rest = b""  # read, but not yet understood: part of a head, of a size line, of a trailer
        self._left = 0  # bytes of the chunk, or of the body, that are still to come
        self._chunked = self._until_close = False
        self._after_chunk = self._trailers = False

    def feed(self, data: bytes) -> bytes:
        """What ``data``, a read that is not empty, brings of the body.

        Raises:
            WireError: not HTTP/1.1, or more than the answer.
        """
        if self.status is None:
            data = self._head(self._rest + data)
            if not data:
                return b""
        if self._chunked:
            return self._chunks(data)
        if self._until_close:
            return data
        if len(data) > self._left:
            raise WireError(f"{len(data) - self._left} bytes more than the Content-Length")
        self._left -= len(data)
        self.done = not self._left
        return data

    def eof(self) -> None:
        """The server has closed the connection.

        Raises:
            WireError: in the middle of the answer.
        """
        self.keep = False
        if self.status is None:
            raise WireError("the server closed the connection without an answer")
        if not (self.done or self._until_close):
            raise WireError("the server closed the connection in the middle of its answer")
        self.done = True

    def _head(self, data: bytes) -> bytes:
        """Takes the head off; what follows it. Interim answers (1xx) are passed over."""
        while (end := data.find(b"\r\n\r\n")) >= 0:
            lines = data[:end].decode("latin-1").split("\r\n")
            version, _, rest = lines[0].partition(" ")
            if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
                raise WireError(f"expected an HTTP/1.1 status line, found {lines[0][:80]!r}")
            data = data[end + 4 :]
            if rest.startswith("1"):
                continue
            self._rest = b""
            self._begin(
                version, int(rest[:3]), {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in lines[1:])}
            )
            return data
        if len(data) > _MOST_HEAD_BYTES:
            raise WireError(f"no end of the response's head within {_MOST_HEAD_BYTES} bytes")
        self._rest = data
        return b""

    def _begin(self, version: str, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers
        coding = headers.get("transfer-encoding", "").lower()
        if coding not in ("", "chunked") or headers.get("content-encoding", "identity") != "identity":
            raise WireError(f"an encoding that was not asked for: {coding} {headers.get('content-encoding', '')}")
        self._chunked = bool(coding)
        length = headers.get("content-length")
        if length is not None and not length.isdigit():
            raise WireError(f"Content-Length is {length!r}")
        self._until_close = not self._chunked and length is None and status not in (204, 304)
        self._left = 0 if self._chunked else int(length or 0)
        self.done = not (self._chunked or self._until_close or self._left)
        wish = headers.get("connection", "").lower()
        self.keep = not self._until_close and "close" not in wish and (version != "HTTP/1.0" or "keep-alive" in wish)

    def _chunks(self, data: bytes) -> bytes:
        """Each byte is looked at once, but for a size line that comes in pieces."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, end, out = 0, len(data), []
        if not (self._left or self._after_chunk or self._trailers) and data.endswith(b"\r\n"):
            body_at = data.find(b"\r\n", 0, _MOST_LINE_BYTES) + 2
            if body_at > 2 and 0 < _size(data[: body_at - 2]) == end - body_at - 2:
                return data[body_at:-2]  # mostly a read is one whole chunk
        while at < end and not self.done:
            if self._left:
                out.append(data[at : at + self._left])
                at += len(out[-1])
                self._left -= len(out[-1])
                self._after_chunk = not self._left
                continue
            line_end = data.find(b"\r\n", at, at + _MOST_LINE_BYTES)
            if line_end < 0:
                if end - at >= _MOST_LINE_BYTES:
                    raise WireError(f"no end of line within {_MOST_LINE_BYTES} bytes of a chunk's edge")
                self._rest = data[at:]
                break
            line, at = data[at:line_end], line_end + 2
            if self._after_chunk:
                if line:
                    raise WireError(f"a chunk is longer than it said: {line[:40]!r} follows")
                self._after_chunk = False
            elif self._trailers:
                self.done = not line
            else:
                self._left = _size(line)
                self._trailers = not self._left
        if self.done and at < end:
            raise WireError(f"{end - at} bytes follow the end of the answer")
        return out[0] if len(out) == 1 else b"".join(out)


def _size(line: bytes) -> int:
    digits = line.split(b";")[0].strip()
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise WireError(f"expected the size of a chunk, found {line[:40]!r}")
    return int(digits, 16)
