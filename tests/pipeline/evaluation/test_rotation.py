"""Requests become production items: what is scrubbed, dropped, drawn, retired."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.server import prompt_log
from engine.server.logs import Clock
from engine.server.prompt_log import PromptLog, PromptLogOptions
from engine.server.records import RequestRecord
from pipeline.errors import SeatrialError
from pipeline.evaluation import attribution, outputs, personal, rotation, sets
from pipeline.evaluation.items import content_digest, load_evalset
from pipeline.evaluation.requests import Logged, read_log
from tests.pipeline.evaluation.make import some_items, write_evalset

PLAN = {
    "items_per_week": 8, "weeks_kept": 4, "minimum_share": 0.3, "stale_after_weeks": 2, "waived_until": "2026-W50",
}  # fmt: skip
THINGS = [
    "kettle",
    "bicycle",
    "jacket",
    "lantern",
    "printer",
    "violin",
    "ladder",
    "tent",
    "compass",
    "radio",
    "camera",
    "blanket",
    "saddle",
    "oar",
    "anvil",
]
ASKED = (
    "how do I {} the {} when it is {}", "please explain why my {2} {1} does not {0} any more",
    "where can one {} a {} so {}",
)  # fmt: skip
VERBS, STATES = (
    ["mend", "clean", "return", "hang", "lift", "paint", "sell", "lend", "store", "oil"],
    ["wet", "old", "broken", "new", "cold", "heavy"],
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = write_evalset(Path(), some_items(16))
    path = made / "manifest.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"rotation": PLAN}))
    return made


def request(text: str, scenario: str = "shop", **changes: Any) -> Logged:
    return Logged(**{"where": "log:1", "turns": (("user", text),), "scenario": scenario, "max_tokens": 64,
                     "response": None, **changes})  # fmt: skip


def traffic(seed: int, n: int = 60) -> list[Logged]:
    """Made-up requests of three scenarios and several lengths; every fifth carries personal data."""
    rng = random.Random(seed)
    made = []
    for i in range(n):
        said = " ".join(
            rng.choice(ASKED).format(rng.choice(VERBS), rng.choice(THINGS), rng.choice(STATES))
            for _ in range(rng.choice((1, 2, 6)))
        )
        if i % 5 == 0:
            said += f" Write to me{i}@example.org or ring +49 30 5550 {1000 + i}."
        made.append(request(said, rng.choice(("shop", "repair", "smalltalk"))))
    return made


def test_personal_data_is_scrubbed_before_anything_is_written(folder: Path) -> None:
    rotation.rotate(folder, "2026-W49", traffic(1))
    text = rotation.file_of(folder, "2026-W49").read_text()
    assert "example.org" not in text
    assert "5550" not in text
    assert "[EMAIL]" in text
    for item in load_evalset(folder).items:
        assert [
            f for t in personal.texts_in(item.model_dump(exclude={"week"})) for f in personal.find(t, soft=True)
        ] == []


def test_what_cannot_be_kept_is_counted_by_reason() -> None:
    dropped: Counter[str] = Counter()
    kept = rotation.cleaned(
        [
            request("Mend it"), request("word " * 3000),
            request("Mail jo@example.org and lo@example.org or +49 30 5550 1234"),
            request("Please say how the old lamp by the door is mended."),
        ],
        dropped,
    )  # fmt: skip
    assert [r.text for r in kept] == ["Please say how the old lamp by the door is mended."]
    assert sorted(dropped.values()) == [1, 2]
    assert "little left but placeholders" in dropped


def test_what_scrubbing_does_not_get_rid_of_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(personal, "scrub", lambda text: text)
    dropped: Counter[str] = Counter()
    assert rotation.cleaned([request("Please write to jo@example.org about my lamp.")], dropped) == []
    assert dropped == {"personal data that could not be scrubbed": 1}


def test_repeated_requests_and_items_of_the_set_are_left_out() -> None:
    dropped: Counter[str] = Counter()
    item = some_items(2)[0].model_copy(
        update={"messages": None, "prompt": "How is the tall ladder put up safely at home?"}
    )
    asked = [
        request("How is the tall ladder put up safely at home?"),
        request("Why does my violin sound so thin in winter?"),
        request("Please, why does my violin sound so thin in winter?"),
        request("Where is the nearest anvil to be had?"),
    ]  # fmt: skip
    kept = rotation.unlike(asked, [item], dropped)
    assert [r.text[:5] for r in kept] == ["Why d", "Where"]
    assert sum(dropped.values()) == 2


def test_small_strata_are_not_crowded_out() -> None:
    many = [request(f"common question number {i} about it", "big") for i in range(200)]
    few = [request(f"rare question number {i} about it", "small") for i in range(3)]
    taken = rotation.drawn([*many, *few], 6, random.Random(1))
    assert Counter(r.scenario for r in taken) == {"big": 3, "small": 3}


def test_the_draw_depends_on_week_seed_and_log_alone(folder: Path, tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        target = tmp_path / f"copy{len(texts)}"
        target.mkdir()
        (target / "items").mkdir()
        for path in (folder / "manifest.yaml", *(folder / "items").glob("*.jsonl")):
            (target / path.relative_to(folder)).write_bytes(path.read_bytes())
        rotation.rotate(target, "2026-W49", traffic(1))
        texts.append(rotation.file_of(target, "2026-W49").read_bytes())
    assert texts[0] == texts[1]
    rotation.rotate(folder, "2026-W49", traffic(1), seed=1)
    assert rotation.file_of(folder, "2026-W49").read_bytes() != texts[0]


def test_logged_answers_are_in_the_ledger_of_own_outputs(folder: Path) -> None:
    answer = (
        "Take the oar out of the water, dry it for two days in the shade, sand it lightly and oil it twice with care."
    )
    log = [r for r in traffic(1) if "@" not in r.text]
    log = [Logged(r.where, r.turns, r.scenario, r.max_tokens, answer) for r in log]
    rotation.rotate(folder, "2026-W49", log)
    items = [
        i.model_copy(update={"reference": answer}) if i.origin == "production" else i
        for i in load_evalset(folder).items
    ]
    assert len(outputs.own_outputs(items, outputs.read(outputs.ledgers()))) == PLAN["items_per_week"]


@pytest.mark.parametrize(
    ("week", "n", "message"),
    [
        ("2026-W49", 3, r"of 3 requests are left and 8 are needed"),
        ("2026-W54", 60, "expected an ISO week after"),
    ],
)
def test_a_rotation_that_cannot_be_made_changes_nothing(folder: Path, week: str, n: int, message: str) -> None:
    before = content_digest(folder)
    with pytest.raises(SeatrialError, match=message):
        rotation.rotate(folder, week, traffic(1, n))
    assert content_digest(folder) == before


def test_a_week_is_rotated_once_and_a_set_without_a_plan_never(folder: Path) -> None:
    rotation.rotate(folder, "2026-W49", traffic(1))
    with pytest.raises(SeatrialError, match="expected an ISO week after 2026-W49"):
        rotation.rotate(folder, "2026-W49", traffic(2))
    plain = write_evalset(Path(), some_items(4), "plain")
    with pytest.raises(SeatrialError, match="has no `rotation`"):
        rotation.rotate(plain, "2026-W49", traffic(2))


def test_a_log_of_any_shape_is_read(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi there"}]},
        {"body": {"prompt": "Once upon"}, "scenario": "tales", "response": "a time"},
        {"request": {"messages": [{"role": "user", "content": [{"type": "image"}]}]}},
        {"messages": [{"role": "user", "content": " "}]},
        {"other": 1},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    found, other = read_log(path)
    assert [(r.text, r.scenario, r.response) for r in found] == [
        ("Be kind.\nHi there", "requests", None), ("Once upon", "tales", "a time"),
    ]  # fmt: skip
    assert other == 3
    path.write_text("{}\n[1]\n")
    with pytest.raises(SeatrialError, match=r"log\.jsonl:2: expected a JSON object"):
        read_log(path)


def test_the_engines_log_is_read_as_it_is(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several segments, a conversation among them; what was asked in the week before stays out."""
    monkeypatch.setattr(prompt_log, "CLOSE_S", None)  # a paused machine may take longer
    monday = datetime(2026, 11, 30, tzinfo=UTC)  # of 2026-W49
    log = PromptLog(tmp_path / "asked", PromptLogOptions(share=1.0, max_mib=8 * 4000 / 2**20), lambda n: None)
    for n, r in enumerate(traffic(1)):
        record = RequestRecord("/v1/chat/completions", lambda _: None)
        record.received_s, record.status = n, 200
        record.asked = [{"messages": [{"role": "user", "content": r.text}], "max_tokens": 32}]
        log.note(record, Clock(0.0, monday if n % 3 else monday - timedelta(hours=1)))
    log.close()
    assert len(list(log.path.iterdir())) > 2
    requests, other = read_log(log.path)
    assert (len(requests), other) == (60, 0)
    assert Counter(r.week for r in requests) == {"2026-W48": 20, "2026-W49": 40}
    result = rotation.rotate(folder, "2026-W49", requests)
    assert result.dropped["asked in another week"] == 20
    production = [i for i in load_evalset(folder).items if i.origin == "production"]
    assert [(i.week, i.max_tokens) for i in production] == [("2026-W49", 32)] * PLAN["items_per_week"]
    text = rotation.file_of(folder, "2026-W49").read_text()
    assert "example.org" not in text


