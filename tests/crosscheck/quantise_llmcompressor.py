"""Quantises a model with llmcompressor, as its own examples do, on the token sequences that it is given.

    PYTHON quantise_llmcompressor.py MODEL SEQUENCES.json METHOD OUT

Runs in llmcompressor's environment, so it imports nothing of this project. The model is in float32 while it is
quantised. ``OUT`` becomes a directory in the form of compressed-tensors; ``OUT/probe.json`` has the log-probabilities
of the tokens of the first sequence, as llmcompressor itself computes them with what it has made, and the time it took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GROUP = 64
IGNORED = ["lm_head"]


def int4() -> dict[str, Any]:
    """W4A16_ASYM with groups of 64 in the place of 128."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False}
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": IGNORED}


def int8() -> dict[str, Any]:
    return {"targets": ["Linear"], "scheme": "W8A8", "ignore": IGNORED}


def rounded() -> list[Any]:
    from llmcompressor.modifiers.quantization import QuantizationModifier

    return [QuantizationModifier(**int4())]


def awq() -> list[Any]:
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier

    return [AWQModifier(duo_scaling="both"), QuantizationModifier(**int4())]


def gptq() -> list[Any]:
    from llmcompressor.modifiers.gptq import GPTQModifier

    return [GPTQModifier(**int4())]


def smoothed_rounded() -> list[Any]:
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    return [SmoothQuantModifier(smoothing_strength=0.8), QuantizationModifier(**int8())]


def smoothed_gptq() -> list[Any]:
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    return [SmoothQuantModifier(smoothing_strength=0.8), GPTQModifier(**int8())]


def without_pinning() -> None:
    """AWQ pins its cache for copies to an accelerator, which torch refuses where there is none."""
    from llmcompressor.pipelines.cache import IntermediatesCache

    IntermediatesCache.pin_memory = lambda self, batch_index: None


METHODS: dict[str, Callable[[], list[Any]]] = {
    "rounded": rounded,
    "awq": awq,
    "gptq": gptq,
    "smoothed-rounded": smoothed_rounded,
    "smoothed-gptq": smoothed_gptq,
}


def main() -> None:
    import torch
    from llmcompressor import oneshot
    from torch.utils.data import DataLoader
    from transformers import AutoModelForCausalLM

    source, told, method, out = sys.argv[1:]
    if not torch.accelerator.is_available():
        without_pinning()
    sequences = [torch.tensor([ids]) for ids in json.loads(Path(told).read_text(encoding="utf-8"))]
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    data = DataLoader(
        [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in sequences], batch_size=None
    )
    began_s = time.monotonic()
    oneshot(
        model=model,
        dataset=data,
        recipe=METHODS[method](),
        num_calibration_samples=len(sequences),
        max_seq_length=max(ids.shape[1] for ids in sequences),
    )
    took_s = time.monotonic() - began_s
    ids = sequences[0]
    with torch.no_grad():
        found = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    logprobs = found[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    model.save_pretrained(out, save_compressed=True)
    (Path(out) / "probe.json").write_text(json.dumps({"logprobs": logprobs, "seconds": took_s}), encoding="utf-8")


if __name__ == "__main__":
    main()
