"""``python -m tests.chaos --seconds 600 --artifact DIR``: a storm, bounded and on the loopback interface.

Clients that misbehave in every way of ``behaviours.py`` beside clients that do not, whose answers must stay the same
bytes. A fifth of the time is warm-up of the same kind; from the rest on, after everything has settled, neither process
may have grown by more than 2 %. At the end the server gets SIGTERM while it is busy. Prints a JSON summary; exit code 1
if anything was not as it must be, with the reasons.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import string
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from engine.server.logs import SEGMENT_AGE_S
from engine.text import CACHED_WORDS
from tests.chaos import steady
from tests.chaos.behaviours import BEHAVIOURS, MODEL, Sea, Wrong, act, long
from tests.chaos.watched import Watched
from tests.chaos.wire import Closed, connected

WARM_UP_SHARE = 0.2
GROWTH_PERCENT = 2.0
STUCK_S = 240.0  # no machine is so slow
LONG_WORD_CHARS = 250
GRACE_S = 3.0
OPTIONS = {
    "header-timeout-s": 2, "body-timeout-s": 5, "idle-timeout-s": 3, "write-timeout-s": 3, "max-connections": 120,
    "grace-s": GRACE_S,
}  # fmt: skip
CONFIG: dict[str, Any] = {"max_num_seqs": 8, "max_queue": 8, "max_model_len": 512}


class Storm:
    """All clients of one run. ``wrongs`` are the reasons for exit code 1."""

    def __init__(self, sea: Sea, truth: dict[str, steady.Answer]) -> None:
        self.sea, self.truth = sea, truth
        self.outcomes: dict[str, Counter[str]] = {name: Counter() for name in BEHAVIOURS}
        self.steady = Counter[str]()
        self.wrongs: list[str] = []

    async def blow(self, seconds: float, wild: int, calm: int) -> None:
        over = asyncio.Event()
        tasks = [asyncio.create_task(self._wild(over)) for _ in range(wild)]
        tasks += [asyncio.create_task(self._calm(over)) for _ in range(calm)]
        await asyncio.sleep(seconds)
        over.set()
        await asyncio.gather(*tasks)

    async def _wild(self, over: asyncio.Event) -> None:
        names, weights = list(BEHAVIOURS), [w for _, w in BEHAVIOURS.values()]
        while not over.is_set():
            (name,) = self.sea.rng.choices(names, weights)
            try:
                self.outcomes[name][await act(self.sea, name, STUCK_S)] += 1
            except Wrong as e:
                self.outcomes[name]["wrong"] += 1
                self.wrongs.append(f"{name}: {e}")

    async def _calm(self, over: asyncio.Event) -> None:
        while not over.is_set():
            try:
                await steady.sail(self.sea, self.truth, self.steady, over, STUCK_S)
            except Wrong as e:
                self.wrongs.append(f"steady: {e}")


async def undisturbed(sea: Sea) -> dict[str, steady.Answer]:
    """Each answer alone, in both forms and both from a cold and a warm cache: they must agree before any storm."""
    truth: dict[str, steady.Answer] = {}
    for prompt in steady.prompts(sea.max_model_len):
        found = [await steady.once(sea, prompt, stream) for stream in (False, True, False)]
        if isinstance(found[0], float) or any(f != found[0] for f in found):
            raise Wrong(f"undisturbed answers differ: {found}")
        truth[prompt] = found[0]
    return truth


async def fill(sea: Sea) -> None:
    """Fills what is bounded by a number of things, not by time, so that no warm-up is too short for it: the words that
    the tokenizer remembers, each about as long as it takes them."""
    async with connected(sea.port) as wire:
        for _ in range(2 * CACHED_WORDS):
            word = "".join(sea.rng.choices(string.ascii_lowercase, k=LONG_WORD_CHARS))
            await wire.post("/tokenize", {"model": MODEL, "prompt": word})
            status, _, body = await wire.answer()
            if status != 200:
                raise Wrong(f"/tokenize answers {status} before any storm: {body[:300]!r}")


async def sink(server: Watched, sea: Sea, wrongs: list[str]) -> dict[str, Any]:
    """SIGTERM while requests run and wait: each must be finished, aborted with a reason, or refused."""
    ends = Counter[str]()

    async def one(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            async with asyncio.timeout(GRACE_S + STUCK_S), connected(sea.port) as wire:
                await wire.post("/v1/completions", long(sea, stream=True))
                status, _, raw = await wire.answer()
        except OSError:
            ends["refused connection"] += 1
            return
        except (Closed, TimeoutError) as e:
            wrongs.append(f"SIGTERM: a request ended without a word: {e!r}")
            return
        if status != 200:
            ends[str(status)] += 1
            if status not in (429, 503):
                wrongs.append(f"SIGTERM: status {status}: {raw[:300]!r}")
        elif b'"finish_reason":"length"' in raw:
            ends["finished"] += 1
        elif b'"finish_reason":"abort"' in raw and b"shutting down" in raw:
            ends["aborted with a reason"] += 1
        else:
            wrongs.append(f"SIGTERM: a stream that says nothing of its end: {raw[-300:]!r}")

    waves = [asyncio.create_task(one(i * 0.02)) for i in range(40)]  # before and after the signal
    await asyncio.sleep(0.4)
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*waves)
    code = await asyncio.wait_for(asyncio.to_thread(server.process.wait), GRACE_S + STUCK_S)
    if code != 0:
        wrongs.append(f"SIGTERM: exit code {code}, expected 0")
    return {"requests": dict(ends), "exit_code": code, "seconds": round(time.monotonic() - began, 2)}


def check_log(server: Watched, metrics: dict[str, float], wrongs: list[str]) -> dict[str, Any]:
    """Every request is in the log, with how it ended; the server's own log has no traceback."""
    if "Traceback" in (text := server.log()):
        wrongs.append(f"the server's log has a traceback: {text[text.index('Traceback') :][:3000]}")
    rows = server.logged_requests()
    silent = rows.filter(pl.all_horizontal(pl.col("finish_reason", "refusal", "http_status").is_null()))
    if silent.height:
        wrongs.append(f"{silent.height} rows of the request log do not say how the request ended: {silent.row(0)}")
    ended = rows.filter(pl.col("choice").is_not_null()).height
    counted = sum(v for k, v in metrics.items() if k.startswith("request_success_total"))
    if ended < counted:
        wrongs.append(f"{counted:.0f} choices had ended before SIGTERM, the log has only {ended}")
    if lost := sum(v for k, v in metrics.items() if k.startswith("log_rows_lost_total")):
        wrongs.append(f"{lost:.0f} rows of the logs were lost")
    count = {k or "none": n for k, n in sorted(Counter(rows["finish_reason"].to_list()).items(), key=str)}
    refused = {k: n for k, n in Counter(rows["refusal"].drop_nulls().to_list()).items()}
    return {"rows": rows.height, "finish_reasons": count, "refusals": refused}


