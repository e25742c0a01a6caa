"""Faults of an engine, on a tiny model or an engine on paper: each acts as its name says, is caught and is named."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.runner import ModelRunner
from engine.seam import plant
from loadtests.workload import Profile
from pipeline.ab.compare import compare_builds
from pipeline.ab.counts import work_of
from pipeline.ab.rounds import Round, Which, figures_of
from pipeline.ab.sides import Project, Side, side_of
from pipeline.drill import engine
from pipeline.drill.engine import SEAMS, TABLE, Engines, by_ab, by_answers
from pipeline.evaluation.client import Reply
from pipeline.evaluation.graders.base import Grade
from pipeline.evaluation.items import Item
from pipeline.evaluation.run import Answered, Judged
from pipeline.files import write_json
from pipeline.params import PARAMS, load_params
from pipeline.serving import ServerEnded
from pipeline.stage import Stage
from tests.engine.fake_core import add, make_core, prompt_of, run, tokens_of
from tests.pipeline.ab.made_up import Machine
from tests.pipeline.diagnosis import simulated
from tests.pipeline.evaluation.make import chat_item, write_evalset
from tests.tiny import make_tiny_artifact

ROOT = Path(__file__).resolve().parents[3]
DRILLS = {id: drill for id, _, _, drill in TABLE}
COLD, WARM = simulated.Engine(), simulated.Engine(cached_share=0.8)
FAULTY = {"chunking-off": (COLD, replace(COLD, chunk=1000)), "prefix-cache-off": (WARM, COLD)}  # without it, with it
HELD_BY = {"chunking-off": "ab: long itl-p95", "prefix-cache-off": "ab: prefill computed_tokens, "}


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    """A project with a tiny artifact and a few items."""
    monkeypatch.chdir(tmp_path)
    raw = yaml.safe_load((ROOT / PARAMS).read_text(encoding="utf-8"))
    raw["engine"] |= {"kv_pool_bytes": 2**20, "threads": 1}
    PARAMS.write_text(yaml.safe_dump(raw), encoding="utf-8")
    make_tiny_artifact(tmp_path / "artifacts" / "int8", "int8")
    write_evalset(tmp_path, [chat_item(f"extract.{i}", f"Which city is number {i}?") for i in range(6)])
    return Engines(Project.here(load_params(), "int8"), tmp_path / "drill", minutes=5, items=6)


class _OnPaper:
    """Rounds of a simulated engine, written as a round is, on a clock of their own."""

    def __init__(self, base: simulated.Engine, candidate: simulated.Engine) -> None:
        self.base, self.candidate, self.now_s = base, candidate, 0.0

    def clock(self) -> float:
        return self.now_s

    def round(
        self, side: Side, which: Which, pair: int, profile: Profile, profile_name: str, seed: int, out: Path
    ) -> Round:
        self.now_s += 20.0
        stages = [s.name for s in profile.stages]
        made = simulated.run(
            self.base if which == "base" else self.candidate, which, gap_s=0.12 + 0.002 * pair, burst=4
        )
        assert made.load is not None
        assert made.records is not None
        assert made.steps is not None
        assert made.requests is not None
        records = pl.concat([made.records.with_columns(stage=pl.lit(s)) for s in stages])
        load = made.load | {"stages": {s: made.load["stages"]["s"] for s in stages}}
        out.mkdir(parents=True)
        for name, table in (("records", records), ("steps", made.steps), ("requests", made.requests)):
            table.write_parquet(out / f"{name}.parquet")
        write_json(out / "load.json", load)
        write_json(out / "server.json", made.server)
        work = {s: work_of(records, s) for s in stages}
        return Round(which, pair, seed, 20.0, figures_of(records, load, stages), records.height, 0, None, work)


def _on_paper(base: simulated.Engine, candidate: simulated.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _OnPaper(base, candidate)
    monkeypatch.setattr(engine, "compare_builds", partial(compare_builds, round_=machine.round, clock=machine.clock))


@pytest.mark.parametrize("id", FAULTY)
def test_a_setting_that_is_off_is_held_and_named(
    id: str, engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _on_paper(*FAULTY[id], monkeypatch)
    seen = DRILLS[id](engines, tmp_path / id)
    assert seen.caught, seen
    assert seen.named, seen
    assert seen.by.startswith(HELD_BY[id]), seen


@pytest.mark.parametrize(("blocking", "profile"), [({"long": ["itl-p95"]}, engine.LONG), (None, None)])
def test_without_the_fault_nobody_is_accused(
    blocking: dict[str, list[str]] | None, profile: dict[str, Any] | None, engines: Engines, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    _on_paper(COLD, COLD, monkeypatch)
    seen = by_ab(engines.artifact, ("prefill_interference", "cold_cache"), blocking, profile)(engines, tmp_path / "aa")
    assert (seen.caught, seen.named, seen.by) == (False, False, "ab: ship")


def test_a_candidate_that_breaks_off_is_held_without_a_pair_to_take_apart(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine({})
    machine.breaks = (0, "candidate", ServerEnded("the server ended"))
    monkeypatch.setattr(engine, "compare_builds", partial(compare_builds, round_=machine.round, clock=machine.clock))
    seen = by_ab(engines.artifact, ("cold_cache",))(engines, tmp_path / "ab")
    assert (seen.caught, seen.named, seen.by) == (True, False, "ab: hold")
    assert "the server ended" in seen.said


def _core(side: Side) -> EngineCore:
    assert side.artifact is not None
    config = EngineConfig.model_validate(side.settings)
    core = EngineCore(ModelRunner(side.artifact, config), config)
    if side.seam:
        plant(side.seam, "core", core)
    return core


def _in_this_process(side: Side, items: list[Item], concurrency: int, log: Path, s: Stage) -> list[Judged]:
    """Greedy tokens of the tiny model on the items' words; right is what the sound engine says."""
    cores = [_core(side), _core(replace(side, seam=None))]
    for item in items:
        assert item.messages is not None
        for core in cores:
            core.submit(add(list(item.messages[0].content.encode()), item.id, max_tokens=12))
    said, right = ([tokens_of(outputs, i.id) for i in items] for outputs in map(run, cores))
    return [
        Judged(Answered(i, Reply(str(tokens), "length", 9, 12, None, "2026-12-01T10:00:00Z")), Grade(tokens == known))
        for i, tokens, known in zip(items, said, right, strict=True)
    ]


