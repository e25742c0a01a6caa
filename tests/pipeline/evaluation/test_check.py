"""Each planted fault must fail the check that is meant for it, with a named example, and leave the others holding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import SeatrialError
from pipeline.evaluation import check, expectations, rotation
from pipeline.evaluation.items import load_evalset
from pipeline.evaluation.versions import record
from pipeline.params import Params, load_params
from tests.pipeline.evaluation.once import computed_once
from tests.pipeline.evaluation.test_rotation import traffic

ROOT = Path(__file__).resolve().parents[3]
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def _once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        computed_once(patch)
        yield


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the shipped evalset and parameters and some of the calibration text, to be spoilt."""
    shutil.copytree(ROOT / "evalsets", tmp_path / "evalsets")
    calibration = tmp_path / "pipeline/quantize/calibration"
    calibration.mkdir(parents=True)
    for path in (ROOT / "pipeline/quantize/calibration").glob("*.jsonl"):
        (calibration / path.name).write_text("\n".join(path.read_text().split("\n")[:3]) + "\n")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def params(project: Path) -> Params:
    return load_params()


def spoil(project: Path, scenario: str, change: Callable[[Rows], Any], *, rerecord: bool = True) -> None:
    """Edits the rows of a scenario; with ``rerecord`` as a new version, so that only the fault itself can be found."""
    path = project / "evalsets/core/items" / f"{scenario}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    if rerecord:
        manifest = project / "evalsets/core/manifest.yaml"
        composition = yaml.safe_load(manifest.read_text())["scenarios"]
        record(project / "evalsets/core", "3", "2026-W49", "planted")
        later = yaml.safe_load(manifest.read_text())
        manifest.write_text(yaml.safe_dump(later | {"scenarios": composition}, sort_keys=False))


def failed(project: Path, params: Params, week: str | None = None) -> dict[str, dict[str, Any]]:
    report = check.examine(project / "evalsets/core", params, week)
    broken = {c["name"]: c for c in report["checks"] if not c["success"]}
    assert report["success"] == (not any(c["blocking"] for c in broken.values()))
    return broken


