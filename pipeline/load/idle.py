"""Some prompts of the run once more, one at a time, on the server that is idle again."""

from __future__ import annotations

import time
from typing import Any

import polars as pl

from loadtests.client import Endpoint, Exchange, StreamClient, encoded
from loadtests.driver import request_body
from loadtests.traffic import prompt_of
from loadtests.workload import Profile
from pipeline.load.analysis.truncation import Pair
from pipeline.load.samples import measured
from pipeline.targets.target import Target

PROMPTS = 8


def chosen(records: pl.DataFrame, count: int) -> list[dict[str, Any]]:
    """Requests that ended well, evenly from all stages, of the half of each that was sent among the most others. Turns
    that follow an answer are left out: their prompt holds what the server said.
    """
    ok = measured(records).filter((pl.col("status") == "ok") & (pl.col("turn").fill_null(0) == 0))
    stages = ok["stage"].unique(maintain_order=True).to_list()
    out: list[dict[str, Any]] = []
    for i, stage in enumerate(stages):
        share = count // len(stages) + (i < count % len(stages))
        busy = ok.filter(pl.col("stage") == stage).sort("concurrency", descending=True, maintain_order=True)
        busy = busy.head(max(busy.height // 2, share)).sort("due_s")
        step = max(busy.height // share, 1) if share else 1
        out += busy.gather_every(step).head(share).to_dicts()
    return out


def sent_again(
    records: pl.DataFrame, profile: Profile, target: Target, *, seed: int, count: int = PROMPTS
) -> list[Pair]:
    """Sends up to ``count`` prompts of the run again, each alone, and pairs the answers. A request that now fails is
    left out: it says nothing of lengths, and the error share of the loaded run stands by itself.
    """
    specs = {s.name: s for s in profile.stages}
    client = StreamClient(Endpoint(target.base_url, target.key.value), profile.timeout_s)
    pairs: list[Pair] = []
    try:
        for row in chosen(records, count):
            prompt = prompt_of(specs[row["stage"]], seed, _index(row))
            exchange = Exchange(
                request_id=f"idle-{row['request_id']}", stage=row["stage"], phase="measured", seed=seed,
                due_s=time.monotonic(), max_tokens=prompt.max_tokens,
            )  # fmt: skip
            body = request_body(profile, target.model_name, prompt.messages, prompt.max_tokens, continuous_usage=False)
            client.send(exchange, encoded(body))
            if exchange.status == "ok":
                pairs.append(paired(row, exchange.row()))
    finally:
        client.close()
    return pairs


def _index(row: dict[str, Any]) -> int:
    """Number of the arrival in its stage; older records have it in the request's id alone."""
    return int(row["arrival"]) if row["arrival"] is not None else int(str(row["request_id"]).rsplit("-", 1)[1])


def paired(loaded: dict[str, Any], idle: dict[str, Any]) -> Pair:
    """Two rows of records of the same prompt."""
    digests = (loaded.get("text_digest"), idle.get("text_digest"))
    return Pair(
        request_id=loaded["request_id"],
        stage=loaded["stage"],
        concurrency=loaded["concurrency"] or 0,
        loaded_tokens=loaded["output_tokens"] or 0,
        idle_tokens=idle["output_tokens"] or 0,
        loaded_finish=loaded["finish_reason"],
        idle_finish=idle["finish_reason"],
        same=None if None in digests else digests[0] == digests[1],
    )
