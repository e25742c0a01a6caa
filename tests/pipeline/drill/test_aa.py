"""The record of A/A comparisons only grows, and claims what its interval allows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.ab.compare import compare_builds
from pipeline.ab.rounds import Which
from pipeline.ab.sides import Side
from pipeline.drill import aa, comparisons, repeat
from pipeline.drill.__main__ import main
from pipeline.errors import SeatrialError
from pipeline.params import PARAMS, AbParams
from pipeline.serving import ServerEnded
from pipeline.stage import Stage
from tests.pipeline.ab.made_up import Machine, side
from tests.tiny import make_tiny_artifact

ROOT = Path(__file__).resolve().parents[3]


def _compared(tmp_path: Path, breaks: tuple[int, Which, Exception] | None = None, **names: str) -> dict[str, object]:
    machine = Machine({})
    machine.breaks = breaks
    return compare_builds(
        side("a"), side("a", **names), AbParams(budget_minutes=10), 1, tmp_path, Stage("ab", None),
        round_=machine.round, clock=machine.clock,
    )  # fmt: skip


def test_a_comparison_is_one_line_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "aa.jsonl"
    one = repeat.of(_compared(tmp_path))
    assert one.verdict == "ship"
    assert one.rounds == 10
    assert one.half_width_percent is not None
    assert one.standard_error_percent is not None
    assert 0 < one.standard_error_percent < one.half_width_percent < 5
    assert one.settings.budget_minutes == 10
    assert one.planted is None
    assert set(one.worse) == {
        "prefill/ttft-p50", "prefill/ttft-p95", "decode/itl-p50", "decode/itl-p95", "decode/throughput",
    }  # fmt: skip
    assert {len(v) for v in one.worse.values()} == {5}
    assert max(abs(x) for v in one.worse.values() for x in v) < 0.06  # noise of 1 % on either side
    small = one.resolves_percent["20"]
    assert small is not None
    assert 0 < small < 3
    assert one.reason.startswith("5 blocking figures are inside the margin")
    comparisons.add(one, path)
    comparisons.add(one, path)
    assert comparisons.read(path) == [one, one]
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(SeatrialError, match=r"aa\.jsonl:3 is not a comparison"):
        comparisons.read(path)


def test_two_builds_are_no_aa(tmp_path: Path) -> None:
    with pytest.raises(
        SeatrialError, match="not counted: the sides differ in engine, expected: nothing, for it is an A/A"
    ):
        repeat.of(_compared(tmp_path, engine="e!2"))


def test_a_comparison_that_broke_off_counts_only_where_it_held(tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match="not counted: the base broke off after 0 rounds"):
        repeat.of(_compared(tmp_path, (0, "base", ServerEnded("the server of a ended"))))
    assert repeat.of(_compared(tmp_path, (1, "candidate", ServerEnded("the server of a ended")))).verdict == "hold"


@pytest.mark.parametrize(("n", "held", "below"), [(119, 0, 0.031), (188, 1, 0.030), (40, 0, 0.089)])
def test_no_claim_beyond_the_interval(n: int, held: int, below: float, tmp_path: Path) -> None:
    one = repeat.of(_compared(tmp_path))
    many = [one.model_copy(update={"verdict": "hold" if i < held else "ship"}) for i in range(n)]
    found = aa.summary(many)
    assert found is not None
    assert found.false_holds[1] == pytest.approx(below, abs=0.001)
    assert f"{n} comparisons of identical builds: {held} held" in found.text()
    assert ". Told from none with 80 % power: " in found.text()
    assert aa.summary([]) is None
    assert comparisons.read(tmp_path / "absent.jsonl") == []


def test_what_the_machine_resolves_is_the_median_of_the_comparisons_that_know_it(tmp_path: Path) -> None:
    one = repeat.of(_compared(tmp_path))
    told: list[dict[str, float | None]] = [{"20": 2.0, "5": 7.0}, {"20": 3.0, "5": None}, {"20": 9.0, "5": None}]
    found = aa.summary([one.model_copy(update={"resolves_percent": t}) for t in told])
    assert found is not None
    assert list(found.resolves_percent.items()) == [("5", 7.0), ("20", 3.0)]
    assert found.text().endswith("Told from none with 80 % power: 7.0 % after 5, 3.0 % after 20 minutes")


def test_what_another_policy_did_is_left_out_and_told(tmp_path: Path) -> None:
    one = repeat.of(_compared(tmp_path))
    longer = one.model_copy(update={"policy": "another", "verdict": "hold", "minutes": 20.0})
    found = aa.summary([longer, longer, one])
    assert found is not None
    assert (found.comparisons, found.others, found.held) == (1, 2, 0)
    assert found.text().endswith("2 under another policy are left out")


def test_it_is_run_in_pieces_and_a_comparison_that_is_broken_off_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.stage._MEASURING_LOCK", tmp_path / "lock")  # nothing is measured
    PARAMS.write_text((ROOT / PARAMS).read_text(encoding="utf-8"), encoding="utf-8")
    make_tiny_artifact(tmp_path / "artifacts/int8", "int8")
    machine, seeds = Machine({}), list[int]()

    def measured(base: Side, candidate: Side, params: AbParams, seed: int, out: Path, s: Stage) -> dict[str, Any]:
        seeds.append(seed)
        if len(seeds) == 2:
            raise KeyboardInterrupt
        return compare_builds(base, candidate, params, seed, out, s, round_=machine.round, clock=machine.clock)

    def drill(*options: str) -> None:
        monkeypatch.setattr(sys, "argv", ["drill", *options])
        main()

    monkeypatch.setattr(repeat, "compare_builds", measured)
    with pytest.raises(KeyboardInterrupt):
        drill("--aa", "3", "--minutes", "10")
    assert [c.verdict for c in comparisons.read(aa.RECORD)] == ["ship"]
    drill("--aa", "1", "--minutes", "10")
    assert [c.settings.budget_minutes for c in comparisons.read(aa.RECORD)] == [10, 10]
    assert [seed - seeds[0] for seed in seeds] == [0, 1000, 1000]  # other traffic in each that counts
    assert "2 comparisons of identical builds: 0 held, 0 undecided" in capsys.readouterr().out
    assert [p.name for p in sorted(Path("reports/drill/aa").glob("*.json"))] == ["0001.json", "0002.json"]
    machine.void = set(range(99))
    drill("--aa", "1", "--minutes", "10")
    assert len(comparisons.read(aa.RECORD)) == 2  # one that could not have held is not counted
    assert "A/A, 1 of 1: not counted: 0 whole pairs of rounds in 10 minutes" in capsys.readouterr().err
    with pytest.raises(SeatrialError, match="--minutes is 0, expected more than 0"):
        drill("--aa", "1", "--minutes", "0")
