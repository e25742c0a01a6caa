"""What the host takes of the processors makes a round void, and is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.ab import report
from pipeline.load.stolen import MOST_SHARE, Stolen, stolen_s, why_void
from tests.pipeline.ab.made_up import Machine
from tests.pipeline.ab.test_compare import compared


def after(*values: float) -> Iterator[float]:
    return iter(values)


@pytest.mark.parametrize(("taken_s", "share"), [(0.0, 0.0), (2.0, 0.1), (40.0, 1.0), (-1.0, 0.0)])
def test_the_share_is_of_all_processors_and_since_the_beginning(taken_s: float, share: float) -> None:
    counted, clock = after(100.0, 100.0 + taken_s), after(5.0, 15.0)
    assert Stolen(lambda: next(counted), lambda: next(clock), of=2).share() == pytest.approx(share)


def test_no_time_is_no_share() -> None:
    assert Stolen(lambda: 1.0, lambda: 5.0, of=2).share() == 0.0


def test_a_system_that_does_not_count_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_times", lambda: object())
    assert stolen_s() == 0.0


def test_a_round_is_void_beyond_the_limit_alone() -> None:
    assert why_void(MOST_SHARE) is None
    found = why_void(0.123)
    assert found is not None
    assert "12.3% of the processors' time" in found
    assert "5%" in found


def test_the_report_says_how_much_it_was(tmp_path: Path) -> None:
    machine = Machine({}, noise=0.002)
    assert "the host took" not in report.markdown(compared(machine, tmp_path / "none"))
    machine = Machine({}, noise=0.002)
    machine.stolen_share, machine.void = 0.031, {1}
    value = compared(machine, tmp_path / "some")
    assert value["rounds"][0]["stolen_share"] == 0.031
    assert "1 pairs void; the host took 3.1% to 3.1% of a round; lag" in report.markdown(value)
