"""Settings that several tests of the planner share."""

from __future__ import annotations

from dataclasses import replace

from pipeline.plan.scale.devices import PRESETS as DEVICES
from pipeline.plan.scale.devices import Device
from pipeline.plan.scale.links import Links, links_of
from pipeline.plan.scale.model import ScaleModel, preset
from pipeline.plan.scale.predict import Setting, Workload


def model_of(name: str = "llama-3.1-8b", weight_bits: float = 16) -> ScaleModel:
    return preset(name, weight_bits, "float16", 16, False)


def setting_of(
    name: str = "llama-3.1-8b",
    device: str | Device = "h100",
    concurrency: int = 1,
    prompt: int = 2048,
    output: int = 256,
) -> Setting:
    chosen = DEVICES[device] if isinstance(device, str) else device
    return Setting(model_of(name), chosen, Workload(prompt, output, concurrency))


def link_of(gb_per_s: float, latency_us: float) -> Links:
    """One kind of link whose figures are reached."""
    return links_of("own", None, gb_per_s, latency_us)


def roomy(device: Device) -> Device:
    """The same with memory for anything, so that only speed decides."""
    return replace(device, memory_bytes=2**50)
