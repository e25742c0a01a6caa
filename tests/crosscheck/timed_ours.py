r"""Our evaluation of choice items, from the check of the artifact to the grades, with the time that the answers take.

    python -m tests.crosscheck.timed_ours OUT.json --artifact DIR --per-scenario N --threads N --concurrency N \
        --dtype bfloat16

Booting the engine and grading are outside of what is timed; HTTP, tokenising and the forward passes are inside.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

from engine.config import EngineConfig
from pipeline.evaluation.cache import open_cache
from pipeline.evaluation.graders import grader_of
from pipeline.evaluation.items import EVALSETS, Item, load_evalset
from pipeline.evaluation.run import answer_all, judge_all, select
from pipeline.targets.target import bundled

ROOT = Path(__file__).resolve().parents[2]


def choice_items(per_scenario: int) -> list[Item]:
    """The first ``per_scenario`` items of each scenario of the core set whose choices are scored."""
    everything = load_evalset(ROOT / EVALSETS / "core").items
    return select([item for item in everything if grader_of(item).scores_choices], per_scenario)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crosscheck.timed_ours")
    parser.add_argument("out", type=Path)
    parser.add_argument("--artifact", type=Path, required=True)
    for name in ("--per-scenario", "--threads", "--concurrency"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], required=True)
    asked = parser.parse_args()
    items = choice_items(asked.per_scenario)
    config = EngineConfig(compute_dtype=asked.dtype, threads=asked.threads)
    with bundled(asked.artifact, config, asked.out.with_suffix(".server.log")) as who, open_cache(None) as cache:
        began_s = time.monotonic()
        answered = answer_all(items, who, cache, asked.concurrency, lambda: None)
        took_s = time.monotonic() - began_s
    judge_all(answered, lambda: None)
    rows = [
        [a.item.prompt, choice, math.fsum(values)]
        for a in answered
        if a.reply is not None and a.reply.choice_logprobs is not None
        for choice, values in zip(a.item.choices or [], a.reply.choice_logprobs, strict=True)
    ]
    asked.out.write_text(json.dumps({"answering_s": took_s, "loglikelihoods": rows}), encoding="utf-8")


if __name__ == "__main__":
    main()
