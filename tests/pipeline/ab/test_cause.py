"""The cause of a hold, from the logs of every pair of rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.ab.cause import cause_of
from pipeline.ab.counts import Counted
from pipeline.diagnosis.causes import Cause
from pipeline.diagnosis.inputs import Run
from tests.pipeline.diagnosis.simulated import Engine, run

CLEAN, SLOWER_DECODE, SLOWER_PREFILL = Engine(), Engine(decode_s=0.0018, fixed_s=0.0088), Engine(token_s=0.0005)
DECODE_HOLDS = {"itl": "s"}


def write(folder: Path, of: Run) -> None:
    folder.mkdir()
    for name, frame in (("records", of.records), ("steps", of.steps), ("requests", of.requests)):
        assert frame is not None
        frame.write_parquet(folder / f"{name}.parquet")
    (folder / "load.json").write_text(json.dumps(of.load))
    (folder / "server.json").write_text(json.dumps(of.server))


def rounds(root: Path, *candidates: Engine) -> list[int]:
    for pair, engine in enumerate(candidates):
        write(root / f"{pair:02d}-base", run(CLEAN, burst=4))
        write(root / f"{pair:02d}-candidate", run(engine, burst=4))
    return list(range(len(candidates)))


def named(found: dict[str, Any]) -> list[str]:
    return [c["cause"] for c in found["causes"]]


def test_a_pair_that_shows_something_else_does_not_change_the_cause(tmp_path: Path) -> None:
    pairs = rounds(tmp_path, SLOWER_DECODE, SLOWER_DECODE, Engine(stall_every=20))
    assert named(cause_of(tmp_path, pairs[-1:], (), DECODE_HOLDS)) == ["stall"]
    found = cause_of(tmp_path, pairs, (), DECODE_HOLDS)
    assert named(found) == ["decode_compute"]
    assert found["causes"][0]["figure"].endswith("; so in 2 of 3 pairs")
    assert (found["pairs"], found["why_none"]) == (pairs, None)


def test_what_few_pairs_show_is_named_where_nothing_else_is(tmp_path: Path) -> None:
    pairs = rounds(tmp_path, CLEAN, CLEAN, SLOWER_DECODE)
    assert named(cause_of(tmp_path, pairs, (), DECODE_HOLDS)) == ["decode_compute"]


def test_what_was_counted_comes_first_and_pairs_without_logs_are_left_out(tmp_path: Path) -> None:
    pairs = rounds(tmp_path, SLOWER_PREFILL, SLOWER_PREFILL)
    (tmp_path / "00-candidate" / "load.json").write_text("{")
    work = Counted("s", "output_tokens", "fail", "fewer", 8, 2.0, 1.0, Cause("cut_short", 1.0, "8 of 8"))
    found = cause_of(tmp_path, pairs, [work], {"ttft": "s"})
    assert named(found) == ["cut_short", "prefill_compute"]
    assert found["causes"][1]["figure"].endswith("; so in 1 of 1 pairs")


@pytest.mark.parametrize(
    ("candidates", "why"),
    [((CLEAN, CLEAN), "not explained: no symptom in the last pair"), ((), "the rounds cannot be taken apart: Sea")],
)
def test_where_nothing_is_named_it_says_why(candidates: tuple[Engine, ...], why: str, tmp_path: Path) -> None:
    rounds(tmp_path, *candidates)
    found = cause_of(tmp_path, [0, 1], (), DECODE_HOLDS)
    assert (found["causes"], found["why_none"][: len(why)]) == ([], why)
