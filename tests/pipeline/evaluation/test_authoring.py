"""The shipped evalset is what the authoring code writes, and its own answers are right by its own graders."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from pipeline.errors import SeatrialError
from pipeline.evaluation.authoring import SEED, WEEK, documents
from pipeline.evaluation.authoring.__main__ import main
from pipeline.evaluation.authoring.banks.functions import LEVELS
from pipeline.evaluation.authoring.banks.instructions import FORMS
from pipeline.evaluation.authoring.build import SCENARIOS, build, items_of
from pipeline.evaluation.authoring.functions import PINNED
from pipeline.evaluation.graders import Answer, check_item, grade
from pipeline.evaluation.items import Grader, Item, content_digest, load_evalset
from pipeline.evaluation.versions import record

CORE = Path(__file__).resolve().parents[3] / "evalsets" / "core"


def test_the_shipped_items_are_what_the_seed_writes_byte_for_byte(tmp_path: Path) -> None:
    main(["--out", str(tmp_path), "--seed", str(SEED), "--week", WEEK])
    written = {p.name: p.read_bytes() for p in (tmp_path / "items").glob("*.jsonl")}
    shipped = {p.name: p.read_bytes() for p in (CORE / "items").glob("*.jsonl")}
    assert written == shipped
    assert content_digest(tmp_path) == load_evalset(CORE).manifest.content_digest


def test_another_seed_changes_the_written_items_and_not_the_pinned_ones() -> None:
    for scenario in SCENARIOS:
        a, b = items_of(scenario, 1, WEEK), items_of(scenario, 2, WEEK)
        assert [x for x in a if x.origin == "written"] != [x for x in b if x.origin == "written"], scenario.name
        assert [x for x in a if x.origin == "pinned"] == [x for x in b if x.origin == "pinned"], scenario.name


@pytest.mark.parametrize("seed", [SEED, 1, 2, 3, 4, 5])
def test_items_of_any_seed_are_sound(seed: int) -> None:
    items = [item for s in SCENARIOS for item in items_of(s, seed, WEEK)]
    assert len(items) >= 600
    assert len({x.id for x in items}) == len(items)
    asked = Counter((x.prompt, tuple(m.content for m in x.messages or ())) for x in items)
    assert [k for k, n in asked.items() if n > 1] == []
    for item in items:
        check_item(item)
        assert (item.watches_for is not None) == (item.origin == "pinned"), item.id


def test_accepted_answers_pass_and_stand_in_the_text() -> None:
    """What is to be extracted must be there to be extracted; its own answer must pass its own grader."""
    seen = 0
    for item in load_evalset(CORE).items:
        if item.grader.name != "extract.match":
            continue
        seen += 1
        answers = item.reference if isinstance(item.reference, list) else [item.reference]
        assert item.messages is not None
        told = item.messages[1:] if item.scenario == "follow_up_turns" else item.messages[-1:]
        assert answers[0].casefold() in "\n".join(m.content for m in told).casefold(), item.id
        for answer in answers:
            assert grade(item, Answer(text=answer)).correct, (item.id, answer)
        assert not grade(item, Answer(text="I do not know.")).correct, item.id
    assert seen > 150


def test_a_sum_passes_with_its_number_and_not_with_the_next() -> None:
    sums = [i for i in load_evalset(CORE).items if i.kind == "math"]
    assert len(sums) >= 50
    for item in sums:
        assert grade(item, Answer(text=f"The answer is {item.reference}")).correct
        assert not grade(item, Answer(text=f"The answer is {item.reference + 1}")).correct


@pytest.mark.parametrize("f", [*(f for level in LEVELS for f in level), *(f for f, _ in PINNED)], ids=lambda f: f.name)
def test_the_solution_of_a_function_passes_its_asserts_and_an_empty_one_does_not(f) -> None:  # type: ignore[no-untyped-def]
    asserts = "\n".join(f"assert {a}" for a in (f.example, *f.asserts))
    body = "".join(f"    {line}\n" for line in f.solution.split("\n"))
    exec(f"def {f.name}({f.args}):\n{body}\n{asserts}", {})
    with pytest.raises(Exception, match=r".*"):
        exec(f"def {f.name}({f.args}):\n    pass\n{asserts}", {})


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])
def test_a_form_can_be_met_and_can_be_missed(form) -> None:  # type: ignore[no-untyped-def]
    name, _, request, constraints, witness = form
    item = Item(
        id=name, scenario="s", kind="instruct", origin="written", week=WEEK, source=name,
        messages=[{"role": "user", "content": request}],  # type: ignore[list-item]
        grader=Grader(name="instruct.constraints", params={"constraints": constraints}), max_tokens=64,
    )  # fmt: skip
    assert grade(item, Answer(text=witness)).correct
    miss = 'Well, And so, "the ' + "Word and Word, " * 40 + "\n- x. U. V.\n- y\n1. Z\n2. Z\nZ"
    assert not grade(item, Answer(text=miss)).correct


def test_facts_stand_early_middle_and_late_in_a_document() -> None:
    import random

    thirds: dict[str, list[float]] = {p: [] for p in documents.POSITIONS}
    for draft in documents.write(random.Random("positions"), 24):
        assert draft.messages is not None
        text = draft.messages[-1]["content"].rsplit("\n\nQuestion:", 1)[0]
        assert 1800 < len(text) < 4500
        assert draft.reference[0] in text
        thirds[draft.tag].append(text.index(draft.reference[0]) / len(text))
    assert max(thirds["early"]) < 1 / 3
    assert sum(thirds["late"]) / len(thirds["late"]) > sum(thirds["middle"]) / len(thirds["middle"]) > 1 / 3


def test_recording_a_version_needs_new_content_and_a_new_number(tmp_path: Path) -> None:
    folder = tmp_path / "core"
    shutil.copytree(CORE, folder)
    with pytest.raises(SeatrialError, match="nothing to record"):
        record(folder, "3", WEEK, "nothing")
    target = folder / "items" / "small_steps.jsonl"
    target.write_text("\n".join(target.read_text().split("\n")[1:]))
    with pytest.raises(SeatrialError, match=r"version 2\.0\.0 is in the changelog"):
        record(folder, "2.0.0", WEEK, "again")
    main(["--out", str(folder), "--record", "3", "--what", "One sum less", "--week", "2026-W50"])
    manifest = load_evalset(folder).manifest
    assert manifest.version == "3"
    assert manifest.content_digest == content_digest(folder) == manifest.changelog[-1]["content_digest"]
    assert manifest.changelog[-1]["week"] == "2026-W50"
    before = load_evalset(CORE).manifest
    assert manifest.changelog[:-1] == before.changelog
    assert manifest.scenarios["small_steps"]["items"] == before.scenarios["small_steps"]["items"] - 1


def test_recording_needs_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match=r"manifest\.yaml not found"):
        record(tmp_path, "1", WEEK, "first")


def test_files_of_scenarios_that_are_no_more_are_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "items").mkdir()
    (tmp_path / "items" / "old.jsonl").write_text("{}\n")
    main(["--out", str(tmp_path)])
    assert {p.name for p in (tmp_path / "items").iterdir()} == set(build(SEED, WEEK))
    assert "is not the recorded one" in capsys.readouterr().err


def test_the_manifest_says_why_there_is_no_production_traffic() -> None:
    manifest = yaml.safe_load((CORE / "manifest.yaml").read_text())
    assert "roduction" in manifest["description"]
    assert {x.origin for x in load_evalset(CORE).items} == {"written", "pinned"}
