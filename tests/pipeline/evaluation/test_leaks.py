"""Planted overlaps must be found, each by the way of sharing that it is, and unlike text must not be."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SeatrialError
from pipeline.evaluation import leaks
from pipeline.evaluation.items import Item
from pipeline.params import Params

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprstv" for b in "aeiou" for c in "lmnrst"]


def prose(seed: int, n: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=n)


def text(where: str, words: list[str]) -> leaks.Text:
    return leaks.Text(where, tuple(words))


def item(**changes: object) -> Item:
    fields = {
        "id": "facts-001", "scenario": "facts", "kind": "choice", "origin": "written", "week": "2026-W48",
        "source": "f.x",
        "prompt": "The capital of Norway is", "choices": [" Rome", " Oslo"], "reference": 1,
        "grader": {"name": "choice.loglikelihood", "params": {}},
    }  # fmt: skip
    return Item.model_validate(fields | changes)


def params(**calibration: str) -> Params:
    return Params.model_validate(
        {
            "model": {"source": "path:x"},
            "tiers": ["bf16", "awq"],
            "quantization": {"bf16": {"recipe": "bf16"}, "awq": {"recipe": "awq-int4", **calibration}},
            "engine": {},
            "evaluation": {},
            "load": {},
            "gate": {"policy": "x"},
            "release": {"candidate": "awq", "reference": "bf16"},
        }
    )


def test_the_question_of_an_item_is_its_own_text() -> None:
    assert leaks.question_of(item()) == "The capital of Norway is Oslo"
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Shot"},
            {"role": "assistant", "content": "Solved"}, {"role": "user", "content": "Real?"}]  # fmt: skip
    assert leaks.question_of(item(prompt=None, choices=None, messages=chat)) == "Real?"


def test_words_ignore_case_marks_and_forms() -> None:
    assert leaks.words("The ﬁsh—“Oslo”, 4 a.m.!") == ("the", "fish", "oslo", "4", "a", "m")


def test_an_exact_copy_is_found_in_both_directions() -> None:
    short, long = prose(1, 9), prose(2, 40)
    long[10:19] = short
    assert [str(o) for o in leaks.exact([text("q", short)], [text("c", long)])] == [
        "q and c: the whole question stands in that text"
    ]
    assert [o.shared for o in leaks.exact([text("q", long)], [text("c", short)])] == [
        "the whole of that text stands in the question"
    ]


def test_a_short_phrase_is_no_leak() -> None:
    short = prose(1, leaks.EXACT_WORDS - 1)
    assert leaks.exact([text("q", short)], [text("c", [*prose(2, 20), *short])]) == []


@pytest.mark.parametrize(("shared", "found"), [(leaks.NGRAM, 1), (leaks.NGRAM - 1, 0)])
@pytest.mark.parametrize("at", [0, 17, 60])
def test_ngrams_count_to_the_word(shared: int, found: int, at: int) -> None:
    common = prose(3, shared)
    question, other = prose(4, 60), prose(5, 90)
    question[at:at], other[50:50] = common, common
    overlaps = leaks.ngrams([text("q", question)], [text("c", other)])
    assert len(overlaps) == found
    if found:
        assert overlaps[0].shared == f'"{" ".join(common)}"'


def test_every_kind_of_length_has_its_near_duplicates() -> None:
    """One word in twelve replaced leaves no 13 words in a row, but still nearly the same passage."""
    for n in (16, 45, 200):
        original = prose(n, n)
        reworded = [w if (i + 6) % 12 else "other" for i, w in enumerate(original)]
        calibration = [text("c:1", prose(99, 300)), text("c:2", [*prose(7, 33), *original, *prose(8, 80)])]
        assert leaks.ngrams([text("q", reworded)], calibration) == []
        assert {o.where for o in leaks.near_duplicates([text("q", reworded)], calibration, 0.35)} == {"c:2"}, n


def test_unlike_texts_are_no_near_duplicates() -> None:
    questions = [text(f"q{i}", prose(100 + i, 70)) for i in range(20)]
    assert leaks.near_duplicates(questions, [text("c", prose(1, 2000))]) == []


@given(st.lists(st.sampled_from(WORDS[:6]), max_size=40), st.integers(1, 9), st.integers(1, 5))
def test_windows_cover_every_word_once_there_are_enough(values: list[str], size: int, stride: int) -> None:
    windows = leaks._windows(tuple(values), size, min(stride, size))
    assert (windows == []) == (len(values) < size)
    assert all(len(w) == size for w in windows)
    if windows:
        assert windows[0] == tuple(values[:size])
        assert windows[-1] == tuple(values[-size:])


def test_calibration_is_read_with_either_key(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Three"}, {"role": "assistant", "content": "four"}]}
    lines = [{"text": "One two"}, chat]
    (tmp_path / "v1.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    texts = leaks.calibration_texts(params(calibration="v1"), tmp_path)
    assert [(t.where, t.words) for t in texts] == [("v1.jsonl:1", ("one", "two")), ("v1.jsonl:2", ("three", "four"))]


def test_no_calibration_text_is_fine_only_where_no_tier_calibrates(tmp_path: Path) -> None:
    assert leaks.calibration_texts(params(), tmp_path) == []
    with pytest.raises(SeatrialError, match=r"tier awq calibrates on 'v1', but .* has no text; without it no leak"):
        leaks.calibration_texts(params(calibration="v1"), tmp_path)


@pytest.mark.parametrize("line", ["{broken", "[1]", '{"other": 1}', '{"text": 3}', "7"])
def test_a_broken_calibration_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "v1.jsonl").write_text('{"text": "fine"}\n\n' + line + "\n")
    with pytest.raises(SeatrialError, match=r"v1\.jsonl:3: expected a JSON object"):
        leaks.calibration_texts(params(), tmp_path)
