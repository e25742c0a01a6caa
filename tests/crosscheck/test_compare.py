"""That the cross-check sees what is wrong, on runs whose truth is known, and that its task files are sound."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import SeatrialError
from tests.crosscheck import lm_eval
from tests.crosscheck.compare import Row, Run, lower_precision, read_run, same
from tests.crosscheck.environment import Environment

CHOICE, PASSAGES, ANSWERS = "seatrial_choice", "seatrial_passages", "seatrial_answers"
BASE = Run(
    "base",
    {(CHOICE, "one", 0): -1.0, (CHOICE, "one", 1): -2.0, (CHOICE, "two", 0): -3.0, (PASSAGES, "p", 0): -40.0},
    {(CHOICE, "acc", "one"): 1.0, (CHOICE, "acc", "two"): 0.0, (CHOICE, "greedy", "one/0"): 1.0},
    {(ANSWERS, "a"): " aye"},
)


def changed(name: str = "found", by: float = 0.0, **values: Any) -> Run:
    """The base with some log-likelihoods moved ``by`` so much, and with other values where given."""
    loglikelihoods = {key: value + by for key, value in BASE.loglikelihoods.items()}
    return Run(
        name,
        loglikelihoods | values.get("loglikelihoods", {}),
        BASE.right | values.get("right", {}),
        BASE.texts | values.get("texts", {}),
    )


def broken(rows: list[Row]) -> list[str]:
    return [row.what for row in rows if row.passed is False]


def test_equal_runs_are_the_same() -> None:
    rows = same(changed(), BASE)
    assert broken(rows) == []
    assert all(row.passed for row in rows)
    assert broken(same(changed(), BASE, bound=0)) == []
    assert broken(same(changed(by=0.9e-3), BASE)) == []


def test_one_wrong_log_likelihood_is_seen() -> None:
    wrong = changed(loglikelihoods={(PASSAGES, "p", 0): -40.0011})
    rows = same(wrong, BASE)
    assert broken(rows) == ["found against base: largest difference of 4 log-likelihoods"]
    assert rows[0].value == "1.10e-03 (seatrial_passages p, continuation 0)"
    tiny = changed(loglikelihoods={(CHOICE, "two", 0): -3.0000001})
    assert broken(same(tiny, BASE)) == []
    assert broken(same(tiny, BASE, bound=0)) == ["found against base: largest difference of 4 log-likelihoods"]


def test_one_item_judged_otherwise_is_seen() -> None:
    rows = same(changed(right={(CHOICE, "acc", "two"): 1.0}), BASE)
    assert broken(rows) == ["found against base: items judged otherwise", "found against base: acc of seatrial_choice"]
    assert [(r.value, r.bound) for r in rows if r.what.endswith("acc of seatrial_choice")] == [("1.0000", "0.5000")]
    swapped = changed(right={(CHOICE, "acc", "two"): 1.0, (CHOICE, "acc", "one"): 0.0})  # the same accuracy
    assert broken(same(swapped, BASE)) == ["found against base: items judged otherwise"]


def test_one_other_text_is_seen() -> None:
    rows = same(changed(texts={(ANSWERS, "a"): " aye."}), BASE)
    assert broken(rows) == ["found against base: greedy texts of 1 that differ"]
    assert [row.value for row in rows if row.passed is False] == ["seatrial_answers a"]


@pytest.mark.parametrize("field", ["loglikelihoods", "right", "texts"])
def test_runs_of_different_items_are_not_compared(field: str) -> None:
    more = changed("found", 0.0, **{field: {(CHOICE, "acc", "three"): -1.0}})
    for found, expected in ((more, BASE), (BASE, more)):
        with pytest.raises(ValueError, match=r"differ in 1 items, first .*three"):
            same(found, expected)
    with pytest.raises(ValueError, match=r"differ in 1 items, first .*three"):
        lower_precision(more, BASE, BASE)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_log_likelihood_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"found: expected finite log-likelihoods, found .*two"):
        changed(loglikelihoods={(CHOICE, "two", 0): value})
    with pytest.raises(ValueError, match="none at all"):
        Run("empty", {}, {})


def test_errors_of_a_lower_precision() -> None:
    theirs = changed("theirs", by=0.02)
    assert broken(lower_precision(changed("ours", by=-0.0299), theirs, BASE)) == []
    rows = lower_precision(changed("ours", by=-0.031), theirs, BASE)
    assert broken(rows) == [
        "root mean square error of ours to that of theirs",
        "mean error of ours to that of theirs",
    ]
    assert [row.value for row in rows[2:]] == ["1.550", "1.550"]
    assert rows[0].value == "rms 0.0310, mean 0.0310, largest 0.0310; 0 items judged otherwise"
    one = lower_precision(changed("ours", loglikelihoods={(CHOICE, "two", 0): -3.08}), theirs, BASE)
    assert [row.value for row in one[2:]] == ["2.000", "1.000"]  # an outlier shows in the square, not in the mean
    with pytest.raises(ValueError, match="theirs is exactly base; it was not run in a lower precision"):
        lower_precision(theirs, changed("theirs"), BASE)


def write_samples(directory: Path, task: str, samples: list[dict[str, Any]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(sample) + "\n" for sample in samples)
    (directory / f"samples_{task}_2026-01-02T03-04-05.678901.jsonl").write_text(text, encoding="utf-8")


def test_samples_are_read(tmp_path: Path) -> None:
    once: dict[str, Any] = {"gen_args_0": {"arg_0": "text", "arg_1": " ending"}}
    whole: dict[str, Any] = {"gen_args_0": {"arg_0": "text"}}
    until: dict[str, Any] = {"gen_args_0": {"arg_0": "text", "arg_1": {"until": ["\n"]}}}
    two = {
        "doc": {"id": "one"},
        "arguments": once,
        "resps": [[["-1.5", "True"]], [["-2.25", "False"]]],
        "acc": 1.0,
        "acc_norm": 0.0,
    }
    write_samples(tmp_path / "a", CHOICE, [two])
    passage = {"doc": {"id": "p"}, "arguments": whole, "resps": [["-40.125"]], "bits_per_byte": [-40.1, 3]}
    write_samples(tmp_path / "a", PASSAGES, [passage])
    answer = {"doc": {"id": "a"}, "arguments": until, "resps": [["-7"]], "exact_match": 0.0}
    write_samples(tmp_path / "b", ANSWERS, [answer])
    run = read_run("run", tmp_path)
    assert run.loglikelihoods == {(CHOICE, "one", 0): -1.5, (CHOICE, "one", 1): -2.25, (PASSAGES, "p", 0): -40.125}
    assert run.right == {
        (CHOICE, "greedy", "one/0"): 1.0,
        (CHOICE, "greedy", "one/1"): 0.0,
        (CHOICE, "acc", "one"): 1.0,
        (CHOICE, "acc_norm", "one"): 0.0,
        (ANSWERS, "exact_match", "a"): 0.0,
    }
    assert run.texts == {(ANSWERS, "a"): "-7"}
    assert run.accuracies()[CHOICE, "greedy"] == 0.5


def test_samples_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    sample = {"doc": {"id": "one"}, "arguments": {"gen_args_0": {}}, "resps": [[["-1.5", "True"]]]}
    write_samples(tmp_path, CHOICE, [sample, sample])
    with pytest.raises(ValueError, match="one has several answers"):
        read_run("run", tmp_path)
    with pytest.raises(ValueError, match="none at all"):
        read_run("run", tmp_path / "missing")


# The command


@pytest.mark.parametrize(
    ("ours", "exit_code", "words"),
    [
        (lambda: changed("ours-float32"), 0, "holds"),
        (lambda: changed("ours-float32", by=0.002), 1, "BROKEN"),
        (lambda: Run("ours-float32", {(CHOICE, "one", 0): -1.0}, {}), 3, "cannot be compared"),
    ],
)
def test_the_exit_code_says_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    ours: Callable[[], Run], exit_code: int, words: str,
) -> None:  # fmt: skip
    def by_transformers(options: lm_eval.Options, dtype: str) -> Run:
        return changed(f"hf-{dtype}", by=0 if dtype == "float32" else 0.01)

    def by_server(options: lm_eval.Options, dtype: str, texts: bool = False) -> Run:
        found = ours() if dtype == "float32" else changed("ours-bfloat16", by=0.01)
        return replace(found, name="ours-texts") if texts else found

    monkeypatch.setattr(Environment, "make", lambda self: None)
    monkeypatch.setattr(lm_eval, "by_transformers", by_transformers)
    monkeypatch.setattr(lm_eval, "by_server", by_server)
    assert lm_eval.main(["--artifact", str(tmp_path)]) == exit_code
    said = capsys.readouterr()
    assert words in said.out + said.err
    assert ("BROKEN" in said.out) == (exit_code == 1)


def test_a_run_that_fails_or_hangs_is_an_error_with_its_log(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv", "nothing", tmp_path, threads=1, limit_s=0.5)
    with pytest.raises(SeatrialError, match=r"bad ended with exit code 7; the end of .*bad\.log:\nno such model"):
        environment.run(["/bin/sh", "-c", "echo no such model; exit 7"], "bad", tmp_path)
    with pytest.raises(SeatrialError, match="slow took more than 0 s"):
        environment.run(["/bin/sh", "-c", "exec sleep 30"], "slow", tmp_path)


def test_a_directory_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("of a week")
    with pytest.raises(SeatrialError, match="is there and no virtual environment"):
        Environment(tmp_path, "nothing", tmp_path, threads=1, limit_s=10).make()
    assert (tmp_path / "work").read_text() == "of a week"


def test_a_path_with_a_comma_is_refused(tmp_path: Path) -> None:
    options = lm_eval.Options(tmp_path / "a,b", Environment(tmp_path, "nothing", tmp_path, threads=1, limit_s=10))
    with pytest.raises(SeatrialError, match="a,b' has one; use another path"):
        lm_eval.by_transformers(options, "float32")


# The tasks


def items(task: str) -> list[dict[str, Any]]:
    settings = yaml.safe_load((lm_eval.TASK_DIR / f"{task}.yaml").read_text(encoding="utf-8"))
    assert settings["task"] == task
    path = lm_eval.TASK_DIR / settings["dataset_kwargs"]["data_files"]["test"]
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len({item["id"] for item in found}) == len(found)
    return found


def test_every_task_file_is_run() -> None:
    assert sorted(p.stem for p in lm_eval.TASK_DIR.glob("*.yaml")) == sorted(lm_eval.TASKS)
    assert len(list(lm_eval.TASK_DIR.glob("*.jsonl"))) == len(lm_eval.TASKS)


def test_choices() -> None:
    found = items("seatrial_choice")
    assert len(found) >= 60
    assert len({item["question"] for item in found}) == len(found)
    for item in found:
        assert item.keys() == {"id", "question", "choices", "answer"}
        assert len(set(item["choices"])) == 4
        assert all(text == text.strip() != "" for text in [item["question"], *item["choices"]])
    places = Counter(item["answer"] for item in found)
    assert sorted(places) == [0, 1, 2, 3]
    assert min(places.values()) >= 12


def test_endings_and_passages_have_one_that_is_too_long() -> None:
    endings, passages = items("seatrial_cloze"), items("seatrial_passages")
    assert all(item.keys() == {"id", "text", "target"} and item["target"].strip() for item in endings)
    assert all(item.keys() == {"id", "text"} for item in passages)
    for found in (endings, passages):
        lengths = sorted(len(item["text"].split()) for item in found)
        assert lengths[-1] > lm_eval.MAX_LENGTH  # a word is at least a token
        assert lengths[-2] < lm_eval.MAX_LENGTH / 4
