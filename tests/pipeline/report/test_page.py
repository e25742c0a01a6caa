from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.params import Params
from pipeline.report import figures
from pipeline.report.build import build
from pipeline.report.page import LIMIT_BYTES, TEMPLATES
from tests.pipeline.report import html_checks, synthetic

Run = tuple[Path, Params]


def rebuilt(run: Run) -> str:
    build(*run)
    return (run[0] / "reports/scorecard.html").read_text(encoding="utf-8")


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures without content: for tests that are about words, since drawing is what takes the time."""
    empty = '<svg width="1" height="1" viewBox="0 0 1 1"></svg>'
    monkeypatch.setattr(figures.vl_convert, "vegalite_to_svg", lambda spec, **options: empty)


def edit(path: Path, change: Any) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def sound(html: str) -> html_checks.Seen:
    seen = html_checks.read(html)
    assert seen.problems == []
    assert seen.loads == []
    assert seen.handlers == []
    assert "script" not in seen.tags
    assert len(set(seen.ids)) == len(seen.ids)
    assert set(seen.targets) <= set(seen.ids)
    assert len(html.encode()) < LIMIT_BYTES
    return seen


def test_page_is_balanced_loads_nothing_and_is_small(page: str) -> None:
    seen = sound(page)
    assert seen.tags["svg"] > 30
    assert "xmlns" not in page


def test_the_reader_of_these_tests_sees_faults() -> None:
    seen = html_checks.read('<p id="a"><b></p><a href="http://x.example/">x</a><style>@import "y";</style><th>t</th>')
    assert seen.problems
    assert len(seen.loads) == 2
    assert seen.unscoped == 1
    assert html_checks.read('<img src="x" onerror="y()">').handlers == ["img onerror"]
    assert html_checks.read("<svg><path/></svg><svg><title>t</title></svg>").untitled == 1
    for address in ("http://x.example/", "//x.example/a", "javascript:x()", "../../a"):
        assert html_checks.read(f'<a href="{address}">x</a>').loads == [f"a href={address}"]


def test_headings_start_with_one_h1_and_never_skip_a_level(page: str) -> None:
    levels = html_checks.read(page).headings
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_landmarks_and_scopes(page: str) -> None:
    seen = html_checks.read(page)
    assert {"main", "nav", "header", "footer"} <= seen.tags.keys()
    assert seen.unscoped == 0
    assert seen.untitled == 0
    lines = page.count('<svg class="spark"')
    assert lines > 3
    assert seen.tags["title"] == 1 + seen.tags["desc"] + lines  # the page's own, and one for each figure


def test_every_link_to_a_record_leads_to_it(built: Path, page: str) -> None:
    records = set(html_checks.read(page).records)
    assert {"../results/int8/load/load.json", "../results/bf16/eval/items.jsonl", "verdict.json"} <= records
    assert {r for r in records if not (built / "reports" / r).exists()} == set()


def test_hostile_text_is_shown_and_never_markup(page: str) -> None:
    seen = html_checks.read(page)
    assert synthetic.HOSTILE.split("http")[0].strip() in seen.text
    assert "img" not in seen.tags
    assert "<script" not in page.lower()


def test_hostile_names_and_reasons_are_escaped(run_copy: Run) -> None:
    root, _ = run_copy
    bad = '"><script>alert(1)</script>\u2028</style></svg>'

    def change(v: dict[str, Any]) -> None:
        v["reason"] = bad
        v["waivers"] = [{"rule": bad, "reason": bad, "owner": bad, "expires": bad}]
        v["attempts"] = [{"verdict": bad, "as_of": bad}, bad]
        for rule in v["tiers"]["int8"]["rules"]:
            rule.update(title=bad, detail=bad, would_decide=bad, waiver={"reason": bad, "owner": bad, "expires": bad})

    edit(root / "reports/verdict.json", change)
    edit(root / "results/int8/load/server.json", lambda v: v["info"]["derived"].update({bad: bad}))
    for name in ("load.json", "run.json"):
        path = root / "results/int8/load" / name
        path.write_text(path.read_text().replace("mixed_random", json.dumps(bad)[1:-1]), encoding="utf-8")
    records = root / "results/int8/load/records.parquet"
    frame = pl.read_parquet(records)
    frame.with_columns(pl.col("stage").str.replace("mixed_random", bad, literal=True)).write_parquet(records)
    html = rebuilt(run_copy)
    assert "<script" not in html
    assert "alert(1)" in sound(html).text


def test_scenarios_that_can_show_no_loss_are_named(page: str, run_copy: Run, blank_figures: None) -> None:
    assert "1 of 6 scenarios is no evidence that nothing was lost" in html_checks.read(page).text
    assert synthetic.BLIND in html_checks.read(page).text
    edit(run_copy[0] / "results/bf16/eval/eval.json", lambda v: v.update(sees_little={}))
    seen = sound(rebuilt(run_copy))
    assert "Every scenario can show a loss" in seen.text
    assert "hardly show" not in seen.text


@pytest.mark.parametrize(("verdict", "word"), [("ship", "Ship"), ("hold", "Hold"), ("undecided", "Undecided")])
def test_verdict_in_words_shape_and_colour(run_copy: Run, verdict: str, word: str) -> None:
    edit(run_copy[0] / "reports/verdict.json", lambda v: v.update(verdict=verdict))
    for tier in synthetic.TIERS:  # nothing to draw: this is about the first screen
        shutil.rmtree(run_copy[0] / "results" / tier)
    html = rebuilt(run_copy)
    sound(html)
    assert f"<title>{word}: int8" in html
    assert f'<section class="verdict {verdict}"' in html
    assert re.search(rf"<h1>{word} ", html)
    first = html[html.index('<svg class="shape"') :]
    shape = re.search(r"<(circle|path) [^>]*fill=\"currentColor\"", first[: first.index("</svg>")])
    assert shape is not None
    assert {"ship": "circle", "hold": "15.5", "undecided": "M24 1"}[verdict] in shape[0]


def test_a_run_that_left_nothing_still_renders(tmp_path: Path) -> None:
    params = synthetic.params_of(tmp_path)
    html = rebuilt((tmp_path, params))
    text = sound(html).text
    assert "No verdict" in text
    assert "reports/verdict.json does not exist; the stage gate writes it" in text
    assert "not measured" in text
    assert not re.search(r"\b0(\.0)? (ms|tok/s|MiB)\b", text)
    metrics = json.loads((tmp_path / "reports/metrics.json").read_text())
    assert metrics["tiers"]["int8"]["accuracy"] is None


@pytest.mark.parametrize(
    "gone",
    [
        "plan.json",
        "eval/eval.json",
        "eval/items.jsonl",
        "load/load.json",
        "load/run.json",
        "load/server.json",
        "load/records.parquet",
        "load/samples.parquet",
    ],
)
@pytest.mark.usefixtures("blank_figures")
def test_each_missing_file_is_named(tmp_path: Path, whole_run: Run, gone: str) -> None:
    root, params = tmp_path, whole_run[1]
    shutil.copytree(whole_run[0] / "results/int8", root / "results/int8")
    shutil.copytree(whole_run[0] / "reports", root / "reports")
    (root / "results/int8" / gone).unlink()
    text = sound(rebuilt((root, params))).text
    assert f"results/int8/{gone} does not exist" in text


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("results/int8/eval/eval.json", "{"),
        ("results/int8/eval/eval.json", "[]"),
        ("results/int8/eval/items.jsonl", '{"no": "id"}\n'),
        ("results/int8/load/records.parquet", "not parquet"),
        ("results/int8/load/samples.parquet", ""),
        ("reports/verdict.json", '"ship"'),
        ("reports/evalset.json", "\x00"),
    ],
)
def test_a_broken_file_is_named_and_never_fatal(tmp_path: Path, path: str, content: str) -> None:
    params = synthetic.params_of(tmp_path)
    target = tmp_path / path
    target.parent.mkdir(parents=True)
    target.write_text(content)
    text = sound(rebuilt((tmp_path, params))).text
    assert path in text


def test_when_every_request_failed_no_latency_is_shown(tmp_path: Path, whole_run: Run) -> None:
    root, params = tmp_path, whole_run[1]
    shutil.copytree(whole_run[0] / "results/int8", root / "results/int8")
    load = root / "results/int8/load"
    frame = pl.read_parquet(load / "records.parquet")
    none = {c: None for c in ("first_byte_s", "first_token_s", "output_tokens")}
    frame = frame.with_columns(
        [pl.lit(v, dtype=frame.schema[c]).alias(c) for c, v in none.items()]
        + [pl.lit("error").alias("status"), pl.lit([], dtype=frame.schema["token_times_s"]).alias("token_times_s")]
    )
    frame.write_parquet(load / "records.parquet")

    def fail(v: dict[str, Any]) -> None:
        for block in v["stages"].values():
            n = block["requests"]
            block.update(
                ok=0,
                error=n,
                reasons={f"{m}.{q}": f"all {n} failed" for m in ("ttft_ms", "itl_ms") for q in ("p50", "p95", "p99")},
            )
            for metric in ("ttft_ms", "itl_ms", "e2e_ms"):
                block[metric] = {"p50": None, "p95": None, "p99": None}

    edit(load / "load.json", fail)
    html = rebuilt((root, params))
    text = sound(html).text
    assert "all 117 failed" in text
    assert "∞ (failed)" in text
    assert not re.search(r"\b0(\.0+)? ms\b", html)


def test_a_void_load_run_a_busy_host_and_a_partial_evaluation_are_called_so(tmp_path: Path, whole_run: Run) -> None:
    root, params = tmp_path, whole_run[1]
    for part in ("load/load.json", "eval/eval.json"):
        target = root / "results/int8" / part
        target.parent.mkdir(parents=True)
        shutil.copy(whole_run[0] / "results/int8" / part, target)
    host = {"kind": "host", "stage": "short_burst", "metric": None, "size": 12.0, "unit": "%"}
    taken = host | {"found": True, "words": "the host took 12.0 % of the processors' time"}
    little = host | {"found": False, "words": "the host took 0.1 %"}

    def spoil(load: dict[str, Any]) -> None:
        load["client"].update(void=True, void_reason="lag P99 80 ms")
        load["findings"] = [taken, little]

    edit(root / "results/int8/load/load.json", spoil)
    edit(root / "results/int8/eval/eval.json", lambda v: v.update(partial=True))
    text = " ".join(html_checks.read(rebuilt((root, params))).text.split())
    assert "The load run of int8 is void: lag P99 80 ms. Its latency is not evidence." in text
    assert "The evaluation is partial (int8)" in text
    assert "While int8 was under short_burst, the host took 12.0 % of the processors' time." in text
    assert "the host took 0.1 %." not in text


def test_flips_show_both_answers_with_the_words_that_differ(page: str) -> None:
    assert "a plain int8 mistake</ins>" in page
    assert ">right</del>" in page


def test_the_page_says_what_changed_and_where(page: str) -> None:
    text = html_checks.read(page).text
    assert "Only the quantisation differs" in text
    assert "Testcore 2000 x2, 8 GiB, no-gpu" in text
    assert "625 more requests" in text


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _contrast(a: str, b: str) -> float:
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _themes() -> list[dict[str, str]]:
    css = (TEMPLATES / "style.css").read_text()
    blocks = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", b)) for b in re.findall(r":root \{([^}]*)\}", css)[:2]]
    return [blocks[0], blocks[0] | blocks[1]]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast_of_text_and_marks(theme: int) -> None:
    """WCAG 2.2: 4.5 for text, 3 for marks that carry meaning."""
    c = _themes()[theme]
    pairs = [(t, b) for t in ("ink", "soft", "link", "ship", "hold", "undecided") for b in ("paper", "panel", "faint")]
    pairs += [(v, f"{v}-bg") for v in ("ship", "hold", "undecided", "none")] + [("ink", "ins"), ("ink", "del")]
    pairs += [("ink", f"{v}-bg") for v in ("ship", "hold", "undecided", "none")] + [("soft", "undecided-bg")]
    low = {p: round(_contrast(c[p[0]], c[p[1]]), 2) for p in pairs if _contrast(c[p[0]], c[p[1]]) < 4.5}
    assert low == {}
    marks = {i: round(_contrast(c[f"tier-{i}"], c["paper"]), 2) for i in range(8)}
    assert {i: v for i, v in marks.items() if v < 3} == {}


def test_counts_are_whole_and_items_that_could_not_be_graded_are_told(page: str) -> None:
    text = " ".join(html_checks.read(page).text.split())
    assert re.search(r"\d+ of 40", text)
    assert not re.search(r"\d\.0 of 40", text)
    assert "4 items of int8 could not be graded on this machine; they count as wrong." in text


def test_a_foreign_server_without_gauges_or_info(tmp_path: Path, whole_run: Run) -> None:
    root, params = tmp_path, whole_run[1]
    shutil.copytree(whole_run[0] / "results/int8", root / "results/int8")
    load = root / "results/int8/load"
    edit(load / "server.json", lambda v: v.update(info=None, info_after=None))
    frame = pl.read_parquet(load / "samples.parquet")
    gone = [pl.lit(None, dtype=frame.schema[c]).alias(c) for c in frame.columns if c != "t_s"]
    frame.with_columns(gone).write_parquet(load / "samples.parquet")
    text = " ".join(sound(rebuilt((root, params))).text.split())
    assert "Nothing to draw for int8, blocks: the server does not report it." in text


@pytest.mark.usefixtures("blank_figures")
def test_what_was_found_over_time_is_marked_and_every_look_is_listed(run_copy: Run) -> None:
    root = run_copy[0]

    def plant(load: Any) -> None:
        load["findings"] = [
            {"kind": "trend", "stage": "short_burst", "metric": "TTFT P50", "found": True, "words": "+8.0 % over it"},
            {"kind": "step", "stage": "short_burst", "metric": "TTFT P50", "found": False, "words": "no step"},
            {"kind": "memory", "stage": None, "metric": None, "found": None, "words": "no samples"},
        ]
        load["truncation"] = {"found": True, "words": "3 of 30 answers short"}

    assert "Found over time" not in rebuilt(run_copy)
    edit(root / "results/int8/load/load.json", plant)
    text = rebuilt(run_copy)
    sound(text)
    found = text.partition("<caption>Found over time")[2].partition("</table>")[0]
    assert "+8.0 % over it" in found
    assert "3 of 30 answers short" in found
    assert "no step" not in found
    assert "! found" in found
    every = text.partition("<caption>every look over time")[2].partition("</table>")[0]
    assert every.count("<tr>") == 5
    edit(root / "results/int8/load/load.json", lambda load: load["findings"].pop(0) and load.pop("truncation"))
    assert "Stable: no trend" in rebuilt(run_copy)
