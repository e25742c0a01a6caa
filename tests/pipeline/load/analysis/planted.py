"""Made-up records in which something is planted, and stationary correlated ones in which nothing is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl

from loadtests.records import SCHEMA
from loadtests.simulator.scenario import Scenario
from loadtests.simulator.timing import Timing
from pipeline.load.analysis.signals import Floats, Signal


def correlated(n: int, phi: float, rng: np.random.Generator) -> Floats:
    """A stationary first-order process of unit variance."""
    x = np.empty(n)
    x[0] = rng.standard_normal()
    noise = math.sqrt(1 - phi**2) * rng.standard_normal(n)
    for i in range(1, n):
        x[i] = phi * x[i - 1] + noise[i]
    return x


def stationary(n: int, phi: float, span_s: float, rng: np.random.Generator, spread: float = 0.4) -> Signal:
    """Log-normal latencies around 200 ms at random moments; neighbours have correlation ``phi``."""
    t = np.sort(rng.uniform(0, span_s, n))
    return Signal("ttft", t, 200 * np.exp(spread * correlated(n, phi, rng)), span_s)


def request(i: int, due_s: float, ttft_s: float, gaps_s: list[float], **changes: Any) -> dict[str, Any]:
    times = (due_s + ttft_s + np.concatenate([[0], np.cumsum(gaps_s)])).tolist()
    row: dict[str, Any] = dict.fromkeys(SCHEMA)
    return row | {
        "request_id": f"s-{i}", "stage": "s", "phase": "measured", "seed": 1, "due_s": due_s, "sent_s": due_s,
        "first_byte_s": times[0], "first_token_s": times[0], "end_s": times[-1], "token_times_s": times, "status": "ok",
        "http_status": 200, "finish_reason": "length", "prompt_tokens": 20, "output_tokens": len(times),
        "max_tokens": len(times), "concurrency": 4, "arrival": i,
    } | changes  # fmt: skip


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA)


def served(due_s: Floats, service_s: Floats, stall: tuple[float, float] | None = None, users: int = 0) -> pl.DataFrame:
    """Requests through one server, first come first served, which stands still during ``stall`` (from, to).

    ``users`` > 0: a closed loop of so many users; ``due_s`` then only says when the stage ends.
    """
    rows, free = [], 0.0
    clocks = [0.0] * users
    end_s = float(due_s[-1])
    for i, service in enumerate(service_s):
        if users:
            user = int(np.argmin(clocks))
            due = clocks[user]
            if due >= end_s:
                break
        elif i < len(due_s):
            due = float(due_s[i])
        else:
            break
        start = max(due, free)
        done = start + float(service)
        if stall and start < stall[1] and done > stall[0]:
            done += stall[1] - max(start, stall[0])
        free = done
        rows.append(request(i, due, done - due, [], concurrency=max(users, 1)))
        if users:
            clocks[user] = done
    return frame(rows)


def simulated(scenario: Scenario, due_s: Floats, rng: np.random.Generator, tokens: int = 12) -> pl.DataFrame:
    """What the simulated server's clock makes of requests due then, on that clock itself: delays with a spread of 8 %,
    and its faults of time.
    """
    timing = Timing(scenario)
    rows = []
    for i, due in enumerate(due_s):
        noise = np.exp(0.08 * rng.standard_normal(tokens))
        times = [timing.after(float(due), scenario.ttft_ms / 1000 * noise[0])]
        for n in noise[1:]:
            times.append(timing.after(times[-1], scenario.itl_ms / 1000 * n))
        rows.append(request(i, float(due), times[0] - float(due), np.diff(times).tolist()))
    return frame(rows)
