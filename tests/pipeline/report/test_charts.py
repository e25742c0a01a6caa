"""Every figure of the whole run, with Altair's schema checks on (the stage itself turns them off for speed)."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from pipeline.params import Params
from pipeline.report import evidence, sections
from pipeline.report.charts import percentiles, tradeoff, ttft_over_time
from pipeline.report.figures import Figure, Palette
from pipeline.report.inputs import read_run
from pipeline.report.tiers import Value, all_figures
from tests.pipeline.report import synthetic


@pytest.fixture(scope="module")
def panels(whole_run: tuple[Path, Params]) -> list[Figure]:
    run = read_run(*whole_run)
    figures, series, palette = all_figures(run), sections.all_series(run), Palette(list(run.tiers))
    found = sections.overview(figures, palette)
    found += sections.tradeoff_panels(figures, palette)
    memory = sections.memory_panel(evidence.memory_rows(run, figures))
    times = sections.time_panel(evidence.stage_notes(run))
    found += [p for p in (sections.scenario_panel(run, palette), memory, times) if p]
    for group in (
        sections.over_time(run, series, palette, "ttft"),
        sections.over_time(run, series, palette, "itl"),
        sections.server_panels(run),
        sections.percentile_panels(run, series, palette),
    ):
        assert group is not None
        assert group.table.rows
        assert all(len(r) == len(group.table.head) for r in group.table.rows)
        found += group.panels
    return found


def test_every_panel_is_drawn_and_is_well_formed(panels: list[Figure]) -> None:
    tiers, stages = len(synthetic.TIERS), len(synthetic.STAGES)
    assert len(panels) == 4 + 2 + 3 + 2 * tiers * stages + 2 * tiers + 2 * stages
    for panel in panels:
        root = ElementTree.fromstring(str(panel.svg))
        assert root.find("title") is not None
        assert (root.findtext("desc") or "").endswith(".")
        assert len(str(panel.svg)) < 60_000


def test_weights_of_a_tiny_model_are_not_drawn_as_none(whole_run: tuple[Path, Params]) -> None:
    found = all_figures(read_run(*whole_run))
    tiny = replace(found["int8"], weights_bytes=Value(287 * 1024))
    panel = sections.overview({"bf16": found["bf16"], "int8": tiny}, Palette(["bf16", "int8"]))[0]
    assert "0.280 MiB" in str(panel.svg)
    assert "269 MiB" in str(panel.svg)


def test_colours_are_variables_so_that_dark_and_print_work(panels: list[Figure]) -> None:
    for panel in panels:
        fixed = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]+|[a-z]+)"', str(panel.svg))) - {"none", "transparent"}
        assert fixed == set()


def test_memory_beside_the_plan_is_the_devices_where_one_computes() -> None:
    def row(device: int | None) -> evidence.MemoryRow:
        held = {"weights_bytes": 400, "kv_pool_bytes": 500, "rss_peak": 3000, "device_reserved_bytes": device}
        plan = {"weights_bytes": 400, "activation_bytes": 50, "kv_pool_bytes": 500}
        planned, measured = ({k: Value(v and v * 2**20) for k, v in part.items()} for part in (plan, held))
        return evidence.MemoryRow("int8", planned, measured)

    def rest(device: int | None) -> float:
        bars, _ = evidence.memory_bars([row(device)])
        return next(b["mib"] for b in bars if b["part"] == "rest")

    assert (rest(None), rest(1000)) == (3000 - 900, 1000 - 900)


def test_a_failed_request_is_a_cross_and_never_a_dot(panels: list[Figure]) -> None:
    [bad] = [p for p in panels if p.title == "TTFT over time, int4-g64, mixed_random"]
    assert "2 of 87 requests failed" in str(bad.svg)
    assert str(bad.svg).count('stroke="var(--hold)"') == 2
    [good] = [p for p in panels if p.title == "TTFT over time, int8, mixed_random"]
    assert "var(--hold)" not in str(good.svg)


def test_a_limit_is_drawn_where_it_fits_and_told_where_not() -> None:
    values = {"a": np.linspace(1, 100, 200)}
    near = percentiles(values, Palette(["a"]), "TTFT", "s", {0.95: 120.0})
    far = percentiles(values, Palette(["a"]), "TTFT", "s", {0.95: 4000.0})
    assert near.note == "P95 limit 120 ms"
    assert far.note == "P95 limit 4,000 ms (beyond the axis)"
    assert str(near.svg).count('stroke="var(--ink)"') == 1
    assert str(far.svg).count('stroke="var(--ink)"') == 0


def test_the_percentiles_of_the_baseline_are_hollow_diamonds() -> None:
    values = {"a": np.linspace(1, 100, 200)}
    figure = percentiles(values, Palette(["a"]), "TTFT", "s", {}, {0.5: 44.0, 0.95: 88.0, 0.999: 99.0})
    assert str(figure.svg).count('stroke="var(--ink)" stroke-width="1.6"') == 2  # P99.9 lies beyond the samples
    assert "Baseline P50 44.0 ms. Baseline P95 88.0 ms." in str(figure.svg)


def test_labels_of_tiers_that_lie_together_stand_apart() -> None:
    rows = [{"tier": t, "x": 100.0 + i, "accuracy": 0.6, "lo": 0.55, "hi": 0.65} for i, t in enumerate("abc")]
    root = ElementTree.fromstring(str(tradeoff(rows, Palette(list("abc")), "t", "MiB").svg))
    heights = [float(g.attrib["transform"].split(",")[1].rstrip(")")) for g in root.iter("text") if g.text in {*"abc"}]
    assert len(heights) == 3
    assert min(abs(a - b) for a, b in itertools.combinations(heights, 2)) > 8


def test_what_was_found_is_drawn_and_described(whole_run: tuple[Path, Params]) -> None:
    run = read_run(*whole_run)
    s = sections.all_series(run)["int8", "short_burst"]
    marks = [{"t": 11.0, "at": True, "what": "step of P50 +38 %"}, {"t": 0.0, "at": False, "what": "trend"}]
    drawn = str(ttft_over_time(s, Palette(["int8"]), 30.0, 500.0, marks).svg)
    assert drawn.count('stroke-dasharray="3,2"') == 1
    assert ">step of P50 +38 %</text>" in drawn
    assert "Found: step of P50 +38 % at 11 s; trend." in drawn


def test_all_failed_draws_no_curve_and_says_so() -> None:
    figure = percentiles({"a": np.full(40, np.inf)}, Palette(["a"]), "TTFT", "s", {})
    assert "not measured" in str(figure.svg)
    assert 'stroke="var(--tier-0)"' not in str(figure.svg)


def test_more_than_eight_tiers_still_have_a_look() -> None:
    palette = Palette([f"t{i}" for i in range(11)])
    assert palette.colour("t8") == palette.colour("t0")
    assert palette.dash("t10") == palette.dash("t2")