def test_a_moment_that_is_none_says_nothing_of_the_week(tmp_path: Path) -> None:
    moments = ["2026-12-07T00:30:00+01:00", "2026-12-07T00:30:00", "yesterday", 7, None, "0001-01-01T00:00:00+10:00"]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"prompt": "Why?", "at": at}) + "\n" for at in moments))
    assert [r.week for r in read_log(path)[0]] == ["2026-W49", None, None, None, None, None]


def test_a_folder_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match=r"has no \*\.jsonl; expected a JSONL file of requests"):
        read_log(tmp_path)
    with pytest.raises(SeatrialError, match="none not found; expected"):
        read_log(tmp_path / "none")


# --- due to the set, due to the model ---------------------------------------------------------------------------


def test_scores_of_different_contents_are_not_compared() -> None:
    with pytest.raises(SeatrialError, match="1 items were asked of one of baseline and candidate only, for instance b"):
        attribution.attribute({"a": 1}, {"a": 1, "b": 0}, {"a": 1})
    with pytest.raises(SeatrialError, match="a result has no items"):
        attribution.attribute({}, {"a": 1}, {"a": 1})


def test_attribution_reads_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rows in (("old", [("a", 1)]), ("new", [("a", 1), ("b", 0)]), ("candidate", [("a", 0), ("b", 0)])):
        (tmp_path / name).mkdir()
        text = "".join(json.dumps({"id": i, "score": s}) + "\n" for i, s in rows)
        (tmp_path / name / "items.jsonl").write_text(text)
    sets.main(["attribute", *(str(tmp_path / n) for n in ("old", "new", "candidate"))])
    assert capsys.readouterr().out.splitlines() == [
        "accuracy changed by -100.0 points: -50.0 due to the set, -50.0 due to the model",
        "by item, on the new content: 1 newly wrong, 0 newly right, of 2",
    ]
    with pytest.raises(SeatrialError, match="expected the folder that the stage evaluate wrote"):
        attribution.scores_of(tmp_path / "none")