def test_the_shipped_set_is_sound(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(
        ROOT / "pipeline/quantize/calibration", project / "pipeline/quantize/calibration", dirs_exist_ok=True
    )
    check.main([])
    out, err = capfd.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["check_evalsets"] * 6, "the library must print nothing"
    assert err.count("waived until the first rotation, at the latest until 2027-W08") == 2
    report = json.loads((project / "reports/evalset.json").read_text())
    assert report["success"]
    assert [c["name"] for c in report["checks"] if not c["success"]] == []
    evalset = load_evalset(project / "evalsets/core")
    assert report["evalset"] == {
        "name": "core", "version": "2.0.0", "digest": evalset.manifest.content_digest, "items": len(evalset.items),
    }  # fmt: skip
    assert sum(c["items"] for c in report["composition"].values()) == len(evalset.items)
    pinned = sum(c["pinned"] for c in report["composition"].values())
    assert 0.06 <= pinned / len(evalset.items) <= 0.08
    for c in report["checks"]:
        assert set(c) == {"name", "what", "engine", "success", "blocking", "observed", "expected", "examples"}
        assert c["what"].endswith(".")
    assert {c["engine"] for c in report["checks"]} == {"great_expectations", "seatrial"}
    assert len({c["name"] for c in report["checks"]}) == len(report["checks"])


def set_first(**values: Any) -> Callable[[Rows], Any]:
    return lambda rows: rows[0].update(values)


def say(text: str) -> Callable[[Rows], Any]:
    return lambda rows: rows[0]["messages"][0].update(content=text)


def right_first(rows: Rows) -> None:
    for r in rows:
        r["choices"].insert(0, r["choices"].pop(r["reference"]))
        r["reference"] = 0


def ask_the_example(rows: Rows) -> None:
    rows[0]["messages"][-1]["content"] = rows[0]["messages"][1]["content"]


def slack(rows: Rows) -> None:
    rows[0]["grader"]["params"] = {"slack": 1}


FAULTS: list[tuple[str, str, Callable[[Rows], Any], set[str]]] = [
    ("id twice", "small_steps", lambda rows: rows[1].update(id=rows[0]["id"]), {"unique_ids"}),
    ("id of another scenario", "small_steps", set_first(id="facts-001"), {"ids_name_the_scenario"}),
    ("id of another form", "small_steps", set_first(id="small_steps-1"), {"id_form"}),
    ("item taken out", "small_steps", lambda rows: rows.pop(0), {"composition_items"}),
    ("pinned case made ordinary", "small_steps", lambda rows: rows[-1].update(origin="written"),
     {"composition_pinned", "pinned_in_each"}),
    ("missing pinned case", "small_steps", lambda rows: rows.pop(-1),
     {"composition_items", "composition_pinned", "pinned_in_each"}),
    ("pinned case that says nothing", "small_steps", lambda rows: rows[-1].pop("watches_for"), {"pinned_say_why"}),
    ("pinned case that says little", "small_steps", lambda rows: rows[-1].update(watches_for="bug"),
     {"pinned_in_words"}),
    ("two kinds", "small_steps", set_first(kind="extract"), {"composition_kinds"}),
    ("a kind without a grader", "small_steps", set_first(kind="chat"), {"kinds", "composition_kinds"}),
    ("week 54", "small_steps", set_first(week="2026-W54"), {"week_form", "weeks_not_in_the_future"}),
    ("week to come", "small_steps", set_first(week="2026-W50"), {"weeks_not_in_the_future"}),
    ("unknown grader", "small_steps", set_first(grader={"name": "vibes", "params": {}}), {"graders", "graders_known"}),
    ("unknown parameter", "small_steps", slack, {"graders"}),
    ("imported", "small_steps", set_first(origin="imported"), {"origins"}),
    ("no source", "small_steps", set_first(source=""), {"sources_named"}),
    ("no budget", "small_steps", set_first(max_tokens=0), {"graders", "output_budget"}),
    ("huge budget", "small_steps", set_first(max_tokens=900), {"output_budget"}),
    ("endless prompt", "small_steps", say("word " * 2000), {"prompt_length"}),
    ("asked twice", "small_steps", lambda rows: rows[1].update(messages=rows[0]["messages"]), {"duplicates"}),
    ("a solved example asked", "small_steps", ask_the_example, {"leaks_examples"}),
    ("reference outside", "short_facts", set_first(reference=9), {"choice_reference_high", "graders"}),
    ("reference below", "short_facts", set_first(reference=-1), {"choice_reference_low", "graders"}),
    ("one option", "short_facts", set_first(choices=[" a"], reference=0), {"choice_options", "graders"}),
    ("both forms", "short_facts", set_first(messages=[{"role": "user", "content": "Why?"}]), {"one_form", "graders"}),
    ("right is always first", "short_facts", right_first, {"choice_positions"}),
    ("one source", "small_steps", lambda rows: [r.update(source="steps.all") for r in rows], {"clusters"}),
    ("mail address", "small_steps", say("Ask jo.doe@example.org."), {"personal_data"}),
    ("phone", "policy_answers", say("Ring +49 30 1234 5678."), {"personal_data"}),
    ("card", "policy_answers", say("Pay with 4111 1111 1111 1111."), {"personal_data"}),
    ("account", "policy_answers", say("To DE89 3704 0044 0532 0130 00."), {"personal_data"}),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "change", "names"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_planted_fault_is_found_by_name(
    project: Path, params: Params, scenario: str, change: Callable[[Rows], Any], names: set[str]
) -> None:
    spoil(project, scenario, change)
    found = failed(project, params)
    assert set(found) == names
    for c in found.values():
        assert c["examples"] or c["engine"] == "great_expectations"


def test_examples_name_the_item(project: Path, params: Params) -> None:
    spoil(project, "small_steps", lambda rows: rows[3].update(max_tokens=500))
    examples = failed(project, params)["output_budget"]["examples"]
    assert examples == ["id=small_steps-004, max_tokens=500"]


def test_a_change_without_a_new_version_is_found_and_the_version_named(project: Path, params: Params) -> None:
    spoil(project, "small_steps", lambda rows: rows[0].update(reference=-999), rerecord=False)
    found = failed(project, params)
    assert set(found) == {"version"}
    assert "version 3.0.0" in found["version"]["examples"][0]


def test_a_digest_without_a_changelog_entry_is_found(project: Path, params: Params) -> None:
    path = project / "evalsets/core/manifest.yaml"
    manifest = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(manifest | {"version": "3"}))
    assert "changelog must end with version 3" in failed(project, params)["version"]["examples"][0]
    manifest["changelog"] *= 2
    path.write_text(yaml.safe_dump(manifest))
    assert "version 1 2 times" in failed(project, params)["version"]["examples"][0]


def test_a_question_that_stands_in_the_calibration_text_is_found(project: Path, params: Params) -> None:
    line = (project / "pipeline/quantize/calibration/v1.jsonl").read_text().splitlines()[0]
    text = json.loads(line)["text"]
    spoil(project, "correct_wording", set_first(prompt=text))
    found = failed(project, params)
    assert {"leaks_exact", "leaks_ngram", "leaks_near_duplicate"} <= set(found)
    assert "correct_wording-001 and v1.jsonl:1" in found["leaks_ngram"]["examples"][0]


def test_the_week_that_counts_as_now_is_a_parameter(project: Path, params: Params) -> None:
    assert failed(project, params, "2027-W08") == {}
    assert set(failed(project, params, "2027-W09")) == {"production_share", "production_age"}
    found = failed(project, params, "2026-W48")
    assert set(found) == {"weeks_not_in_the_future"}
    assert found["weeks_not_in_the_future"]["observed"] == 202649
    assert "202648" in found["weeks_not_in_the_future"]["expected"]
    with pytest.raises(SeatrialError, match="--as-of-week is '2026-48'; expected an ISO week"):
        check.examine(project / "evalsets/core", params, "2026-48")


def test_a_broken_line_is_an_error_with_file_and_line(project: Path) -> None:
    path = project / "evalsets/core/items/small_steps.jsonl"
    n = len(path.read_text().splitlines())
    with path.open("a") as f:
        f.write('{"id": \n')
    with pytest.raises(SeatrialError, match=rf"small_steps\.jsonl:{n + 1}: "):
        check.main([])
    assert not (project / "reports/evalset.json").exists()


def test_the_shipped_set_stays_sound_when_it_is_rotated(project: Path, params: Params) -> None:
    rotation.rotate(project / "evalsets/core", "2026-W49", traffic(1))
    assert failed(project, params) == {}
    assert set(failed(project, params, "2026-W52")) == {"production_age"}


def suite(project: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = project / "evalsets/expectations/core.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(expectations=[]), "has no expectations"),
        (lambda s: s["expectations"].append(s["expectations"][0]), "2 expectations are named 'set_size'"),
        (lambda s: s["expectations"][0]["meta"].update(frame="rows"), "unknown frame 'rows'; there are items, choice"),
        (lambda s: s["expectations"][0]["meta"].update(sure=True), r"expectations\.0\.meta\.sure"),
        (lambda s: s["expectations"][0].update(type="expect_the_best"), "Great Expectations does not know"),
        (lambda s: s["expectations"][0].update(kwargs={"min": 3}), "Great Expectations does not know"),
    ],
)
def test_a_suite_that_cannot_be_run_is_an_error(
    project: Path, params: Params, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    suite(project, change)
    with pytest.raises(SeatrialError, match=message):
        check.examine(project / "evalsets/core", params)


def test_without_a_suite_there_is_no_check(project: Path, params: Params) -> None:
    (project / "evalsets/expectations/core.json").unlink()
    with pytest.raises(SeatrialError, match=r"expectations/core\.json not found"):
        check.examine(project / "evalsets/core", params)


def test_what_cannot_be_computed_has_failed(project: Path, params: Params) -> None:
    suite(project, lambda s: s["expectations"][1]["kwargs"].update(column="name"))
    example = failed(project, params)["unique_ids"]["examples"][0]
    assert example.startswith("could not be computed")


def test_an_empty_table_is_no_pass(project: Path, params: Params) -> None:
    for path in (project / "evalsets/core/items").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(r) + "\n" for r in rows if r["origin"] != "pinned"))
    found = failed(project, params)
    assert found["pinned_say_why"]["examples"] == ["the table pinned has no rows"]


