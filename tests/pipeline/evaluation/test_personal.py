"""The detector of personal data against its recall set, and scrubbing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluation import personal
from tests.pipeline.evaluation.personal_cases import FOUND, INNOCENT, MISSED

CASES = [(kind, text) for kind, texts in FOUND.items() for text in texts]


@pytest.mark.parametrize(("kind", "text"), CASES)
def test_a_case_of_the_recall_set_is_found_as_what_it_is(kind: str, text: str) -> None:
    assert kind in {f.kind for f in personal.find(text, soft=True)}


def test_the_recall_is_what_the_known_misses_leave() -> None:
    """The known misses are misses: one that is found belongs among the found, and the figure changes."""
    missed = [(kind, text) for kind, texts in MISSED.items() for text in texts]
    assert [text for kind, text in missed if kind in {f.kind for f in personal.find(text, soft=True)}] == []
    recall = len(CASES) / (len(CASES) + len(missed))
    assert set(FOUND) == set(personal.HARD) | set(personal.SOFT)
    assert recall > 0.85


@pytest.mark.parametrize("text", INNOCENT)
def test_what_only_looks_like_it_is_left_alone(text: str) -> None:
    assert personal.find(text, soft=True) == []


@pytest.mark.parametrize(("kind", "text"), CASES)
def test_what_is_scrubbed_is_gone(kind: str, text: str) -> None:
    scrubbed = personal.scrub(text)
    assert f"[{kind.upper()}]" in scrubbed
    assert personal.find(scrubbed, soft=True) == []


@given(st.text(max_size=80))
def test_any_text_can_be_searched(text: str) -> None:
    assert (personal.scrub(text) == text) == (personal.find(text, soft=True) == [])


def test_names_are_only_looked_for_when_asked() -> None:
    assert personal.find("Dear Mr. Vale, I live at 12 Maple Street.") == []


def test_a_finding_does_not_repeat_the_whole_of_it() -> None:
    (found,) = personal.find("Ask jo.doe@example.org.")
    assert str(found) == "email jo.d... (18 characters)"


def test_check_digits() -> None:
    assert personal.luhn("4111111111111111")
    assert not personal.luhn("4111111111111112")
    assert personal.iban("DE89 3704 0044 0532 0130 00")
    assert not personal.iban("DE88 3704 0044 0532 0130 00")
