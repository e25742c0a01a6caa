"""The driver's side of the protocol: lines in, lines out, and nothing else on standard output."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any

Work = Callable[[dict[str, Any]], dict[str, Any]]


def run(load: Callable[[], tuple[dict[str, Any], Work]]) -> None:
    """``load`` gives what is said of the engine and what answers a line; both may raise, which is reported."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes where it does no harm

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message, separators=(",", ":")) + "\n")
        out.flush()

    try:
        about, work = load()
    except Exception as e:
        say({"error": _words(e)})
        return
    gc.collect()
    gc.freeze()
    say({"ready": True, **about})
    for line in sys.stdin:
        try:
            say(work(json.loads(line)))
        except Exception as e:
            say({"error": _words(e)})


def _words(error: Exception) -> str:
    return " ".join((str(error) or repr(error)).split())
