"""Slowdowns that are planted into comparisons, and comparisons drawn again from pairs that were measured."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.seam import SeamError, plant
from pipeline.ab.compare import compare_builds
from pipeline.ab.rounds import base_first
from pipeline.ab.sides import Side
from pipeline.drill import aa, comparisons, power, repeat, resample, resampled
from pipeline.drill.__main__ import main
from pipeline.drill.comparisons import Comparison, Planted
from pipeline.errors import SeatrialError
from pipeline.params import PARAMS, AbParams
from pipeline.stage import Stage
from tests.pipeline.ab.made_up import Machine, side
from tests.tiny import make_tiny_artifact

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ("prefill/ttft-p50", "prefill/ttft-p95", "decode/itl-p50", "decode/itl-p95", "decode/throughput")
AB = AbParams()
SLOWER_DECODE = Planted(part="decode", percent=10)


@pytest.mark.parametrize(("name", "prefill", "decode"), [("PrefillSlower50", 1.5, 1.0), ("DecodeSlower20", 1.0, 1.2)])
def test_a_slowdown_is_of_so_many_percent_of_its_part(
    name: str, prefill: float, decode: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that only the engine and its pauses move."""
    now = [0.0]

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("pipeline.drill.seams.time", SimpleNamespace(monotonic=lambda: now[0], sleep=pass_by))
    core = SimpleNamespace(runner=SimpleNamespace(execute=lambda batch: pass_by(1.0)))
    plant(f"{repeat.SEAMS}:{name}", "core", core)
    for tokens, expected in (([1, 2, 3], prefill), ([1], decode)):
        began = now[0]
        core.runner.execute([SimpleNamespace(token_ids=tokens)])
        assert now[0] - began == pytest.approx(expected)


@pytest.mark.parametrize("name", ["PrefillSlower", "DecodeSlower0", "DecodeFaster10"])
def test_what_is_no_slowdown_is_no_seam(name: str) -> None:
    with pytest.raises(SeamError, match=f"no attribute '{name}'"):
        plant(f"{repeat.SEAMS}:{name}", "core", None)


def _compared(tmp_path: Path, slower: dict[tuple[str, str], float], **names: str) -> Comparison:
    machine = Machine(slower)
    value = compare_builds(
        side("a"), side("a", **names), AbParams(budget_minutes=10), 1, tmp_path, Stage("ab", None),
        round_=machine.round, clock=machine.clock,
    )  # fmt: skip
    return repeat.of(value, SLOWER_DECODE)


def test_a_planted_slowdown_is_recorded_as_how_many_times_worse(tmp_path: Path) -> None:
    slow = {("decode", "itl"): 1.1, ("decode", "throughput"): 1.1}
    one = _compared(tmp_path, slow, engine="e!2")
    assert one.verdict == "hold"
    means = {name: math.exp(sum(v) / len(v)) for name, v in one.worse.items()}
    for name in FIGURES:
        assert means[name] == pytest.approx(1.1 if name.startswith("decode") else 1.0, abs=0.03)
    with pytest.raises(SeatrialError, match="the sides differ in nothing, expected: engine, by what was planted"):
        _compared(tmp_path, slow)


def test_power_is_counted_by_slowdown_under_the_last_policy(tmp_path: Path) -> None:
    one = _compared(tmp_path, {("decode", "itl"): 1.1}, engine="e!2")
    many = [one.model_copy(update={"verdict": v}) for v in ["hold"] * 19 + ["undecided"]]
    less = one.model_copy(update={"planted": Planted(part="decode", percent=3), "verdict": "ship"})
    old = one.model_copy(update={"policy": "another", "verdict": "ship"})
    few, most = power.summary([old, *many, less])
    assert (few.planted.percent, few.held, few.shipped, few.comparisons) == (3, 0, 1, 1)
    assert (most.held, most.comparisons, most.shipped) == (19, 20, 0)
    assert most.interval == pytest.approx((0.751, 0.999), abs=0.001)  # Clopper-Pearson of 19 of 20
    assert most.text().startswith("decode 10 % slower: 19 of 20 held (75% to 100%), 1 undecided, 0 shipped; median")
    assert power.summary([]) == []


def _record(noise: float, count: int = 10, pairs: int = 6) -> list[Comparison]:
    rng = np.random.default_rng(5)
    return [
        Comparison(
            as_of="2026-11-30T03:00:00Z", planted=None, verdict="ship", reason="said", engine="e", policy="p",
            machine_class="m", minutes=pairs, rounds=2 * pairs,
            half_width_percent=2, standard_error_percent=1, resolves_percent={}, settings=AbParams(),
            base_first=[base_first(i) for i in range(pairs)],
            worse={f: rng.normal(0, noise, pairs).tolist() for f in FIGURES},
        )
        for _ in range(count)
    ]  # fmt: skip


def _share(found: resampled.Resampled, part: str, percent: float) -> resampled.Share:
    return next(s for s in found.shares if s.planted and (s.planted.part, s.planted.percent) == (part, percent))


def test_what_is_drawn_again_errs_as_often_as_the_error_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resample, "PERCENTS", (5.0, 10.0))
    monkeypatch.setattr(resample, "DRAWS", 300)
    monkeypatch.setattr(resample, "POOLS", 5)
    found = resample.resample(_record(0.02), "digest")
    assert (found.comparisons, found.pairs, found.pair_s) == (10, 60, 60.0)
    nothing = next(s for s in found.shares if s.planted is None)
    assert nothing.held <= 0.01  # none of it is at the margin
    assert nothing.shipped > 0.9
    for part in ("prefill", "decode"):
        at_margin, beyond = (_share(found, part, p) for p in (5, 10))
        assert at_margin.held < 0.1  # 5 % and the chance of 300 draws
        assert at_margin.shipped < 0.1
        assert beyond.held > 0.9
        assert beyond.shipped == 0.0
        assert beyond.mean_minutes < at_margin.mean_minutes
        assert beyond.held_interval is None or beyond.held_interval[0] > 0.7
    assert "| decode 10 % slower |" in resampled.text(found)