@pytest.mark.parametrize(("n", "points"), [(240, 5.7), (600, 3.6), (7800, 1.0)])
def test_sensitivity_is_that_of_the_design(n: int, points: float) -> None:
    assert check.sensitivity(n, n)["detectable_points_at_10pct_disagreement"] == pytest.approx(points, abs=0.06)
    few = check.sensitivity(n, n // 4)
    assert few["detectable_points_at_10pct_disagreement"] == pytest.approx(points, abs=0.06)
    assert few["detectable_points_if_sources_flip_whole"] == pytest.approx(2 * points, abs=0.12)


def test_sensitivity_holds_in_a_simulation() -> None:
    """At the stated loss, four of five simulated comparisons have an interval that excludes zero."""
    import numpy as np

    n, rng = 400, np.random.default_rng(7)
    loss = check.sensitivity(n, n)["detectable_points_at_10pct_disagreement"] / 100
    worse, better = (0.10 + loss) / 2, (0.10 - loss) / 2
    counts = rng.multinomial(n, [worse, better, 0.9], size=20_000)
    mean = (counts[:, 0] - counts[:, 1]) / n
    half = 1.96 * np.sqrt((counts[:, 0] + counts[:, 1]) / n / n - mean**2 / n)
    assert np.mean(mean - half > 0) == pytest.approx(0.8, abs=0.03)


def test_rows_put_the_manifest_beside_what_is_there(project: Path) -> None:
    rows = expectations.rows_of(load_evalset(project / "evalsets/core"))
    assert {r["id"] for r in rows["scenarios"]} == {r["scenario"] for r in rows["items"]}
    assert len(rows["choice"]) + len(rows["generated"]) == len(rows["items"])
    assert expectations.week_number("2026-W05") == 202605
