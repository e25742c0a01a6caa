"""Server-sent events from raw reads.

Works on bytes and looks at each byte once, so a character split across reads is nothing special and the cost is
linear in the reply. (WHATWG HTML, section 9.2.6, "Interpreting an event stream".)
"""

from __future__ import annotations


class SseReader:
    """Feed it what was read from the socket, in pieces of any size; it returns the data of each complete event."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # pieces of the line that has not ended yet
        self._data: list[bytes] = []  # data lines of the event that has not ended yet
        self._after_cr = False  # the last read ended in CR: a leading LF belongs to it

    def feed(self, read: bytes) -> list[bytes]:
        """Data fields of the events that ``read`` completes; several data lines of one event are joined by LF."""
        if self._after_cr and read.startswith(b"\n"):
            read = read[1:]
            self._after_cr = False
        events: list[bytes] = []
        if not read:
            return events
        if self._whole_event(read):
            return [read[6:-2]]
        self._after_cr = read.endswith(b"\r")
        for line in read.splitlines(keepends=True):
            if not line.endswith((b"\n", b"\r")):
                self._partial.append(line)
                continue
            if self._partial:
                self._partial.append(line)
                line = b"".join(self._partial)
                self._partial.clear()
            line = line.rstrip(b"\r\n")
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data.clear()
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        return events

    def _whole_event(self, read: bytes) -> bool:
        """Whether the read is one event of one line: what most servers write for a token, and cheap to tell."""
        return (
            read.endswith(b"\n\n")
            and read.startswith(b"data: ")
            and read.find(b"\n") == len(read) - 2
            and b"\r" not in read
            and not self._partial
            and not self._data
        )
