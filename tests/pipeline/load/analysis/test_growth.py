from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from pipeline.load.analysis.growth import Blocks, Memory, idle_blocks, memory_growth


def metrics(used: float, running: float = 0) -> dict[str, float]:
    return {"seatrial_kv_blocks_used": used, "seatrial_num_requests_running": running}


def test_blocks_that_nobody_gave_back() -> None:
    found = idle_blocks(metrics(3), metrics(17))
    assert found == Blocks(3, 17)
    assert found.leaked == 14


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (None, metrics(0), "no metrics before"),
        (metrics(0), metrics(5, running=2), "not idle after the load: 2 requests"),
        ({"other": 1.0}, metrics(0), "does not report its KV blocks"),
    ],
)
def test_blocks_are_compared_idle_with_idle(before: dict[str, float] | None, after: dict[str, float], why: str) -> None:
    found = idle_blocks(before, after)
    assert isinstance(found, str)
    assert why in found


def rss(values: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame({"t_s": np.arange(len(values), dtype=float), "rss_bytes": values.astype(int)})


def test_a_leak_is_told_from_a_warm_up() -> None:
    t = np.arange(120)
    leak = memory_growth(rss(1e9 + 1e6 * t), 0.0, 120.0)
    assert isinstance(leak, Memory)
    assert leak.leaks
    assert leak.grown_bytes == pytest.approx(90e6, rel=0.02)  # between the middles of the outer quarters
    filled = memory_growth(rss(1e9 + 5e7 * (1 - np.exp(-t / 15))), 0.0, 120.0)
    assert isinstance(filled, Memory)
    assert not filled.leaks
    steady = memory_growth(rss(np.full(120, 1e9)), 0.0, 120.0)
    assert isinstance(steady, Memory)
    assert not steady.leaks
    assert isinstance(memory_growth(rss(np.full(10, 1e9)), 0.0, 10.0), str)
