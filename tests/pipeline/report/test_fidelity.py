"""Divergence beside cost, and advice: what the page says of them, and what it says where they are absent or stale."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from pipeline.params import Params
from pipeline.report import figures
from pipeline.report.advice import advice_of
from pipeline.report.build import build
from pipeline.report.fidelity import Fidelity, fidelity_of, pareto
from pipeline.report.figures import Palette
from pipeline.report.inputs import read_run
from pipeline.report.quality import flips_of
from tests.pipeline.report import extras, html_checks, synthetic

Run = tuple[Path, Params]
LOOKS = Palette(list(synthetic.TIERS))


@pytest.mark.parametrize(
    ("points", "unbeaten"),
    [
        ([], []),
        ([(1.0, 1.0)], [True]),
        ([(3.0, 0.0), (2.0, 0.1), (2.5, 0.2), (1.0, 0.4)], [True, True, False, True]),
        ([(2.0, 0.1), (2.0, 0.2), (3.0, 0.1)], [True, False, False]),
        ([(2.0, 0.1), (2.0, 0.1)], [True, True]),
    ],
)
def test_none_beats_a_pareto_point(points: list[tuple[float, float]], unbeaten: list[bool]) -> None:
    assert pareto(points) == unbeaten


def test_rows_hold_the_records_and_the_evaluation_of_the_same_build(run_copy: Run) -> None:
    extras.fidelity(run_copy[0])
    run = read_run(*run_copy)
    found = fidelity_of(run, LOOKS)
    rows = {r.variant: r for r in found.rows}
    assert list(rows) == ["bf16", "int8", "int8+kv-int8", "awq-int4-g64", "int4-g64"]
    flips = flips_of(run.tiers["bf16"], run.tiers["int8"])
    graded = rows["int8"].graded
    assert flips is not None
    assert graded is not None
    assert (graded.lost, graded.gained) == (len(flips.lost), len(flips.gained))
    assert rows["int8+kv-int8"].graded is None  # nobody evaluated it
    assert [r.variant for r in found.rows if r.pareto] == ["bf16", "int8", "awq-int4-g64", "int4-g64"]
    assert found.kl_of("int8") == 0.021
    assert found.panel is not None
    drawn = ElementTree.fromstring(str(found.panel.svg))
    assert "int4-g64 0.310 at 98.4 MiB, Pareto" in (drawn.findtext("desc") or "")
    assert "int8+kv-int8 0.0220 at 158 MiB;" in (drawn.findtext("desc") or "")


def test_a_record_of_another_artifact_is_left_out_by_name(run_copy: Run) -> None:
    extras.fidelity(run_copy[0])
    folder = run_copy[0] / "reports/fidelity"
    extras.edit(folder / "int8.json", lambda v: v["header"]["quantisation"].update(digest="0" * 64))
    found = fidelity_of(read_run(*run_copy), LOOKS)
    assert found.left_out == ["int8"]
    assert found.kl_of("int8") is None
    for path in folder.glob("*.json"):
        extras.edit(path, lambda v: v["header"]["quantisation"].update(digest="0" * 64))
    none = fidelity_of(read_run(*run_copy), LOOKS)
    assert (none.rows, none.reason) == ([], "every record is of another artifact than this run judged")


def test_what_cannot_be_read_is_a_reason(whole_run: Run, run_copy: Run) -> None:
    absent = fidelity_of(read_run(*whole_run), LOOKS)
    assert absent.reason == "reports/fidelity has no record; run `seatrial fidelity` first"
    extras.fidelity(run_copy[0])
    broken = run_copy[0] / "reports/fidelity/int8.json"
    extras.edit(broken, lambda v: v.pop("greedy"))
    assert "cannot be read (KeyError: 'greedy')" in fidelity_of(read_run(*run_copy), LOOKS).reason
    broken.write_text("{")
    assert "reports/fidelity/int8.json is not a record" in fidelity_of(read_run(*run_copy), LOOKS).reason


def test_advice_cites_files_that_are_there(run_copy: Run) -> None:
    root = run_copy[0]
    extras.fidelity(root)
    run = read_run(*run_copy)
    panel = advice_of(run, fidelity_of(run, LOOKS))
    assert panel.reason == ""
    assert panel.told[0].text.startswith("16 requests of 2048 tokens take")
    for told in panel.told:
        assert told.sources, told.text
        assert all((root / s.name).is_file() for s in told.sources)


def test_where_there_is_no_advice_the_reason_stands(run_copy: Run) -> None:
    root, params = run_copy
    items = root / "results/int8/eval/items.jsonl"
    items.write_text("".join(line + "\n" for line in items.read_text().splitlines()[1:]))
    assert "hold different items" in advice_of(read_run(root, params), Fidelity()).reason
    items.write_text(json.dumps({"id": "x"}) + "\n")
    assert "cannot be read (KeyError: 'score')" in advice_of(read_run(root, params), Fidelity()).reason
    plan = root / "results/bf16/plan.json"
    extras.edit(plan, lambda v: v.pop("shape"))
    assert "the plan of bf16 has no shape" in advice_of(read_run(root, params), Fidelity()).reason
    plan.unlink()
    assert "results/bf16/plan.json does not exist" in advice_of(read_run(root, params), Fidelity()).reason


def test_the_page_shows_both(run_copy: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = '<svg width="1" height="1" viewBox="0 0 1 1"></svg>'
    monkeypatch.setattr(figures.vl_convert, "vegalite_to_svg", lambda spec, **options: empty)
    root, params = run_copy
    extras.fidelity(root)
    extras.edit(
        root / "reports/fidelity/awq-int4-g64.json", lambda v: v["header"]["quantisation"].update(digest="0" * 64)
    )
    build(root, params)
    seen = html_checks.read((root / "reports/scorecard.html").read_text(encoding="utf-8"))
    text = " ".join(seen.text.split())
    assert seen.problems == []
    assert set(seen.targets) <= set(seen.ids)
    assert {r for r in seen.records if not (root / "reports" / unquote(r)).exists()} == set()
    assert "fidelity/int8%2Bkv-int8.json" in seen.records
    assert "Left out, since their records are of other artifacts than this run judged: awq-int4-g64." in text
    assert "16 requests of 2048 tokens take" in text
