"""Held-out text is held out, and cut as it is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.artifact import Named
from pipeline.errors import SeatrialError
from pipeline.evaluation import leaks
from pipeline.evaluation.items import EVALSETS, Grader, Item, load_evalset
from pipeline.fidelity import texts
from pipeline.fidelity.texts import Sizes, refuse_overlap, workload
from tests.tiny import write_byte_tokenizer

EVALSET = Named(name="e-v1", digest="0" * 64)
SIZES = Sizes(held_out_tokens=250, sequence_tokens=100, prompts_per_scenario=1, long_tokens=600, output_tokens=4)


def item(name: str, scenario: str, prompt: str) -> Item:
    return Item(
        id=name, scenario=scenario, kind="choice", origin="written", week="2026-W48", source="s", prompt=prompt,
        choices=[" a", " b"], reference=0, grader=Grader(name="choice.loglikelihood"),
    )  # fmt: skip


ITEMS = [item("a-1", "a", "One is"), item("a-2", "a", "Two is"), item("b-1", "b", "Three is")]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_byte_tokenizer(tmp_path)
    return tmp_path


def test_the_shipped_text_overlaps_neither_calibration_nor_evalset() -> None:
    shipped = list(leaks.read_texts(texts.FOLDER / "v1.jsonl"))
    assert len(shipped) >= 6
    refuse_overlap(shipped, load_evalset(EVALSETS / "core").items)


def test_text_that_calibration_has_seen_is_refused_by_name(tmp_path: Path) -> None:
    sentence = "the quick brown fox jumps over the lazy dog and then it sleeps all day long"
    (tmp_path / "c1.jsonl").write_text(json.dumps({"text": f"Once more, {sentence}!"}) + "\n")
    held_out = [leaks.Text("v9.jsonl:1", leaks.words(f"They say {sentence}."))]
    with pytest.raises(SeatrialError, match=r"not held out: v9\.jsonl:1 and c1\.jsonl:1: .*brown fox"):
        refuse_overlap(held_out, [], tmp_path)
    with pytest.raises(SeatrialError, match=r"not held out: v9\.jsonl:1 and a-1"):
        refuse_overlap(held_out, [item("a-1", "a", f"Well, {sentence}")], tmp_path / "none")
    refuse_overlap(held_out, ITEMS, tmp_path / "none")


def test_text_is_cut_and_prompts_are_the_first_of_each_scenario(model: Path) -> None:
    found = workload(model, "v1", ITEMS, SIZES, EVALSET)
    assert [len(part) for part in found.held_out] == [100, 100, 50]
    assert bytes(found.held_out[0]).decode().startswith("The orchard had been sold twice")
    assert [bytes(p).decode() for p in found.prompts] == ["One is", "Three is"]
    assert len(found.long) == 600
    assert found.long[:100] == found.held_out[0]
    again = workload(model, "v1", ITEMS, SIZES, EVALSET)
    assert found == again
    other = workload(model, "v1", ITEMS, Sizes(250, 100, 1, 601, 4), EVALSET)
    assert other.identity.digest != found.identity.digest


def test_what_is_not_there_is_refused(model: Path) -> None:
    with pytest.raises(SeatrialError, match=r"unknown held-out text 'v0'; held_out/ has v1"):
        workload(model, "v0", ITEMS, SIZES, EVALSET)
    with pytest.raises(SeatrialError, match=r"v1 has \d+ tokens, 999999 are asked for"):
        workload(model, "v1", ITEMS, Sizes(held_out_tokens=999_999), EVALSET)
    with pytest.raises(SeatrialError, match=r"evalset have \d+ tokens, 999999 are asked for"):
        workload(model, "v1", ITEMS, Sizes(long_tokens=999_999), EVALSET)
