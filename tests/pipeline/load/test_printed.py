from __future__ import annotations

from typing import Any

from pipeline.load.analysis.findings import Finding
from pipeline.load.figures import FIGURES, definitions
from pipeline.load.printed import lines
from tests.pipeline.load.test_summary import failed, figures, row


def load(rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "stages": {"s": figures(rows, goodput={"ttft_ms": 500, "tpot_ms": 100})},
        "definitions": definitions(),
        "findings": [
            Finding("trend", "s", "TTFT P50", True, "+8.0 % over the stage", 8.0, "%").json(),
            Finding("step", "s", "TTFT P50", False, "no step").json(),
            Finding("memory", "s", None, None, "no samples").json(),
        ],
        "truncation": {"found": True, "words": "3 of 30 answers short"},
    } | changes


def test_each_figure_is_printed_with_its_interval_and_its_definition() -> None:
    text = "\n".join(lines(load([row(i, due=float(i), ttft=0.1 + 0.001 * (i * 37 % 120)) for i in range(120)])))
    assert "s: 120 requests, 0 not ok, 3 output and 10 prompt tokens/s" in text
    assert "P95 213 ms [208 to 218]" in text
    for metric in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        assert FIGURES[metric].formula in text
    assert "! s, TTFT P50, trend: +8.0 % over the stage" in text
    assert "3 looks, 1 found nothing (load.json says what they would have seen), 1 could not tell" in text
    assert "! truncation: 3 of 30 answers short" in text


def test_all_failed_prints_no_latency_and_why() -> None:
    text = "\n".join(lines(load([failed(i) for i in range(30)])))
    assert "P50 none (all 30 failed)" in text
    assert " 0 ms" not in text
    assert "error share 100.0% [88.4% to 100.0%]" in text


def test_an_open_end_says_so() -> None:
    text = "\n".join(lines(load([row(i, due=float(i), ttft=0.1 + 0.001 * (i * 7 % 30)) for i in range(30)])))
    assert "P95 128 ms [125 to open]" in text
    assert "P99 none (30 samples; a P99 needs at least 100)" in text
