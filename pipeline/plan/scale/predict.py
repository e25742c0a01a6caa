"""Times of a split: the roofline of each device, plus the wire.

A step's time on one device is the larger of arithmetic and memory traffic (Williams et al., "Roofline", 2009); time on
the wire comes on top, as in Pope et al., "Efficiently Scaling Transformer Inference" (MLSys 2023), section 2: nothing
is assumed to overlap. What a host adds between steps, and a prompt's wait behind others, is not in it.

tensor    2 all-reduces a layer of rows x hidden values (Megatron-LM, section 3), one gather of the logits
pipeline  requests go round in as many groups as there are stages; a token passes all stages and, in between, a send; so
          one request alone gains nothing, and with as many groups as stages each reads its weights all the time
data      requests / copies each
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import EngineConfig
from pipeline.plan.scale.collectives import NOTHING, Wire, all_reduce, gather, send
from pipeline.plan.scale.devices import Device
from pipeline.plan.scale.links import Links
from pipeline.plan.scale.model import ScaleModel
from pipeline.plan.scale.parallel import Held, Split, held_by, kv_share, requests_of_a_copy, stage_layers


@dataclass(frozen=True)
class Workload:
    """``concurrency`` requests at all times, each of ``prompt`` tokens, of which ``output`` are then drawn."""

    prompt: int
    output: int
    concurrency: int

    @property
    def length(self) -> int:
        return self.prompt + self.output

    @property
    def decode_context(self) -> float:
        """Positions that a token attends to, on average over the output."""
        return self.prompt + self.output / 2


@dataclass(frozen=True)
class Setting:
    """What stays the same while splits and links are compared."""

    model: ScaleModel
    device: Device
    work: Workload
    config: EngineConfig = field(default_factory=EngineConfig)
    algorithm: str = "best"


@dataclass(frozen=True)
class Pass:
    """One pass of a group of requests through the model: seconds of arithmetic and of memory traffic, of devices one
    after the other; the larger of them (``device_s``); the wire; ``slowest_s``, of the slowest stage with its wires."""

    compute_s: float
    memory_s: float
    device_s: float
    wire: Wire
    slowest_s: float

    @property
    def seconds(self) -> float:
        return self.device_s + self.wire.seconds


@dataclass(frozen=True)
class Times:
    """``resident``: requests that a copy runs at once; ``groups``: in how many groups they go through a pipeline."""

    resident: int
    groups: int
    prefill: Pass
    decode: Pass
    ttft_s: float
    itl_s: float
    tokens_per_s: float

    @property
    def bound_by(self) -> str:
        """What most of a decode step's time goes to."""
        parts = {"memory": self.decode.memory_s, "compute": self.decode.compute_s, "wire": self.decode.wire.seconds}
        return max(parts, key=lambda k: parts[k])


@dataclass(frozen=True)
class Prediction:
    split: Split
    held: Held
    times: Times | None
    all_at_once: bool


def predict(setting: Setting, split: Split, links: Links) -> Prediction:
    """Memory and times of a split; no times where it does not fit."""
    held = held_by(split, setting.model, setting.device, setting.config, setting.work.length, setting.work.concurrency)
    if held.ledger is None:
        return Prediction(split, held, None, False)
    wanted = requests_of_a_copy(split, setting.work.concurrency)
    resident = min(wanted, held.ledger.requests_that_fit)
    return Prediction(split, held, times_of(setting, split, links, resident), resident == wanted)


def times_of(setting: Setting, split: Split, links: Links, resident: int) -> Times:
    """Times with ``resident`` requests in each copy (where they do not divide evenly, in the fullest), whether or not
    they fit.

    A prompt goes through alone, prompts of several requests one behind the other. In the long run each request takes
    one prefill and output - 1 decode steps, and both take turns: ``cycle`` is the time in which all requests of a
    copy are prefilled and draw their tokens.
    """
    work = setting.work
    groups = min(split.pipeline, resident)
    rows = -(-resident // groups)
    prefill = one_pass(setting, split, links, work.prompt, 1, work.prompt / 2, work.prompt)
    decode = one_pass(setting, split, links, rows, rows, work.decode_context, rows * work.decode_context)
    itl = max(decode.seconds, groups * decode.slowest_s)
    all_prompts = resident / groups * max(prefill.seconds, groups * prefill.slowest_s)
    cycle = all_prompts + (work.output - 1) * itl
    running = min(split.data * resident, work.concurrency)  # copies beyond the requests stand still
    return Times(
        resident=resident,
        groups=groups,
        prefill=prefill,
        decode=decode,
        ttft_s=prefill.seconds,
        itl_s=itl,
        tokens_per_s=running * work.output / cycle,
    )


def one_pass(
    setting: Setting, split: Split, links: Links, rows: int, drawn: int, context: float, kv_tokens: float
) -> Pass:
    """``rows`` tokens through all layers, each attending to ``context`` positions; logits of ``drawn`` of them. The
    keys and values of ``kv_tokens`` tokens are read."""
    model, device, t = setting.model, setting.device, split.tensor
    flops, rate = device.flops_per_s(model.eight_bit), device.bytes_per_s
    body_compute = model.body_flops(rows, context) / t / flops
    kv_bytes = kv_tokens * model.kv_bytes_per_token * kv_share(split, model.shape)
    body_memory = (model.body_bytes / t + kv_bytes) / rate
    head_compute = model.head_flops(drawn) / t / flops
    head_memory = model.head_bytes / t / rate
    layer_wires, last_wire = tensor_wires(setting, split, links, rows, drawn)
    hop = pipeline_hop(setting, split, links, rows)
    body_s, head_s = max(body_compute, body_memory), max(head_compute, head_memory)
    share = stage_layers(split, model.shape) / model.shape.layers
    slowest = share * (body_s + layer_wires.seconds) + head_s + last_wire.seconds + hop.seconds
    return Pass(
        compute_s=body_compute + head_compute,
        memory_s=body_memory + head_memory,
        device_s=body_s + head_s,
        wire=layer_wires + last_wire + hop.times(split.pipeline - 1) + token_back(split, links),
        slowest_s=slowest,
    )


def tensor_wires(setting: Setting, split: Split, links: Links, rows: int, drawn: int) -> tuple[Wire, Wire]:
    """All-reduces of all layers, and the gather of the logits (float32's place is taken by the activations' type)."""
    model, link = setting.model, links.of_group(split.tensor)
    size = rows * model.shape.hidden * model.activation_bytes
    layers = all_reduce(setting.algorithm, split.tensor, size, link).times(2 * model.shape.layers)
    return layers, gather(split.tensor, drawn * model.shape.vocab * model.activation_bytes, link)


def pipeline_hop(setting: Setting, split: Split, links: Links, rows: int) -> Wire:
    """Hidden states from one stage to the next."""
    if split.pipeline == 1:
        return NOTHING
    size = rows * setting.model.shape.hidden * setting.model.activation_bytes
    return send(size, links.of_group(split.of_a_copy))


def token_back(split: Split, links: Links) -> Wire:
    """The token that was drawn, from the last stage to the first: as good as no bytes, but a message."""
    return NOTHING if split.pipeline == 1 else send(0, links.of_group(split.of_a_copy))
