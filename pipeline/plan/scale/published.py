"""Predictions held against what others have measured (``published.yaml``): the planner's own error, case by case."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.plan.scale import links as wires
from pipeline.plan.scale.devices import PRESETS as DEVICES
from pipeline.plan.scale.devices import Device
from pipeline.plan.scale.disaggregate import disaggregation
from pipeline.plan.scale.efficiency import LINK_SHARE, MEASURED
from pipeline.plan.scale.links import Link, Links
from pipeline.plan.scale.model import PRESETS as MODELS
from pipeline.plan.scale.model import Published, ScaleModel, of_published
from pipeline.plan.scale.parallel import Split
from pipeline.plan.scale.predict import Setting, Times, Workload, tensor_wires, times_of

FILE = Path(__file__).parent / "published.yaml"
# Zhang et al., "OPT" (2022), table 1. Its MLP has two matrices, not three: good for the size of its KV alone.
KV_ONLY = {"opt-66b": Published(66e9, 64, 9216, 72, 72, 36864, 50272, tied=True)}


class Source(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    title: str
    year: int
    where: str


class Case(BaseModel):
    """One published figure and the setting that it was measured in."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    source: str
    model: str
    weight_bits: float = 16
    activation_bits: float = 16
    eight_bit: bool = Field(False, description="products of 8-bit activations")
    kv_dtype: str = "float16"
    device: str | None = None
    one_device_token_ms: float | None = Field(None, description="instead of a preset: what the source measured")
    links: str
    link_gbs: float | None = None
    link_latency_us: float | None = None
    link_is_rated: bool = Field(False, description="link_gbs is a data sheet's, of which a share is reached")
    all_reduce: str = "best"
    split: tuple[int, int, int]
    against: tuple[int, int, int] | None = None
    prompt: int
    output: int
    concurrency: int = 1
    figure: str
    measured: float
    outside: str | None = None

    @model_validator(mode="after")
    def _one_device(self) -> Self:
        if (self.device in DEVICES) == (self.one_device_token_ms is not None):
            raise ValueError(f"{self.source}: expected a preset as device, or one_device_token_ms, and not both")
        return self


class Cases(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: int
    bound_factor: float
    median_factor: float
    sources: dict[str, Source]
    cases: list[Case]


@cache
def read_cases(path: Path = FILE) -> Cases:
    return Cases.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Check:
    """``factor`` is predicted / measured."""

    case: Case
    source: Source
    predicted: float

    @property
    def factor(self) -> float:
        return self.predicted / self.case.measured

    @property
    def off(self) -> float:
        """At least 1: by which factor the prediction is too high or too low."""
        return max(self.factor, 1 / self.factor)


def checks(cases: Cases) -> list[Check]:
    return [Check(case, cases.sources[case.source], predicted(case)) for case in cases.cases]


def median_off(done: list[Check]) -> float:
    """Of the geometric kind: half of the predictions are off by less than this factor."""
    return math.exp(median(math.log(check.off) for check in done))


def predicted(case: Case) -> float:
    """The figure of a case in the unit of its name."""
    setting, links = setting_of(case), links_of(case)
    return FIGURES[case.figure](case, setting, links)


def _times(case: Case, setting: Setting, links: Links, split: tuple[int, int, int] | None = None) -> Times:
    chosen = Split(*(split or case.split))
    return times_of(setting, chosen, links, -(-case.concurrency // chosen.data))


def _all_reduce_kib(case: Case, setting: Setting, links: Links) -> float:
    """Of one token, what all devices send together."""
    layers, _ = tensor_wires(setting, Split(*case.split), links, 1, 1)
    return layers.bytes_sent * case.split[0] / 1024


def _kv_transfer(case: Case, setting: Setting, links: Links) -> float:
    found = disaggregation(setting, Split(*case.split), _times(case, setting, links), links.between)
    return found.kv_bytes / found.transfer_s / 1e9


def _speed_ratio(case: Case, setting: Setting, links: Links) -> float:
    return _times(case, setting, links, case.against).itl_s / _times(case, setting, links).itl_s


FIGURES: dict[str, Callable[[Case, Setting, Links], float]] = {
    "decode_tokens_per_s": lambda c, s, k: 1 / _times(c, s, k).itl_s,
    "token_ms": lambda c, s, k: 1e3 * _times(c, s, k).itl_s,
    "ttft_ms": lambda c, s, k: 1e3 * _times(c, s, k).ttft_s,
    "tokens_per_s": lambda c, s, k: _times(c, s, k).tokens_per_s,
    "decode_speed_ratio": _speed_ratio,
    "all_reduce_kib": _all_reduce_kib,
    "kv_gib": lambda c, s, k: s.work.prompt * s.model.kv_bytes_per_token / 1024**3,
    "kv_transfer_gb_per_s": _kv_transfer,
}


def setting_of(case: Case) -> Setting:
    sizes = MODELS.get(case.model) or KV_ONLY[case.model]
    model = of_published(case.model, sizes, case.weight_bits, case.kv_dtype, case.activation_bits, case.eight_bit)
    work = Workload(case.prompt, case.output, case.concurrency)
    return Setting(model, _device_of(case, model), work, algorithm=case.all_reduce)


def _device_of(case: Case, model: ScaleModel) -> Device:
    """A preset, or one that reads a model's weights in the time that the source measured, and computes in none."""
    if case.one_device_token_ms is None:
        return DEVICES[case.device or ""]
    read = (model.body_bytes + model.head_bytes) / (case.one_device_token_ms * 1e-3) / 1e9
    return Device("as measured", "cpu", 2**40, read, 1e6, None, case.source, MEASURED, MEASURED)


def links_of(case: Case) -> Links:
    if case.link_gbs is not None and case.link_latency_us is not None and case.links not in wires.PRESETS:
        share = LINK_SHARE if case.link_is_rated else MEASURED
        link = Link(case.links, case.link_gbs, case.link_latency_us, case.source, share)
        return Links(link, link, 1)
    return wires.links_of(case.links, None, case.link_gbs, case.link_latency_us)
