r"""Our evaluation of some items, from the check of the artifact to the grades, with the time that the answers take.

    python -m tests.crosscheck.timed_ours OUT.json --artifact DIR --per-scenario N --threads N --concurrency N \
        --dtype bfloat16

Booting the engine and grading are outside of what is timed; HTTP, tokenising and the forward passes are inside. Choices
and texts are asked one after the other, so that either has a time of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

from engine.config import EngineConfig
from pipeline.evaluation.cache import open_cache
from pipeline.evaluation.run import Answered, answer_all, judge_all
from pipeline.targets.target import bundled
from tests.crosscheck.speed_items import CHOICES, GENERATED, core_items


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crosscheck.timed_ours")
    parser.add_argument("out", type=Path)
    parser.add_argument("--artifact", type=Path, required=True)
    for name in ("--per-scenario", "--threads", "--concurrency"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], required=True)
    asked = parser.parse_args()
    config = EngineConfig(compute_dtype=asked.dtype, threads=asked.threads)
    seconds: dict[str, float] = {}
    answered: dict[str, list[Answered]] = {}
    with bundled(asked.artifact, config, asked.out.with_suffix(".server.log")) as who, open_cache(None) as cache:
        for kind, items in core_items(asked.per_scenario).items():
            began_s = time.monotonic()
            answered[kind] = answer_all(items, who, cache, asked.concurrency, lambda: None)
            seconds[kind] = time.monotonic() - began_s
    for found in answered.values():
        judge_all(found, lambda: None)
    rows = [
        [a.item.prompt, choice, math.fsum(values)]
        for a in answered[CHOICES]
        if a.reply is not None and a.reply.choice_logprobs is not None
        for choice, values in zip(a.item.choices or [], a.reply.choice_logprobs, strict=True)
    ]
    texts = [[a.item.id, a.reply.text] for a in answered[GENERATED] if a.reply is not None]
    written = {"seconds": seconds, "loglikelihoods": rows, "texts": texts}
    asked.out.write_text(json.dumps(written), encoding="utf-8")


if __name__ == "__main__":
    main()
