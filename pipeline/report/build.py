"""Writes everything the scorecard stage owes from one reading of the run."""

from __future__ import annotations

from pathlib import Path

from altair.utils.schemapi import debug_mode

from pipeline.files import atomic_write, write_json
from pipeline.params import Params
from pipeline.provenance import utc_now
from pipeline.report import history
from pipeline.report.inputs import read_run
from pipeline.report.markdown import markdown
from pipeline.report.metrics import metrics_of
from pipeline.report.page import context_of, render_page
from pipeline.report.plots import rows_of, write_plots
from pipeline.report.sections import all_series
from pipeline.report.summary import Summary, summarise
from pipeline.report.tiers import all_figures


def build(root: Path, params: Params) -> Summary:
    """Reads the run below ``root`` and writes ``reports/``: scorecard.html, summary.md, metrics.json, plots/*.csv.

    A copy of the page is kept in ``.seatrial/runs`` beside those of earlier verdicts, with an index of them.
    """
    run = read_run(root, params)
    figures, series, summary = all_figures(run), all_series(run), summarise(run)
    reports = root / "reports"
    write_json(reports / "metrics.json", metrics_of(run, figures))
    write_plots(reports / "plots", rows_of(run, figures, series))
    atomic_write(reports / "summary.md", markdown(run, summary, figures))
    # Checking each row of data against the Vega-Lite schema takes longer than drawing it; the tests do it.
    with debug_mode(False):
        context = context_of(run, summary, figures, series, utc_now())
    html = render_page(context)
    atomic_write(reports / "scorecard.html", html)
    if history.keep(run, summary, figures, html):
        history.write_index(root)
    return summary