def test_int8_keys_and_values_without_their_scales_are_caught_and_the_engine_is_named(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "judged_answers", _in_this_process)
    seen = DRILLS["kv-scales-lost"](engines, tmp_path / "kv")
    assert (seen.caught, seen.named, seen.by) == (True, True, "quality: engine"), seen
    sound = by_answers("config:kv_dtype=int8", ("engine",), settings=engine.INT8_KV)(engines, tmp_path / "aa")
    assert (sound.caught, sound.named) == (False, False), sound
    assert sound.said.startswith("0 of 6 answers changed")


def test_scales_can_only_be_lost_where_there_are_some(engines: Engines) -> None:
    with pytest.raises(ValueError, match="plant this with kv_dtype int8"):
        plant(f"{SEAMS}:LosesKvScales", "core", _core(engines.base()))


def test_a_forgotten_prefix_is_computed_again() -> None:
    def cached(planted: bool) -> int:
        core, _ = make_core()
        if planted:
            plant(f"{SEAMS}:ForgetsPrefixes", "core", core)
        for name in ("first", "second"):
            core.submit(add(prompt_of(24), name))
            run(core)
        return core.scheduler.num_prefix_hits_tokens

    assert cached(planted=False) > 0
    assert cached(planted=True) == 0


def test_a_prompt_that_is_not_cut_into_chunks_takes_one_step(engines: Engines) -> None:
    def largest(side: Side) -> int:
        core = _core(side)
        core.submit(add(list(range(200)) * 2, "long", max_tokens=2))
        run(core)
        return max(row.prefill_tokens for row in core.step_log)

    assert largest(engines.base()) == 256
    assert largest(side_of(engine.UNCHUNKED, engines.project)) == 400
