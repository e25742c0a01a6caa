from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.params import Params
from pipeline.report.inputs import TierData, read_run
from pipeline.report.quality import blind_of, flips_of, pinned_cases, word_diff
from tests.pipeline.report import synthetic

PARAMS = Path(__file__).resolve().parents[3] / "params.yaml"


def tier(name: str, *items: dict[str, Any]) -> TierData:
    return TierData(name, None, None, list(items), None, None, None, None, None, {})


def item(key: str, correct: bool, answer: str | None = "a", **more: Any) -> dict[str, Any]:
    return {
        "id": key,
        "scenario": "s",
        "origin": "written",
        "status": "ok",
        "correct": correct,
        "answer": answer,
    } | more


def test_flips_pair_by_id_and_know_their_direction() -> None:
    a = tier("ref", item("x", True), item("y", False), item("z", True), item("only", True))
    b = tier("cand", item("z", True, "b"), item("y", True), item("x", False), item("other", True))
    flips = flips_of(a, b)
    assert flips is not None
    assert [f.id for f in flips.lost] == ["x"]
    assert [f.id for f in flips.gained] == ["y"]
    assert (flips.compared, flips.same_text, flips.unpaired) == (3, 2, 2)


def test_pinned_flips_come_first_and_errors_are_told() -> None:
    a = tier("ref", item("a1", True), item("z9", True, origin="pinned"))
    b = tier("cand", item("a1", False), item("z9", False, None, origin="pinned", status="error", reason="timed out"))
    flips = flips_of(a, b)
    assert flips is not None
    assert [f.id for f in flips.lost] == ["z9", "a1"]
    assert flips.lost[0].tier_note == "error: timed out"


def test_no_items_no_flips() -> None:
    assert flips_of(tier("a"), TierData("b", None, None, None, None, None, None, None, None, {})) is None


def test_pinned_cases_mark_what_the_reference_passes(whole_run: tuple[Path, Any]) -> None:
    cases = pinned_cases(read_run(*whole_run))
    assert len(cases) == 3 * len(synthetic.SCENARIOS)
    first = cases[0]
    assert first.broken
    assert first.outcomes["bf16"]
    assert all(first.outcomes[t] is False for t in first.broken)


def test_where_a_loss_would_hardly_show_is_said_by_the_reference_else_by_the_candidate() -> None:
    def told(**by_tier: Any) -> tuple[str, dict[str, str]] | None:
        tiers = {n: TierData(n, None, e, None, None, None, None, None, None, {}) for n, e in by_tier.items()}
        found = blind_of(replace(read_run(Path("nowhere"), params), tiers=tiers))
        return None if found is None else (found.tier, found.scenarios)

    params = Params.model_validate(yaml.safe_load(PARAMS.read_text()))
    one = {"sees_little": {"facts": "as guessing"}}
    assert told(bf16=one, int8={"sees_little": {}}) == ("bf16", {"facts": "as guessing"})
    assert told(bf16={"sees_little": {}}, int8=one) == ("bf16", {})
    assert told(bf16=None, int8=one) == ("int8", {"facts": "as guessing"})
    assert told(bf16={}, int8={}) is None  # records of an older version


def plain(marked: str) -> str:
    return html.unescape(re.sub(r"</?(ins|del)>", "", marked))


@given(st.text(max_size=80), st.text(max_size=80))
def test_word_diff_loses_nothing_and_escapes_everything(a: str, b: str) -> None:
    left, right = word_diff(a, b)
    assert plain(left) == a
    assert plain(right) == b
    assert "<" not in re.sub(r"</?(ins|del)>", "", left + right)
    if a == b:
        assert "<del>" not in left


def test_word_diff_marks_words_and_not_letters() -> None:
    left, right = word_diff("the cat sat", "the cart sat")
    assert left == "the <del>cat</del> sat"
    assert right == "the <ins>cart</ins> sat"
