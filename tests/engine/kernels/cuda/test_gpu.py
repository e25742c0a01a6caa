"""On a GPU: what the fakes stand for elsewhere. The speed of it is for ``python -m engine.bench.gpu``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.bench.gpu.same import invariance
from engine.config import EngineConfig
from engine.kernels.cuda.memory import DeviceMemory, DeviceMemoryError
from engine.runner import ModelRunner
from tests.engine.kernels.cuda.fakes import CONFIG, OnReference, device_runner, replay_of
from tests.engine.kernels.cuda.test_runner import decode_batch, prefilled
from tests.engine.runners import compute
from tests.engine.same_bits import check_any_batch_and_any_split, sequences
from tests.tiny import Tier

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible to PyTorch"),
]
BIG = {"max_num_batched_tokens": 256, "max_model_len": 512, "memory_limit_bytes": 2**31, "kv_pool_bytes": 2**24}


def on_gpu(artifact: Path, **config: object) -> ModelRunner:
    return ModelRunner(artifact, EngineConfig.model_validate(CONFIG | BIG | config))


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int4"])
@pytest.mark.parametrize("tier", ["bf16", "int8", "int4", "int4-a8"])
def test_the_same_bits_in_any_batch_recorded_or_not(artifacts: dict[str, Path], tier: Tier, kv_dtype: str) -> None:
    runner = on_gpu(artifacts[tier], kv_dtype=kv_dtype)
    assert replay_of(runner).graphs_reason == "available"
    check_any_batch_and_any_split(runner, sequences(8), rounds=3)
    assert invariance(runner, toy=True)["rows_different"] == 0


@pytest.mark.parametrize("tier", ["bf16", "int8", "int4"])
def test_logits_are_those_of_the_reference_within_rounding(artifacts: dict[str, Path], tier: Tier) -> None:
    lengths = [33, 1, 50, 16, 17]
    found = compute(prefilled(on_gpu(artifacts[tier]), lengths), decode_batch(lengths))
    right = compute(prefilled(device_runner(artifacts[tier], None, OnReference), lengths), decode_batch(lengths))
    for mine, expected in zip(found, right, strict=True):
        assert mine is not None
        assert expected is not None
        assert (mine - expected).abs().max() < 0.05 * expected.abs().max()


def test_the_plan_holds_against_the_allocators_books(artifacts: dict[str, Path]) -> None:
    runner = on_gpu(artifacts["bf16"])
    ledger, device = runner.derived["ledger"], runner.derived["device"]
    assert 0 < device["step_bytes"] <= ledger["activation_bytes"] + 2**25  # segments are 2 and 20 MiB
    memory = runner.memory()
    assert memory["device_allocated_bytes"] >= memory["weights_bytes"] + memory["kv_pool_bytes"]


def test_more_than_there_is_is_exhausted() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    memory = DeviceMemory.of_cuda(device)
    with pytest.raises(DeviceMemoryError, match="device memory is exhausted"), memory.told():
        torch.empty(memory.read().total * 2, dtype=torch.uint8, device=device)
