"""From answers to a blinded form, and from raters' files to agreement and a difference with its interval."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SeatrialError
from pipeline.evaluation.review import __main__ as command
from pipeline.evaluation.review.rubric import RUBRIC
from pipeline.evaluation.review.sample import draw, read_answers

SCENARIOS = ("support", "letters", "chat")


def write_results(folder: Path, who: str, n: int = 12) -> Path:
    """Answers to ``n`` items of each scenario; every sixth is the same for all releases, "chat" is for people."""
    folder.mkdir(parents=True)
    rows = [
        {
            "id": f"{s}-{i}", "scenario": s, "prompt_text": f"<b>Question {i}</b> of {s}?", "choice_logprobs": None,
            "answer": f"Same {s} {i}." if i % 6 == 0 else f"{who} on {s} {i}.\nSecond line, \"quoted\".",
            "grader": "people.rubric@1" if s == "chat" else "extract.match@1",
        }
        for s in SCENARIOS for i in range(n)
    ]  # fmt: skip
    rows.append({**rows[0], "id": "choice-1", "answer": "0: x", "choice_logprobs": [-1.0, -2.0]})
    for name, mine in (("people", rows[2 * n : 3 * n]), ("items", rows[: 2 * n] + rows[3 * n :])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in mine))
    head = {part: {"name": f"{part} of {who}", "digest": f"{part}-{who}"} for part in ("model", "engine")}
    head["quantisation"] = {"name": folder.parent.name, "digest": who}
    (folder / "eval.json").write_text(json.dumps({"header": head}))
    return folder


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    new, old = write_results(Path("results/int8/eval"), "new"), write_results(Path("results/bf16/eval"), "old")
    out = Path("sample")
    command.main(["sample", "--candidate", str(new), "--baseline", str(old), "--items", "18", "--out", str(out)])
    return out


def form(sample: Path) -> list[dict[str, str]]:
    with (sample / "form.csv").open(encoding="utf-8-sig", newline="") as f:
        return list(csv.DictReader(f))


def rate(sample: Path, name: str, rating: Any) -> Path:
    """A rater's file; ``rating(answer, criterion)`` gives a value or ''."""
    path = Path(name)
    with path.open("w", encoding="utf-8", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["line", *(c.name for c in RUBRIC), "comment"])
        for row in form(sample):
            writer.writerow([row["line"], *(rating(row["answer"], c.name) for c in RUBRIC), "fine, thanks"])
    return path


def test_both_releases_answer_every_drawn_item_and_scenarios_have_equal_shares(sample: Path) -> None:
    key = json.loads((sample / "key.json").read_text())
    of = [(x["item"], who) for x in key["lines"] for who in x["of"]]
    assert len(of) == len(set(of)) == 36
    assert Counter(i.partition("-")[0] for i, who in of if who == "candidate") == dict.fromkeys(SCENARIOS, 6)
    assert "choice-1" not in {i for i, _ in of}


def test_raters_see_no_name_and_equal_answers_once(sample: Path) -> None:
    key = json.loads((sample / "key.json").read_text())
    shared = [x for x in key["lines"] if len(x["of"]) == 2]
    assert len(key["lines"]) == 36 - len(shared)
    page = (sample / "form.html").read_text()
    for hidden in ("candidate", "baseline", "int8", "bf16", *(x["item"] for x in key["lines"])):
        assert hidden not in page
        assert hidden not in (sample / "form.csv").read_text()
    firsts = Counter(x["of"][0] for x in key["lines"][:18])
    assert len(firsts) == 2, "lines of one release must not stand together"


def test_the_page_needs_no_network_and_escapes_what_models_say(sample: Path) -> None:
    page = (sample / "form.html").read_text()
    assert "http" not in page
    assert "<b>Question" not in page
    assert "&lt;b&gt;Question" in page
    assert page.count('type="radio"') == len(form(sample)) * len(RUBRIC) * 5
    for c in RUBRIC:
        assert all(text in page for text in c.anchors.values())


