"""Rules of health on a small sound set: each planted fault is found under its rule, with item and other side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import SeatrialError
from pipeline.evaluation import duplicates, health, leaks, outputs
from pipeline.evaluation.items import Item, Rotation, load_evalset, to_line
from tests.pipeline.evaluation.make import chat_item, choice_item, write_evalset

NOW = "2026-W50"
ANSWER = (
    "Send the parcel back within thirty days in its box, put the printed slip on top, and keep the receipt that the "
    "counter gives you until the money is on your account."
)
REWORDED = (
    "Send the package back within thirty days in its box, lay the printed slip on top, and keep the receipt which the "
    "counter gives you until the money has reached your account."
)
HUMAN = (
    "You have a month. Wrap it well, ask for proof of posting, and remember that we pay for the return only if the "
    "goods were damaged when they arrived at your door."
)
SOUND = [
    chat_item("extract.a", "A customer asks how an unopened parcel goes back. What should we tell them about it?",
              kind="chat", reference=HUMAN),
    chat_item("extract.b", "The lighthouse was built by a mason from the coast. Who built the tall white lighthouse?"),
    chat_item("extract.c", "Three boats left the harbour at dawn and came home at night. When did they come home?"),
    choice_item("choice.d", prompt="The smith put the glowing iron into the cold water because it was"),
]  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failed(items: list[Item], calibration: list[leaks.Text] | None = None, **manifest: Any) -> dict[str, list[str]]:
    folder = write_evalset(Path(), items)
    path = folder / "manifest.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | manifest))
    found = health.checks_of(load_evalset(folder), folder, NOW, calibration or [], [])
    return {c["name"]: c["examples"] for c in found if not c["success"]}


def asks(name: str, question: str, **changes: Any) -> Item:
    return chat_item(name, question, **changes)


def with_one(item: Item) -> list[Item]:
    return [*SOUND, item]


B = "The lighthouse was built by a mason from the coast. Who built the tall white lighthouse?"
PLANTED: dict[str, tuple[list[Item], dict[str, str]]] = {
    "duplicated item": (with_one(asks("extract.x", B)), {"duplicates": "extract.b, extract.x ask the same"}),
    "reworded duplicate": (
        with_one(asks("extract.x", f"By a mason from the coast the lighthouse was built. {B.partition('. ')[2]}")),
        {"near_duplicates": "extract.b and extract.x: reworded"},
    ),
    "solved example asked": (
        with_one(asks("extract.x", "", messages=[
            {"role": "user", "content": B}, {"role": "assistant", "content": "A mason."},
            {"role": "user", "content": "Which colour has the door of the mill?"},
        ])),
        {"leaks_examples": "extract.b is a solved example in the prompt of extract.x"},
    ),
    "mail address": (with_one(asks("extract.x", "Write to jo@example.org?")), {"personal_data": "extract.x: email"}),
    "phone number": (with_one(asks("extract.x", "Ring +49 30 5550 1234?")), {"personal_data": "extract.x: phone"}),
    "credential": (with_one(asks("extract.x", "Use password: hunter2x?")), {"personal_data": "extract.x: credential"}),
    "name in a request": (
        with_one(asks("extract.x", "My name is Odo Brenner, help?", origin="production")),
        {"personal_names": "extract.x: name My n"},
    ),
    "name in an imported item": (
        with_one(asks("extract.x", "Dear Mr. Brenner, when?", origin="imported")),
        {"personal_names_imported": "extract.x: name"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_by_name(project: Path, fault: str) -> None:
    items, expected = PLANTED[fault]
    found = failed(items)
    assert set(found) == set(expected)
    for name, begins in expected.items():
        assert found[name][0].startswith(begins)


def test_the_sound_set_is_sound(project: Path) -> None:
    assert failed(SOUND) == {}


def test_a_calibration_sentence_in_an_item_is_found_with_the_words(project: Path) -> None:
    text = leaks.Text("v1.jsonl:7", leaks.words(f"Once more. {B} Nobody knew."))
    found = failed(SOUND, [text])
    assert set(found) == {"leaks_exact", "leaks_ngram", "leaks_near_duplicate"}
    assert found["leaks_ngram"][0].startswith('extract.b and v1.jsonl:7: "the lighthouse was built by')
    assert found["leaks_near_duplicate"][0] == "extract.b and v1.jsonl:7: passages 73% alike"


def test_declared_corpora_are_looked_through_as_well(project: Path, tmp_path: Path) -> None:
    (tmp_path / "trained.txt").write_text(f"First paragraph.\n\n{B}\n")
    corpora = leaks.corpus_texts(tmp_path / "trained.txt")
    names = {c["name"]: c for c in health.leak_checks(SOUND, [], corpora)}
    assert names["leaks_exact_corpora"]["examples"][0].startswith("extract.b and trained.txt, paragraph 2")
    assert not names["leaks_ngram_corpora"]["success"]
    with pytest.raises(SeatrialError, match=r"none\.txt of evaluation\.corpora not found"):
        leaks.corpus_texts(tmp_path / "none.txt")
    (tmp_path / "trained.csv").write_text("")
    with pytest.raises(SeatrialError, match=r"expected a \.jsonl or a \.txt file"):
        leaks.corpus_texts(tmp_path / "trained.csv")


def test_items_of_a_template_and_questions_on_one_passage_are_no_duplicates() -> None:
    passage = "Wool is washed, carded and spun before it is woven. The mill stands by the river since long ago."
    several = [
        asks("q.1", f"{passage}\nWhere does the old mill stand?", reference="by the river"),
        asks("q.2", f"{passage}\nWhat is done with wool at first?", reference="washed"),
        asks("q.3", "Ada has 12 apples and eats 5. How many has she left?", reference="7"),
        asks("q.4", "Ada has 11 apples and eats 4. How many has she left?", reference="7"),
        asks("q.5", "Write two kind sentences about a rainy day at the seaside.", source="write.two"),
        asks("q.6", "Write two kind sentences about a locked door at the office.", source="write.two"),
    ]
    assert duplicates.exact(several) == duplicates.reworded(several) == []


def test_a_long_frame_around_short_cases_makes_no_duplicates_and_hides_none() -> None:
    frame = (
        "For which of these two cases does the main character, who says I and me and my, do something that is plainly "
        "wrong by the ordinary moral standards of this country as of the year 2020?"
    )
    cases = [
        "I burned the old barn. I fed a stray cat.", "I took coins from a box. I walked home slowly.",
        "I read her private letter. I painted our fence.",
    ]  # fmt: skip
    several = [choice_item(f"choice.{i}", prompt=f"{frame} {case}") for i, case in enumerate(cases)]
    assert duplicates.reworded(several) == []
    again = choice_item("choice.x", prompt=f"{frame} I walked home slowly. I took some coins from a box.")
    assert duplicates.reworded([*several, again]) == ["choice.1 and choice.x: reworded, 73% alike"]


def test_what_stands_twice_in_an_item_is_one_finding() -> None:
    text = "Ring +49 30 5550 1234?"
    twice = asks("extract.x", text, reference=text)
    assert health.personal_data([twice], soft=False) == ["extract.x: phone +49 ... (16 characters)"]


# --- own outputs --------------------------------------------------------------------------------------------------


def evaluated(item: Item, answer: str, at: str) -> outputs.Fingerprint:
    made = outputs.fingerprint(item, answer, "int8 0123", at)
    assert made is not None
    return made


REQUEST = SOUND[0]


@pytest.mark.parametrize("reference", [ANSWER, REWORDED, ANSWER.upper()])
def test_a_reference_that_a_model_wrote_earlier_is_a_hard_failure(project: Path, reference: str) -> None:
    """The question was there with another reference, a model answered it, and its answer became the reference."""
    outputs.remember([evaluated(REQUEST, ANSWER, "2026-11-01T00:00:00Z")])
    taken = REQUEST.model_copy(update={"reference": reference})
    outputs.remember([evaluated(taken, ANSWER, "2026-11-08T00:00:00Z")])  # evaluated again since: no excuse
    found = failed([taken, *SOUND[1:]])
    assert set(found) == {"own_outputs"}
    assert found["own_outputs"][0].startswith(
        "extract.a and the generation of int8 0123 at 2026-11-01T00:00:00Z: the reference is "
    )


def test_an_item_that_models_simply_answer_right_stays(project: Path) -> None:
    """The reference is older than the answers that are like it, even those that come later."""
    written = REQUEST.model_copy(update={"reference": ANSWER})
    outputs.remember([evaluated(written, HUMAN, "2026-11-01T00:00:00Z")])
    outputs.remember([evaluated(written, ANSWER, "2026-11-02T00:00:00Z")])
    changed = written.model_copy(update={"reference": HUMAN})
    outputs.remember([evaluated(changed, ANSWER, "2026-11-03T00:00:00Z")])
    assert failed([written, *SOUND[1:]]) == {}


def test_other_answers_other_questions_and_short_references_are_no_own_outputs(project: Path) -> None:
    outputs.remember([evaluated(REQUEST, ANSWER, "2026-11-01T00:00:00Z")])
    assert failed(SOUND) == {}
    elsewhere = asks(
        "extract.x", "Which way does a damaged and opened crate travel home?", reference=ANSWER, kind="chat"
    )
    short = REQUEST.model_copy(update={"reference": "Send the parcel back within thirty days in its box."})
    assert failed([short, *SOUND[1:], elsewhere]) == {}


def test_the_ledger_is_only_appended_to_and_has_each_output_once(project: Path) -> None:
    first = evaluated(REQUEST, ANSWER, "2026-11-01T00:00:00Z")
    assert outputs.remember([first, first]) == 1
    before = outputs.LEDGER.read_bytes()
    assert outputs.remember([evaluated(REQUEST, ANSWER, "2026-11-09T00:00:00Z")]) == 0
    assert outputs.remember([evaluated(REQUEST, REWORDED, "2026-11-09T00:00:00Z")]) == 1
    after = outputs.LEDGER.read_bytes()
    assert after.startswith(before)
    assert len(after) < 1200, "two generations"
    assert b"parcel" not in after
    outputs.LEDGER.write_bytes(after + b'{"torn')
    assert outputs.remember([evaluated(REQUEST, HUMAN, "2026-11-10T00:00:00Z")]) == 1
    assert len(outputs.read([outputs.LEDGER])) == 3


def test_committed_ledgers_count_and_a_broken_one_is_named(project: Path) -> None:
    outputs.COMMITTED.mkdir(parents=True)
    path = outputs.COMMITTED / "ci.jsonl"
    path.write_text(evaluated(REQUEST, ANSWER, "2026-11-01T00:00:00Z").line())
    assert set(failed([REQUEST.model_copy(update={"reference": ANSWER}), *SOUND[1:]])) == {"own_outputs"}
    path.write_text('{"schema_version": 1}\n')
    with pytest.raises(SeatrialError, match=r"ci\.jsonl:1: not a fingerprint"):
        failed(SOUND)


def test_short_answers_leave_no_fingerprint() -> None:
    assert outputs.fingerprint(REQUEST, "Within thirty days.", "int8", "2026-11-01T00:00:00Z") is None


# --- production requests ------------------------------------------------------------------------------------------

PLAN = Rotation(items_per_week=2, weeks_kept=6, minimum_share=0.25, waived_until="2026-W52")


def production(n: int, week: str) -> Item:
    places = ["the old bridge", "my lost umbrella", "the broken printer", "tomorrow's weather"]
    return asks(f"production.{week.lower()}.{n}", f"Tell me about {places[n]}, please.", origin="production", week=week)


@pytest.mark.parametrize(
    ("requests", "now", "names"),
    [
        ([("2026-W50", 2)], "2026-W50", set()),
        ([("2026-W50", 1)], "2026-W50", {"production_share"}),
        ([("2026-W48", 2)], "2026-W50", set()),
        ([("2026-W47", 2)], "2026-W50", {"production_age"}),
        ([("2026-W52", 2)], "2027-W01", set()),
        ([("2026-W44", 2), ("2026-W50", 2)], "2026-W50", set()),
        ([("2026-W43", 2), ("2026-W50", 2)], "2026-W50", {"production_age"}),
        ([], "2026-W52", set()),
        ([], "2027-W01", {"production_share", "production_age"}),
    ],
)
def test_share_and_age_of_production_requests(
    project: Path, requests: list[tuple[str, int]], now: str, names: set[str]
) -> None:
    items = [*SOUND, *(production(i, week) for week, n in requests for i in range(n))]
    folder = write_evalset(project, items)
    evalset = load_evalset(folder)
    log = [{"version": f"1.{n}.0", "what": f"Rotation: week {n}"} for n in range(PLAN.weeks_kept)]
    evalset = evalset.model_copy(
        update={"manifest": evalset.manifest.model_copy(update={"rotation": PLAN, "changelog": log})}
    )
    checks = health.production_checks(evalset, now)
    assert {c["name"] for c in checks if not c["success"]} == names
    if not requests and not names:
        assert {c["observed"] for c in checks} == {"waived until the first rotation, at the latest until 2026-W52"}


def test_a_set_without_a_rotation_has_no_rule_about_it(project: Path) -> None:
    assert health.production_checks(load_evalset(write_evalset(project, SOUND)), NOW) == []


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda b: b[:-20], r"extract\.jsonl:3: Invalid JSON"),
        (lambda b: b.decode().replace("harbour", "häfen").encode("latin-1"), r"extract\.jsonl:3: Invalid JSON"),
        (lambda b: b.decode().encode("utf-16"), r"extract\.jsonl:1: Invalid JSON"),
    ],
)
def test_truncated_lines_and_other_encodings_are_named(
    project: Path, spoil: Callable[[bytes], bytes], message: str
) -> None:
    folder = write_evalset(project, SOUND)
    path = folder / "items/extract.jsonl"
    path.write_bytes(spoil("".join(map(to_line, SOUND[:3])).encode()))
    with pytest.raises(SeatrialError, match=message):
        load_evalset(folder)
