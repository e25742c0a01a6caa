from __future__ import annotations

import subprocess
import sys

import pytest

from engine import memory
from engine.memory import give_back, status_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="proc_pid_status(5)")


def test_a_peak_is_no_less_than_what_is_there() -> None:
    held = bytearray(64 * 2**20)
    now, peak = status_bytes("VmRSS"), status_bytes("VmHWM")
    assert now is not None
    assert peak is not None
    assert len(held) < now <= peak


def test_what_is_not_said_is_none() -> None:
    assert status_bytes("VmNothing") is None
    assert status_bytes("VmRSS", pid=2**30) is None


@pytest.mark.skipif(memory._trim is None, reason="not the GNU C library")
def test_freed_pieces_go_back() -> None:
    """Pieces too small to have pages of their own, with one at the end that keeps the heap from shrinking by itself."""
    pieces = [bytes(2000) for _ in range(60_000)]
    last = bytes(2000)
    full = status_bytes("RssAnon")
    del pieces
    give_back()
    left = status_bytes("RssAnon")
    assert last
    assert full is not None
    assert left is not None
    assert left < full - 60 * 2**20


_BURST = """
import threading
from engine.memory import stay_compact, status_bytes
{call}
before = status_bytes("RssAnon")
later = []  # what lives on above the pieces: without it the C library may give the top of its heap back by itself
def burst():
    for size in (2**20, 200_000):  # the first to be freed makes the C library keep the second, unless told otherwise
        pieces = [bytearray(size) for _ in range(40)]
        later.append(bytearray(1000))
        del pieces
threads = [threading.Thread(target=burst) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print(status_bytes("RssAnon") - before)
"""


@pytest.mark.skipif(memory._trim is None, reason="not the GNU C library")
def test_a_compact_process_keeps_nothing_of_large_pieces() -> None:
    def kept_bytes(call: str) -> int:
        script = [sys.executable, "-c", _BURST.format(call=call)]
        return int(subprocess.run(script, capture_output=True, text=True, check=True, timeout=240).stdout)

    assert kept_bytes("stay_compact()") < 2**20
    # What the C library does by itself is for it to say: one of several goes shows that there is something to keep.
    assert any(kept_bytes("") > 2**20 for _ in range(10))