def test_agreeing_raters_find_the_difference(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def kind(answer: str, criterion: str) -> int:
        return {"new": 2, "old": 4}.get(answer[:3], 3) + (criterion == "clarity")

    files = [rate(sample, "one.csv", kind), rate(sample, "two.csv", kind)]
    command.main(["import", str(sample), *map(str, files)])
    said = capsys.readouterr().out
    report = json.loads(Path("reports/review.json").read_text())
    assert (report["raters"], report["candidate"], report["baseline"]) == (2, "int8", "bf16")
    assert report["build"] == {
        "model": {"name": "model of new", "digest": "model-new"},
        "engine": {"name": "engine of new", "digest": "engine-new"},
        "quantisation": {"name": "int8", "digest": "new"},
    }
    for found in report["criteria"].values():
        same = sum(i % 6 == 0 for i in range(12))
        assert found["alpha"] == 1
        assert found["items"] == 18
        assert found["problem"] is None
        assert -2 <= found["difference"] <= -2 + 2 * same * 3 / 18
        low, high = found["interval"]
        assert low < found["difference"] < high < 0
    assert "alpha 1.00" in said


def test_raters_who_disagree_are_not_used(sample: Path) -> None:
    rng = random.Random(3)
    files = [rate(sample, f"{n}.csv", lambda *_: rng.randint(1, 5)) for n in range(3)]
    command.main(["import", str(sample), *map(str, files)])
    for found in json.loads(Path("reports/review.json").read_text())["criteria"].values():
        assert found["alpha"] < 0.5
        assert "raters do not agree" in found["problem"]


def test_one_rater_or_few_items_prove_nothing(sample: Path) -> None:
    one = rate(sample, "one.csv", lambda answer, _: 4 if answer.startswith("new") else 3)
    command.main(["import", str(sample), str(one)])
    for found in json.loads(Path("reports/review.json").read_text())["criteria"].values():
        assert found["alpha"] is None
        assert "agreement is not defined" in found["problem"]
    few = rate(sample, "few.csv", lambda answer, _: 4 if " 1." in answer else "")
    command.main(["import", str(sample), str(few), str(few)])
    for found in json.loads(Path("reports/review.json").read_text())["criteria"].values():
        assert "are needed" in found["problem"]
        assert found["interval"] is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("line,clarity\n001,3\n", "has no column completeness, faithfulness"),
        ("line,clarity,faithfulness,completeness\n999,3,3,3\n", "line 999 is not in the sample"),
        ("line,clarity,faithfulness,completeness\n1,3,3,3\n001,3,3,3\n", "line 001 is there twice"),
        ("line,clarity,faithfulness,completeness\n001,6,3,3\n", "clarity is '6'; expected 1 to 5 or nothing"),
        ("line,clarity,faithfulness,completeness\n001,good,3,3\n", "clarity is 'good'"),
    ],
)
def test_a_file_that_is_no_rating_is_named(sample: Path, content: str, message: str) -> None:
    Path("bad.csv").write_text(content)
    with pytest.raises(SeatrialError, match=message):
        command.main(["import", str(sample), "bad.csv"])


def test_another_rubric_and_an_old_folder_are_refused(sample: Path) -> None:
    again = ["sample", "--candidate", "results/int8/eval", "--baseline", "results/bf16/eval", "--out", "sample"]
    with pytest.raises(SeatrialError, match="sample exists; ratings may refer to it"):
        command.main(again)
    key = json.loads((sample / "key.json").read_text())
    (sample / "key.json").write_text(json.dumps({**key, "rubric": "0"}))
    with pytest.raises(SeatrialError, match="is for version 0 of the rubric"):
        command.main(["import", str(sample), "none.csv"])
    with pytest.raises(SeatrialError, match="expected results/TIER/eval"):
        read_answers(Path("nowhere"))


def test_answers_for_people_are_drawn_before_others_of_their_scenario(sample: Path) -> None:
    a = read_answers(Path("results/int8/eval"))
    mixed = {k: {**r, "scenario": "one"} for k, r in a.items()}
    assert {i.partition("-")[0] for i in draw(mixed, mixed, 12, random.Random(1))} == {"chat"}
