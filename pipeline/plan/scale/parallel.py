"""Splits of a model over devices, and what each device then holds.

tensor    every matrix of every layer divided (Shoeybi et al., "Megatron-LM", 2019, section 3): 2 all-reduces a layer
pipeline  whole layers to each: one send from each stage to the next (Huang et al., "GPipe", 2019)
data      whole copies, each with its share of the requests: nothing on a wire

Memory of a device is ``engine.ledger``'s plan of its shard: with one device, of the whole model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.artifact import ArtifactError
from engine.config import EngineConfig
from engine.ledger import Ledger, ModelShape, plan
from pipeline.plan.scale.devices import Device
from pipeline.plan.scale.model import ScaleModel


@dataclass(frozen=True, order=True)
class Split:
    """Devices: tensor x pipeline x data."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def of_a_copy(self) -> int:
        return self.tensor * self.pipeline

    @property
    def label(self) -> str:
        parts = (("tp", self.tensor), ("pp", self.pipeline), ("dp", self.data))
        return " x ".join(f"{name}{n}" for name, n in parts if n > 1) or "one device"


def splits(devices: int) -> list[Split]:
    """One device, and every way of dividing all ``devices`` into the three kinds."""
    found = {Split()}
    for tensor in _divisors(devices):
        for pipeline in _divisors(devices // tensor):
            found.add(Split(tensor, pipeline, devices // tensor // pipeline))
    return sorted(found, key=lambda s: (s.devices, s.of_a_copy, -s.tensor))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def refusal(split: Split, shape: ModelShape) -> str | None:
    """Why a model cannot be divided so, whatever the memory."""
    t, kv = split.tensor, shape.kv_heads
    if shape.heads % t:
        return f"{shape.heads} heads do not divide by {t}"
    if max(kv, t) % min(kv, t):
        return f"{kv} KV heads and {t} devices: neither divides the other"
    if split.pipeline > shape.layers:
        return f"{shape.layers} layers are fewer than {split.pipeline} stages"
    return None


def stage_layers(split: Split, shape: ModelShape) -> int:
    """Layers of the stage that has most."""
    return -(-shape.layers // split.pipeline)


def kv_share(split: Split, shape: ModelShape) -> float:
    """Of a layer's keys and values, what one device of a tensor-parallel group holds: heads that are fewer than devices
    are held more than once."""
    return max(1 / split.tensor, 1 / shape.kv_heads)


def shard_shape(split: Split, shape: ModelShape) -> ModelShape:
    """Sizes of the largest device's part; the whole where there is one device."""
    t = split.tensor
    return shape.model_copy(
        update={
            "layers": stage_layers(split, shape),
            "heads": shape.heads // t,
            "kv_heads": max(1, shape.kv_heads // t),
            "intermediate": -(-shape.intermediate // t),
            "vocab": -(-shape.vocab // t),
        }
    )


def shard_weights_bytes(split: Split, model: ScaleModel) -> int:
    """Of the largest device: its layers, and of a pipeline the embedding at one end or the head at the other."""
    if split.of_a_copy == 1:
        return model.weights_bytes
    if split.pipeline == 1:
        return math.ceil(model.weights_bytes / split.tensor)
    layers = model.body_bytes * stage_layers(split, model.shape) / model.shape.layers
    return math.ceil((layers + model.head_bytes) / split.tensor)


@dataclass(frozen=True)
class Held:
    """What the largest device of a split holds; without a ledger it does not fit, ``why`` says the reason."""

    weights_bytes: int
    ledger: Ledger | None
    why: str | None = None


def requests_of_a_copy(split: Split, concurrency: int) -> int:
    return -(-concurrency // split.data)


def held_by(
    split: Split, model: ScaleModel, device: Device, config: EngineConfig, length: int, concurrency: int
) -> Held:
    """The ledger of the largest device, for requests of ``length`` tokens. ``config`` gives what is not decided here:
    block size, step budget."""
    weights = shard_weights_bytes(split, model)
    if why := refusal(split, model.shape):
        return Held(weights, None, why)
    wanted = config.model_copy(
        update={
            "backend": device.backend,
            "memory_limit_bytes": device.memory_bytes,
            "kv_pool_bytes": None,
            "max_model_len": length,
            "max_num_seqs": requests_of_a_copy(split, concurrency),
        }
    )
    try:
        shard = shard_shape(split, model.shape)
        return Held(weights, plan(shard, weights, wanted, model.compute_dtype, model.kv_dtype))
    except ArtifactError:
        return Held(
            weights,
            None,
            f"{weights / 1e9:.3g} GB of weights, with activations and the KV of {length:,} tokens, are more than "
            f"{device.memory_bytes / 1e9:.3g} GB",
        )
