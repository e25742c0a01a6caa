"""Two runs side by side, and the list of judged runs and releases."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import SeatrialError
from pipeline.params import Params
from pipeline.report import figures, history
from pipeline.report.compare import caveats, pair_figures, read_pair, side_of, write_comparison
from pipeline.report.history import Entry
from pipeline.report.inputs import read_run
from pipeline.report.summary import summarise
from pipeline.report.tiers import all_figures
from tests.pipeline.report import extras, html_checks

Run = tuple[Path, Params]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures without content: these tests are about words, and drawing is what takes the time."""
    empty = '<svg width="1" height="1" viewBox="0 0 1 1"></svg>'
    monkeypatch.setattr(figures.vl_convert, "vegalite_to_svg", lambda spec, **options: empty)


def sound(html: str) -> html_checks.Seen:
    seen = html_checks.read(html)
    assert seen.problems == []
    assert seen.loads == []
    assert seen.untitled == 0
    assert seen.unscoped == 0
    assert len(set(seen.ids)) == len(seen.ids)
    assert set(seen.targets) <= set(seen.ids)
    assert seen.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(seen.headings))
    return seen


def test_two_tiers_side_by_side(run_copy: Run) -> None:
    root, params = run_copy
    path = root / write_comparison("bf16", "int8", params, root)
    seen = sound(path.read_text(encoding="utf-8"))
    text = " ".join(seen.text.split())
    assert {r for r in seen.records if not (path.parent / r).exists()} == set()
    assert "Only the quantisation differs: quantisation: bf16 → int8." in text
    assert "McNemar p" in text
    assert "One run of each" in text
    run = read_pair("bf16", "int8", params, root)
    rows = {(f.group, f.name): f for f in pair_figures(all_figures(run), "bf16", "int8")}
    one, two = (json.loads((root / f"results/{t}/load/load.json").read_text()) for t in ("bf16", "int8"))
    p95 = [v["stages"]["short_burst"]["ttft_ms"]["p95"] for v in (one, two)]
    assert rows["short_burst", "TTFT P95"].ratio == f"× {p95[1] / p95[0]:.3f}"
    assert rows["short_burst", "TTFT P95"].judged == "better"
    assert rows["Whole run", "Accuracy"].judged == "worse"
    assert rows["long_context", "TTFT P99"].reason.startswith("37 ")


def test_a_release_and_a_folder_are_sides_too(run_copy: Run) -> None:
    root, params = run_copy
    extras.release(root, faster=0.5)
    (root / "kept").mkdir()
    (root / "results/int8").rename(root / "kept/last")
    text = sound((root / write_comparison(extras.BASELINE, "kept/last", params, root)).read_text("utf-8")).text
    assert "Only the engine differs" in text
    assert "holds percentiles and scores, not the records behind them" in text
    run = read_pair(extras.BASELINE, "kept/last", params, root)
    figures = pair_figures(all_figures(run), extras.BASELINE, "kept/last")
    assert next(f.ratio for f in figures if (f.group, f.name) == ("short_burst", "TTFT P95")) == "× 2.000"


def test_what_must_not_be_compared_is_said(run_copy: Run) -> None:
    root, params = run_copy
    extras.release(root, machine={"cores": 64})
    told = caveats(read_pair(extras.BASELINE, "int8", params, root), extras.BASELINE, "int8")
    assert told[0].startswith("Latency and throughput must not be compared")


def test_what_is_no_run_is_refused(whole_run: Run) -> None:
    with pytest.raises(SeatrialError, match="'absent' is no run: expected a tier"):
        side_of("absent", whole_run[0])
    with pytest.raises(SeatrialError, match="both sides are 'int8'"):
        read_pair("int8", "int8", whole_run[1], whole_run[0])


def test_the_command_says_what_is_wrong(whole_run: Run) -> None:
    command = [sys.executable, "-m", "pipeline.report", "--compare", "bf16", "absent"]
    done = subprocess.run(
        command, cwd=whole_run[0], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 3
    assert "'absent' is no run" in done.stderr


def test_each_verdict_is_kept_once_and_its_page_stands_alone(run_copy: Run) -> None:
    root = run_copy[0]
    page = '<a href="#gates">gates</a> <a href="../results/int8/load/load.json" aria-label="x"><code>load</code></a>'
    for moment, word in (("2026-12-01T10:20:00Z", "ship"), ("2026-12-02T10:20:00Z", "hold")) * 2:
        extras.verdict_as(root, word)  # type: ignore[arg-type]
        extras.edit(root / "reports/verdict.json", lambda v, m=moment: v.update(as_of=m))
        run = read_run(*run_copy)
        assert history.keep(run, summarise(run), all_figures(run), page) is not None
    kept, bad = history.read(root)
    assert [(e.as_of, e.verdict) for e in kept] == [("2026-12-01T10:20:00Z", "ship"), ("2026-12-02T10:20:00Z", "hold")]
    assert bad == []
    copy = (root / history.RUNS / f"{kept[0].id}.html").read_text()
    assert copy == '<a href="#gates">gates</a> <code>load</code>'
    extras.release(root)
    (root / history.RUNS / "torn.json").write_text("{")
    seen = sound((root / history.write_index(root)).read_text("utf-8"))
    text = " ".join(seen.text.split())
    assert set(seen.records) == {f"{e.id}.html" for e in kept}
    assert "2 judged runs, oldest on the left." in text
    assert "2026.48 in service" in text
    assert "torn.json" in text


def test_without_a_verdict_nothing_is_kept(whole_run: Run, tmp_path: Path) -> None:
    run = read_run(tmp_path, whole_run[1])
    assert history.keep(run, summarise(run), all_figures(run), "") is None
    text = sound((tmp_path / history.write_index(tmp_path)).read_text("utf-8")).text
    assert "nothing has been released yet" in text
    assert "None was judged here yet" in text


def test_runs_of_other_machines_are_not_joined_by_a_line() -> None:
    def entry(day: int, series: str) -> Entry:
        return Entry(
            id=str(day),
            as_of=f"2026-12-0{day}T00:00:00Z",
            verdict="ship",
            reason="",
            candidate="int8",
            baseline="none yet",
            policy="p",
            engine="e",
            series=series,
            figures={"accuracy": 0.5 + day / 100, "worst_ttft_p95_ms": None},
        )

    found = history.trends([entry(1, "a"), entry(2, "b"), entry(3, "a")])
    assert [(t.series, t.runs) for t in found] == [("a", 2)]
    rows = {name: (line is None, first, last) for name, line, first, last in found[0].rows}
    assert rows["Accuracy"] == (False, "51.0 %", "53.0 %")
    assert rows["Worst stage's P95 TTFT"] == (True, "not measured", "not measured")
