from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from loadtests.client import Exchange
from loadtests.live import COLUMNS, Live
from loadtests.quantiles import nearest_rank


def exchanges(n: int = 200) -> list[Exchange]:
    out = []
    for i in range(n):
        e = Exchange(f"s-{i}", "s", "measured", 0, float(i), 4)
        e.status, e.token_times_s = "ok", array("d", [i + 0.01 * (1 + i % 50), i + 0.8, i + 0.8 + 0.001 * (i + 1)])
        out.append(e)
    return out


def test_rows_are_within_a_bucket_of_the_raw_figures() -> None:
    live, all_ = Live(), exchanges()
    for e in all_:
        live.add(e)
    (row,) = live.rows()
    ttft = sorted((e.token_times_s[0] - e.due_s) * 1000 for e in all_)
    itl = sorted((b - a) * 1000 for e in all_ for a, b in pairwise(e.token_times_s))
    for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert row[f"ttft_{name}"] == pytest.approx(nearest_rank(ttft, q), rel=0.021)
        assert row[f"itl_{name}"] == pytest.approx(nearest_rank(itl, q), rel=0.021)
    assert row["itl_max"] == pytest.approx(itl[-1], rel=0.021)
    assert (row["requests"], row["failed"], row["tokens"]) == (200, 0, 600)


def test_parts_add_up_to_the_whole() -> None:
    whole, parts, gathered = Live(), [Live(), Live()], Live()
    for i, e in enumerate(exchanges()):
        whole.add(e)
        parts[i % 2].add(e)
    for part in parts:
        gathered.merge(part.take())
        assert part.take() == {}
    assert gathered.rows() == whole.rows()


def test_failures_are_counted_and_have_no_latency() -> None:
    live = Live()
    for status in ("error", "refused", "abandoned"):
        e = Exchange("x", "s", "measured", 0, 0.0, 4)
        e.status = status  # type: ignore[assignment]
        live.add(e)
    (row,) = live.rows()
    assert (row["requests"], row["failed"], row["ttft_p50"]) == (3, 2, None)
    assert len(live.table().splitlines()) == 2
    assert all(title in live.table() for title in COLUMNS.values())
