"""Prefill on devices of its own: what of the KV cache moves, how long it takes, and what it spares.

Zhong et al., "DistServe" (OSDI 2024), section 3.3: a prompt's keys and values go over the link once. Patel et al.,
"Splitwise" (ISCA 2024), section IV-C: sent layer by layer while the prompt is computed, all but the last layer's are
hidden where the link keeps up with the computation. Both times are given.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.plan.scale.links import Link
from pipeline.plan.scale.parallel import Split
from pipeline.plan.scale.predict import Setting, Times

NEGLIGIBLE_SHARE = 0.1  # of the time to first token


@dataclass(frozen=True)
class Disaggregation:
    """``copy``: the devices that hold the model once. ``kv_bytes`` of one request; ``transfer_s`` all at once,
    ``exposed_s`` what is left of it when a layer is sent while the next is computed; ``negligible_gb_per_s``: from
    which rate on all at once is less than a tenth of the prefill. ``sustained_gb_per_s``: what a copy that only decodes
    takes in, and ``prefill_copies`` supply; ``stall_s``: how long running requests wait for a prompt that goes in front
    of their next token where both are on the same devices."""

    copy: Split
    kv_bytes: int
    transfer_s: float
    exposed_s: float
    negligible_gb_per_s: float
    sustained_gb_per_s: float
    prefill_copies: float
    stall_s: float

    @property
    def link_keeps_up(self) -> bool:
        """Whether the link carries what one decoding copy takes in."""
        return self.sustained_gb_per_s < self.kv_bytes / self.transfer_s / 1e9


def disaggregation(setting: Setting, split: Split, times: Times, link: Link) -> Disaggregation:
    """Of a split whose ``times`` are given: copies for prefill, copies for decode, ``link`` between them."""
    model, work = setting.model, setting.work
    size = work.prompt * model.kv_bytes_per_token
    transfer = size / link.bytes_per_s + link.latency_s
    layers = model.shape.layers
    of_a_layer = size / layers / link.bytes_per_s + link.latency_s
    computed = times.prefill.seconds / layers
    exposed = of_a_layer + max(0.0, of_a_layer - computed) * (layers - 1)
    decode_s_a_request = max(work.output - 1, 1) * times.itl_s / times.resident
    return Disaggregation(
        copy=Split(split.tensor, split.pipeline),
        kv_bytes=size,
        transfer_s=transfer,
        exposed_s=exposed,
        negligible_gb_per_s=size / (NEGLIGIBLE_SHARE * times.prefill.seconds) / 1e9,
        sustained_gb_per_s=size / decode_s_a_request / 1e9,
        prefill_copies=times.prefill.slowest_s / decode_s_a_request,
        stall_s=times.prefill.slowest_s,
    )
