"""The record of A/A comparisons only grows, and claims what its interval allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.ab.compare import compare_builds
from pipeline.ab.rounds import Which
from pipeline.drill import aa
from pipeline.errors import SeatrialError
from pipeline.params import AbParams
from pipeline.serving import ServerEnded
from pipeline.stage import Stage
from tests.pipeline.ab.made_up import Machine, side


def _compared(tmp_path: Path, breaks: tuple[int, Which, Exception] | None = None, **names: str) -> dict[str, object]:
    machine = Machine({})
    machine.breaks = breaks
    return compare_builds(
        side("a"), side("a", **names), AbParams(budget_minutes=10), 1, tmp_path, Stage("ab", None),
        round_=machine.round, clock=machine.clock,
    )  # fmt: skip


def test_a_comparison_is_one_line_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "aa.jsonl"
    one = aa.of(_compared(tmp_path))
    assert one.verdict == "ship"
    assert one.rounds == 10
    assert one.half_width_percent is not None
    assert 0 < one.half_width_percent < 5
    aa.add(one, path)
    aa.add(one, path)
    assert aa.read(path) == [one, one]
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(SeatrialError, match=r"aa\.jsonl:3 is not a comparison"):
        aa.read(path)


def test_two_builds_are_no_aa(tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match="not an A/A: the sides differ in engine"):
        aa.of(_compared(tmp_path, engine="e!2"))


def test_a_comparison_that_broke_off_counts_only_where_it_held(tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match="not an A/A: the base broke off after 0 rounds"):
        aa.of(_compared(tmp_path, (0, "base", ServerEnded("the server of a ended"))))
    assert aa.of(_compared(tmp_path, (1, "candidate", ServerEnded("the server of a ended")))).verdict == "hold"


@pytest.mark.parametrize(("n", "held", "below"), [(119, 0, 0.031), (188, 1, 0.030), (40, 0, 0.089)])
def test_no_claim_beyond_the_interval(n: int, held: int, below: float, tmp_path: Path) -> None:
    one = aa.of(_compared(tmp_path))
    many = [one.model_copy(update={"verdict": "hold" if i < held else "ship"}) for i in range(n)]
    found = aa.summary(many)
    assert found is not None
    assert found.false_holds[1] == pytest.approx(below, abs=0.001)
    assert f"{n} comparisons of identical builds: {held} held" in found.text()
    assert aa.summary([]) is None
    assert aa.read(tmp_path / "absent.jsonl") == []
