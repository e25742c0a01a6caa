"""A step's time, taken apart: of a canned one by hand; of a real one, the parts and the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.bench.engines.drivers import steps
from engine.bench.engines.profile import REST, StepProfile, table
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.runner import ModelRunner
from tests.tiny import make_tiny_artifact

LAYER = [("norm", 1.0), ("product_int", 4.0), ("attend", 2.0), ("product_int", 1.0), ("product_int", 8.0),
         ("product_int", 3.0)]  # fmt: skip
CANNED = StepProfile(
    batch=1,
    prompt=10,
    steps=3,
    step_s=0.05,
    ops=[
        ("embed", None, 0.001),
        *((kind, layer, seconds / 1000) for layer in (0, 1) for kind, seconds in LAYER),
        ("product", None, 0.004),
    ],
)


def test_by_kernel_and_by_layer() -> None:
    found = CANNED.by_kernel()
    assert found == {
        "product_int: gate and up": pytest.approx(0.016),
        "product_int: q, k, v": pytest.approx(0.008),
        "product_int: down": pytest.approx(0.006),
        "attend": pytest.approx(0.004),
        "product: head": pytest.approx(0.004),
        "norm": pytest.approx(0.002),
        "product_int: attention out": pytest.approx(0.002),
        "embed": pytest.approx(0.001),
        REST: pytest.approx(0.05 - 0.043),
    }
    assert next(iter(found)) == "product_int: gate and up"
    assert list(found)[-1] == REST
    assert CANNED.by_layer() == [pytest.approx(0.019)] * 2
    shown = table("mine", {"decode": CANNED})
    assert ["product_int: gate and up", "16.0 (32.0 %)"] in shown.rows
    assert shown.rows[-2:] == [[REST, "7.00 (14.0 %)"], ["the step", "50.0"]]
    assert shown.notes == ["decode: 1 x 10 tokens, mean of 3 steps; 2 layers, 19.0 to 19.0 ms each"]


def test_products_without_a_known_order_are_numbered() -> None:
    p = CANNED.model_copy(update={"ops": [("product", 0, 0.01), ("product", 0, 0.02)]})
    assert p.by_kernel() == {"product: 2": 0.02, "product: 1": 0.01, REST: pytest.approx(0.02)}


CONFIG = EngineConfig(
    max_model_len=128, max_num_seqs=4, max_num_batched_tokens=64, prefill_chunk_tokens=32, threads=1,
    memory_limit_bytes=64 * 2**20, prefix_caching=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ((1, 20, 5), (1, 20, 5)),
        ((16, 20, 5), (4, 20, 5)),  # no more than there are slots
        ((1, 1024, 0), (1, 124, 4)),  # 124 tokens in chunks of 32
        ((2, 100, 500), (2, 60, 64)),
    ],
)
def test_a_real_step(asked: tuple[int, int, int], got: tuple[int, int, int], tmp_path: Path) -> None:
    runner = ModelRunner(make_tiny_artifact(tmp_path, "int8"), CONFIG)
    if runner.derived["kernels"] != "cpu":
        pytest.skip("no C kernels")
    core = EngineCore(runner, CONFIG)
    for _ in range(2):  # it leaves nothing behind that the next one would meet
        found = steps.profile(core, runner, *asked)
        assert (found["batch"], found["prompt"], found["steps"]) == got
        measured = StepProfile.model_validate(found)
        assert 0 < sum(s for *_, s in measured.ops) < measured.step_s
        assert len(measured.by_layer()) == 3
        assert {"attend", "product_int: down", "product: head", "norm", REST} <= measured.by_kernel().keys()
    assert not core.has_work
    assert core.stats()["blocks_used"] == 0
    assert runner.profile(False) == []


def test_kernels_without_a_clock_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(make_tiny_artifact(tmp_path, "int8"), CONFIG)
    monkeypatch.setattr(runner, "profile", lambda on: [])
    with pytest.raises(RuntimeError, match="keep no time of their operations"):
        steps.profile(EngineCore(runner, CONFIG), runner, 1, 8, 2)