async def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    config = CONFIG | json.loads(arguments.config_json)
    server = Watched(arguments.artifact, config, OPTIONS, folder)
    try:
        info = await server.start()
        sea = Sea(
            port=server.port,
            rng=random.Random(arguments.seed),
            max_model_len=info["config"]["max_model_len"],
            capacity=config["max_num_seqs"] + config["max_queue"],
            max_connections=int(OPTIONS["max-connections"]),
            header_timeout_s=OPTIONS["header-timeout-s"],
            write_timeout_s=OPTIONS["write-timeout-s"],
        )
        storm = Storm(sea, await undisturbed(sea))
        if not arguments.ignore_growth:
            await fill(sea)
        warm_up_s = WARM_UP_SHARE * arguments.seconds
        quiet_s = 0.0 if arguments.ignore_growth else SEGMENT_AGE_S + 2  # rows of the logs in memory are no growth
        await storm.blow(warm_up_s, arguments.wild, arguments.calm)
        await server.settle(STUCK_S)
        await asyncio.sleep(quiet_s)
        before = await server.footprint()
        await storm.blow(arguments.seconds - warm_up_s, arguments.wild, arguments.calm)
        metrics = await server.settle(STUCK_S)
        await asyncio.sleep(quiet_s)
        after = await server.footprint()
        growth = before.growth(after)
        wrongs = storm.wrongs
        for process, percent in growth.items():
            if percent > GROWTH_PERCENT and not arguments.ignore_growth:
                wrongs.append(f"the {process} grew by {percent:.2f} % from {before} to {after}")
        if more := Counter(after.files) - Counter(before.files):
            wrongs.append(f"the server has more files open than after the warm-up: {dict(more)}")
        if metrics["kv_integrity_errors_total"]:
            wrongs.append(
                f"{metrics['kv_integrity_errors_total']:.0f} idle checks of the KV pool failed; see server.log"
            )
        if not storm.steady["same bytes"]:
            wrongs.append("no well-behaved client was answered")
        end = await sink(server, sea, wrongs)
        logged = check_log(server, metrics, wrongs)
    finally:
        server.close()
    counters = ("num_preemptions_total", "recomputed_tokens_total", "generation_tokens_total", "steps_total",
                "prefix_cache_hits_total", "kv_integrity_errors_total")  # fmt: skip
    return {
        "seconds": arguments.seconds,
        "behaviours": {name: dict(sorted(found.items())) for name, found in storm.outcomes.items()},
        "well_behaved": dict(storm.steady),
        "rss_mib": {
            k: {p: round(getattr(f, f"{p}_bytes") / 2**20, 1) for p in ("server", "core")}
            for k, f in (("after_warm_up", before), ("at_the_end", after))
        },
        "growth_percent": {k: round(v, 2) for k, v in growth.items()},
        "connections_ended": {k.split(".")[1]: v for k, v in metrics.items() if k.startswith("connections_ended")},
        "refused": {k.split(".")[1]: v for k, v in metrics.items() if k.startswith("requests_rejected_total")},
        "engine": {k: metrics[k] for k in counters},
        "request_log": logged,
        "sigterm": end,
        "wrong": {"count": len(wrongs), "first": wrongs[:10]},
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--wild", type=int, default=12, help="clients that misbehave, at a time")
    parser.add_argument("--calm", type=int, default=3, help="clients that do not")
    parser.add_argument("--seed", type=int, default=0, help="of what the clients do")
    parser.add_argument("--config-json", default="{}", help="changes to the engine's config")
    parser.add_argument("--ignore-growth", action="store_true", help="for runs too short to judge memory by")
    parser.add_argument("--keep", type=Path, help="a folder for the server's log and its parquet files")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        summary = asyncio.run(run(arguments, folder))
    print(json.dumps(summary, indent=2))
    return 1 if summary["wrong"]["count"] else 0


if __name__ == "__main__":
    sys.exit(main())
