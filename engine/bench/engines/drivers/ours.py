"""``python -m engine.bench.engines.drivers.ours``: an artifact on the engine core, without HTTP and in one process.

A token's time is the end of the step that drew it. Beyond the protocol it answers ``{"profile": {...}}``: see steps.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engine.artifact import read_manifest
from engine.bench.engines.drivers import loop, steps
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.models.decoder import Decoder
from engine.process import build
from engine.protocol import AddRequest
from engine.request import SamplingParams
from engine.runner import ModelRunner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--config-json", required=True)
    arguments = parser.parse_args()
    loop.run(lambda: load(arguments.artifact, EngineConfig.model_validate_json(arguments.config_json)))


def load(artifact: Path, config: EngineConfig) -> tuple[dict[str, Any], loop.Work]:
    """
    Raises:
        ArtifactError: the directory cannot be served.
    """
    core, about = build(artifact, config)
    manifest, runner = read_manifest(artifact), core.runner
    assert isinstance(runner, ModelRunner)  # what build makes
    told = {
        "engine": "seatrial",
        "version": version("seatrial"),
        "weights": manifest.name,
        **weight_facts(runner.model, about["derived"]["compute_dtype"]),
        "about": {
            "artifact_digest": manifest.digest,
            "model": manifest.source.model_dump(),
            "recipe": manifest.recipe,
            "config": json.loads(config.model_dump_json()),
            **about,
        },
    }
    count = iter(range(2**62))

    def work(message: dict[str, Any]) -> dict[str, Any]:
        if "profile" in message:
            return steps.profile(core, runner, **message["profile"])
        return produce(core, message["requests"], prefix=f"{next(count)}")

    return told, work


def weight_facts(model: Decoder, compute_dtype: str) -> dict[str, Any]:
    """What a decode step reads of the weights, and how it multiplies: for the shares of the ceilings."""
    linears = [
        part
        for layer in model.layers
        for linear in (layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down)
        for part in linear.parts
    ]
    quantised = {"w8a8", "w4a8"}
    return {
        "step_weight_bytes": sum(w.nbytes for w in (*linears, model.head)),
        "layer_weights": sum(w.in_features * w.out_features for w in linears),
        "arithmetic": "int8"
        if {w.scheme for w in linears} <= quantised
        else {"bfloat16": "bf16", "float32": "float32"}[compute_dtype],
    }


def produce(core: EngineCore, requests: list[dict[str, Any]], prefix: str) -> dict[str, Any]:
    """All requests at once, to their last token.

    Raises:
        RuntimeError: a request fails.
    """
    began = time.perf_counter()
    tokens: list[list[int]] = [[] for _ in requests]
    times: list[list[float]] = [[] for _ in requests]
    for i, request in enumerate(requests):
        params = SamplingParams(max_tokens=request["max_tokens"], ignore_eos=True)
        core.submit(AddRequest([f"{prefix}-{i}"], request["prompt"], params.to_wire()))
    failure = None
    while core.has_work:
        outputs = core.step()
        now = time.perf_counter() - began
        for output in outputs:
            i = int(output.id.partition("-")[2])
            if output.error is not None:
                failure = f"request {i}: {output.error}"
                core.abort([f"{prefix}-{k}" for k in range(len(requests))])
            elif output.token is not None:
                tokens[i].append(output.token)
                times[i].append(now)
    if failure is not None:
        raise RuntimeError(failure)
    return {
        "requests": [{"tokens": t, "times": s} for t, s in zip(tokens, times, strict=True)],
        "seconds": time.perf_counter() - began,
    }


if __name__ == "__main__":
    main()
