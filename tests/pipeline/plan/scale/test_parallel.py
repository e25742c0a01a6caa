"""How a model is divided, and that what a device holds is the ledger's word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.ledger import kv_bytes_per_token, plan
from pipeline.plan.scale.devices import PRESETS as DEVICES
from pipeline.plan.scale.model import PRESETS as MODELS
from pipeline.plan.scale.parallel import Split, held_by, kv_share, refusal, shard_shape, shard_weights_bytes, splits
from tests.pipeline.plan.scale.settings import model_of, roomy


def test_every_way_of_dividing_eight_devices() -> None:
    found = splits(8)
    assert found[0] == Split()
    assert len(found) == 1 + 10  # triples of powers of two whose product is 8
    assert {s.devices for s in found[1:]} == {8}
    assert Split(2, 2, 2).label == "tp2 x pp2 x dp2"
    assert splits(1) == [Split()]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_one_device_holds_what_the_ledger_says(name: str) -> None:
    model, device = model_of(name), roomy(DEVICES["h100"])
    held = held_by(Split(), model, device, EngineConfig(), 2304, 16)
    config = EngineConfig(backend="cuda", memory_limit_bytes=device.memory_bytes, max_model_len=2304, max_num_seqs=16)
    assert held.ledger == plan(model.shape, model.weights_bytes, config, "bfloat16", "float16")
    assert held.weights_bytes == model.weights_bytes


@given(
    name=st.sampled_from(sorted(MODELS)),
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 3, 5, 8]),
)
def test_the_parts_hold_no_less_than_the_whole(name: str, tensor: int, pipeline: int) -> None:
    model, split = model_of(name), Split(tensor, pipeline)
    assert refusal(split, model.shape) is None
    shard = shard_shape(split, model.shape)
    assert shard.layers * pipeline >= model.shape.layers
    assert shard_weights_bytes(split, model) * split.devices >= model.weights_bytes
    whole = kv_bytes_per_token(model.shape, "float16")
    assert kv_bytes_per_token(shard, "float16") * split.devices >= whole
    assert kv_share(split, model.shape) == pytest.approx(1 / tensor)


def test_heads_that_are_fewer_than_devices_are_held_more_than_once() -> None:
    shape = model_of("llama-3.1-70b").shape  # 8 KV heads
    assert kv_share(Split(tensor=32), shape) == 1 / 8
    assert shard_shape(Split(tensor=32), shape).kv_heads == 1


def test_what_cannot_be_divided_is_said() -> None:
    shape = model_of().shape
    assert refusal(Split(tensor=3), shape) == "32 heads do not divide by 3"
    assert refusal(Split(pipeline=64), shape) == "32 layers are fewer than 64 stages"
    odd = shape.model_copy(update={"heads": 24, "kv_heads": 8})
    assert refusal(Split(tensor=12), odd) == "8 KV heads and 12 devices: neither divides the other"


def test_what_does_not_fit_is_said_with_both_numbers() -> None:
    held = held_by(Split(), model_of("llama-3.1-70b"), DEVICES["h100"], EngineConfig(), 4096, 1)
    assert held.ledger is None
    assert held.why is not None
    assert "141 GB of weights" in held.why
    assert "77.3 GB" in held.why
    assert held_by(Split(tensor=4), model_of("llama-3.1-70b"), DEVICES["h100"], EngineConfig(), 4096, 1).ledger


def test_requests_that_do_not_fit_wait() -> None:
    held = held_by(Split(), model_of(), DEVICES["a100-40"], EngineConfig(), 16384, 64)
    assert held.ledger is not None
    assert 1 <= held.ledger.requests_that_fit < 64