def test_noise_takes_power_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resample, "PERCENTS", (7.0,))
    monkeypatch.setattr(resample, "DRAWS", 200)
    monkeypatch.setattr(resample, "POOLS", 2)
    quiet, noisy = (_share(resample.resample(_record(noise), "digest"), "decode", 7) for noise in (0.01, 0.1))
    assert quiet.held > 0.8
    assert noisy.held < 0.3


def test_what_the_second_side_loses_by_its_place_is_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the comparison itself does it: pairs keep their order, or change it with the names of their sides."""
    monkeypatch.setattr(resample, "PERCENTS", (7.0,))
    monkeypatch.setattr(resample, "DRAWS", 200)
    monkeypatch.setattr(resample, "POOLS", 2)
    even = _record(0.01)
    later = [0.1 if first else -0.1 for first in even[0].base_first]  # whoever is second is a tenth slower
    uneven = [
        c.model_copy(update={"worse": {f: [x + y for x, y in zip(v, later, strict=True)] for f, v in c.worse.items()}})
        for c in even
    ]
    shares = [_share(resample.resample(record, "digest"), "decode", 7).held for record in (even, uneven)]
    assert shares[0] == shares[1] > 0.8


def test_a_comparison_that_lacks_a_figure_is_not_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resample, "PERCENTS", ())
    monkeypatch.setattr(resample, "DRAWS", 2)
    monkeypatch.setattr(resample, "POOLS", 1)
    record = _record(0.01)
    record[-1] = record[-1].model_copy(update={"worse": record[-1].worse | {FIGURES[0]: []}})
    assert resample.resample(record, "digest").comparisons == 9


def test_too_few_pairs_are_not_drawn_from() -> None:
    with pytest.raises(SeatrialError, match="holds 18 pairs of rounds under its last policy, expected at least 20"):
        resample.resample(_record(0.01, count=3), "digest")
    with pytest.raises(SeatrialError, match="holds 0 pairs"):
        resample.resample([], "digest")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.stage._MEASURING_LOCK", tmp_path / "lock")  # nothing is measured
    PARAMS.write_text((ROOT / PARAMS).read_text(encoding="utf-8"), encoding="utf-8")
    make_tiny_artifact(tmp_path / "artifacts/int8", "int8")
    return tmp_path


def _drill(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["drill", *options])
    main()


def test_slowdowns_are_planted_in_turn(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    candidates: list[str] = []

    def measured(base: Side, candidate: Side, params: AbParams, seed: int, out: Path, s: Stage) -> dict[str, Any]:
        candidates.append(candidate.given)
        part = "decode" if "Decode" in candidate.given else "prefill"
        machine = Machine({(part, metric): 1.1 for metric in ("ttft", "itl", "throughput")})
        return compare_builds(base, candidate, params, seed, out, s, round_=machine.round, clock=machine.clock)

    monkeypatch.setattr(repeat, "compare_builds", measured)
    _drill(monkeypatch, "--power", "2", "--slower", "prefill:10", "--slower", "decode:10", "--minutes", "10")
    assert candidates == [f"seam:{repeat.SEAMS}:{part}Slower10" for part in ("Prefill", "Decode")] * 2
    assert [str(c.planted) for c in comparisons.read(power.RECORD)] == ["prefill 10 % slower", "decode 10 % slower"] * 2
    assert comparisons.read(aa.RECORD) == []
    assert "decode 10 % slower: 2 of 2 held" in capsys.readouterr().out


def test_drawing_again_leaves_a_table_of_that_record(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resample, "PERCENTS", (10.0,))
    monkeypatch.setattr(resample, "DRAWS", 20)
    monkeypatch.setattr(resample, "POOLS", 2)
    with pytest.raises(SeatrialError, match="there is no A/A record"):
        _drill(monkeypatch, "--resample")
    assert resampled.read(resampled.RECORD, aa.RECORD, AB) is None
    for c in _record(0.01):
        comparisons.add(c, aa.RECORD)
    _drill(monkeypatch, "--resample")
    assert "Drawn from 60 pairs of 10 comparisons" in capsys.readouterr().out
    found = resampled.read(resampled.RECORD, aa.RECORD, AB)
    assert found is not None
    assert [s.planted and str(s.planted) for s in found.shares] == [None, "prefill 10 % slower", "decode 10 % slower"]
    with pytest.raises(SeatrialError, match="under another policy than `ab`"):
        resampled.read(resampled.RECORD, aa.RECORD, AbParams(margin_percent=3))
    assert found == resample.resample(comparisons.read(aa.RECORD), found.aa_sha256)  # of a seed
    resampled.RECORD.write_text(json.dumps({"schema_version": 1}))
    with pytest.raises(SeatrialError, match="is no such table"):
        resampled.read(resampled.RECORD, aa.RECORD, AB)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--power", "1"), "--power plants what --slower says"),
        (("--power", "0", "--slower", "decode:10"), "--power is 0, expected at least 1"),
        (("--power", "1", "--slower", "decode:ten"), "--slower is 'decode:ten', expected prefill:PERCENT"),
        (("--power", "1", "--slower", "sampling:10"), "--slower is 'sampling:10'"),
        (("--aa", "1", "--slower", "decode:10"), "--aa plants nothing"),
        (("--slower", "decode:10"), "--slower is for --power N"),
    ],
)
def test_what_cannot_be_planted_is_refused(
    options: tuple[str, ...], said: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SeatrialError, match=said):
        _drill(monkeypatch, *options)
