"""A foreign tier beside the bundled ones on one page: figures where both have them, gaps by name where one has not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.params import Params
from pipeline.report import figures
from pipeline.report.inputs import read_run
from pipeline.report.page import context_of, render_page
from pipeline.report.sections import all_series
from pipeline.report.servers import gap_lines, servers
from pipeline.report.summary import summarise
from pipeline.report.tiers import all_figures
from tests.pipeline.report import extras, html_checks

Run = tuple[Path, Params]
ENGINE = "foreign vllm 0.11.0 (target vllm)"
WHY = "not measurable here: prompt_logprobs, log-probabilities of the prompt's tokens: the server lacks it: 400"


def _foreign(root: Path) -> None:
    """int8 as another engine leaves it: no memory, no blocks, no choices, metrics under its own names."""
    tier = root / "results/int8"

    def header(v: dict[str, Any]) -> None:
        v["header"]["engine"] = {"name": ENGINE, "digest": "0" * 64}
        v["header"]["engine_derived"] = {"software": {"name": "vllm", "version": "0.11.0", "at": "/version"}}

    def load(v: dict[str, Any]) -> None:
        header(v)
        v["not_comparable"] = {"running_usage": "gaps between tokens that came in one chunk: the server lacks it"}
        stage = {"family": "vllm", "missing": {"prefill_s": "time to the first token: no vllm:request_prefill"}}
        restart = {"words": "the server began anew in the middle of short_burst, 3.0 s into the run (x)"}
        v["server_metrics"] = {"family": "vllm", "stages": {"short_burst": stage}, "restarts": [restart]}

    def evaluation(v: dict[str, Any]) -> None:
        header(v)
        v["not_measurable_by"] = {"prompt_logprobs": {"items": 80, "kinds": ["choice"], "why": WHY}}

    extras.edit(tier / "load/load.json", load)
    extras.edit(tier / "eval/eval.json", evaluation)
    extras.edit(tier / "load/server.json", lambda v: v.update(info=None, info_after=None, metrics_after=None))
    (tier / "plan.json").unlink()
    samples = pl.read_parquet(tier / "load/samples.parquet")
    none = pl.lit(None, pl.Int64)
    samples.with_columns(kv_blocks_used=none, kv_blocks_total=none, rss_bytes=none).write_parquet(
        tier / "load/samples.parquet"
    )


def test_where_only_the_bundled_engine_answered_nothing_is_said(whole_run: Run) -> None:
    assert servers(read_run(*whole_run)) == []


def test_gaps_are_named_with_the_capability_that_is_lacking(run_copy: Run) -> None:
    _foreign(run_copy[0])
    run = read_run(*run_copy)
    found = {s.tier: s for s in servers(run)}
    assert set(found) == set(run.tiers)
    mine = found["int8"]
    assert (mine.foreign, mine.engine, mine.software, mine.metrics) == (True, ENGINE, "vllm 0.11.0", "vllm")
    assert [g.what for g in mine.gaps] == [
        "choice tasks: 80 items skipped",
        "gaps between tokens that came in one chunk",
        "memory: weights, KV pool, resident",
        "parts of the diagnosis",
    ]
    assert mine.gaps[0].why == WHY
    assert {g.why.partition(":")[0] for g in mine.gaps} == {"not measurable here"}
    assert len(mine.restarts) == 1
    assert (found["bf16"].foreign, found["bf16"].gaps) == (False, [])
    assert gap_lines(run)[0] == f"int8: choice tasks: 80 items skipped: {WHY}."


@pytest.mark.parametrize("odd", ["none", ["x"], {"prompt_logprobs": "lost"}, None])
def test_what_another_hand_wrote_is_no_crash(odd: Any, run_copy: Run) -> None:
    _foreign(run_copy[0])
    written = {"eval/eval": ["not_measurable_by", "server"], "load/load": ["not_comparable", "server_metrics"]}
    for name, keys in written.items():
        extras.edit(run_copy[0] / f"results/int8/{name}.json", lambda v, k=keys: v.update(dict.fromkeys(k, odd)))
    assert len(servers(read_run(*run_copy))) == len(read_run(*run_copy).tiers)


def test_one_page_has_both_side_by_side(run_copy: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = '<svg width="1" height="1" viewBox="0 0 1 1"></svg>'
    monkeypatch.setattr(figures.vl_convert, "vegalite_to_svg", lambda spec, **options: empty)
    _foreign(run_copy[0])
    whole = read_run(*run_copy)
    run = replace(whole, tiers={t: whole.tiers[t] for t in ("int8", "bf16")})
    context = context_of(run, summarise(run), all_figures(run), all_series(run), "2026-12-01T12:00:00Z")
    seen = html_checks.read(render_page(context))
    text = " ".join(seen.text.split())
    assert seen.problems == []
    assert set(seen.targets) <= set(seen.ids)
    assert "servers" in seen.ids
    assert f"choice tasks: 80 items skipped ({WHY})" in text
    assert "began anew in the middle of short_burst" in text
    assert text.count(ENGINE) >= 2  # among the servers, and in the four-tuple
