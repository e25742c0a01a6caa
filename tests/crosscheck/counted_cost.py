"""What a prompt token and a decode cost in the engine of a source tree, on a clock that only work moves.

    cd TREE; PYTHONPATH=TREE python counted_cost.py ARTIFACT

The tree's own runner computes on a tiny model. What it computes moves the clock by a price a token; what its code waits
moves it too; the machine does not. Prints one line of JSON: ``token_s`` and ``decode_s``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.runner import ModelRunner

FIXED_S, TOKEN_S, DECODE_S = 0.008, 0.0004, 0.001


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def read(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def main() -> None:
    runner = ModelRunner(Path(sys.argv[1]), EngineConfig(threads=1, max_model_len=512, memory_limit_bytes=1 << 26))
    clock, computes = Clock(), runner._execute

    def counted(batch: list[BatchEntry]) -> Any:
        tokens = [len(e.token_ids) for e in batch]
        clock.now_s += FIXED_S + TOKEN_S * sum(n for n in tokens if n > 1) + DECODE_S * sum(n == 1 for n in tokens)
        return computes(batch)

    runner._execute = counted  # type: ignore[method-assign]
    time.monotonic, time.perf_counter, time.sleep = clock.read, clock.read, clock.sleep

    def took_s(count: int, start: int = 0) -> float:
        began = clock.now_s
        runner.execute([BatchEntry("r", list(range(1, count + 1)), start, list(range(20)), "last")])
        return clock.now_s - began

    short, long = took_s(40), took_s(140)
    print(json.dumps({"token_s": (long - short) / 100, "decode_s": took_s(1, 140) - FIXED_S}))


if __name__ == "__main__":
    main()
