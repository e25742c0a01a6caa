"""``python -m engine.bench.engines.drivers.generate``: transformers' ``generate`` as a driver.

Several requests are one static batch, padded on the left to the longest prompt and run to the longest output: what
``generate`` offers. A request's tokens beyond its own end are computed and not counted.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from engine.bench.engines.drivers import loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    loop.run(lambda: load(arguments.model, arguments.dtype, arguments.threads, arguments.device))


def load(directory: Path, dtype: str, threads: int, device: str = "cpu") -> tuple[dict[str, Any], loop.Work]:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval().to(device)
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    linears = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    head = model.get_output_embeddings().weight
    size = head.element_size()
    about = {
        "engine": "transformers",
        "version": transformers.__version__,
        "weights": dtype,
        "step_weight_bytes": sum(w.numel() for w in linears) * size,
        "layer_weights": sum(w.numel() for w in linears if w is not head),
        "arithmetic": "bf16" if dtype == "bfloat16" else "float32",
        "about": {
            "torch": torch.__version__,
            "threads": threads,
            "device": device,
            "attention": model.config._attn_implementation,
        },
    }

    def work(message: dict[str, Any]) -> dict[str, Any]:
        return produce(model, message["requests"])

    return about, work


def produce(model: Any, requests: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    began = time.perf_counter()
    device = model.device
    widest, most = max(len(r["prompt"]) for r in requests), max(r["max_tokens"] for r in requests)
    ids = torch.zeros(len(requests), widest, dtype=torch.int64)  # on the host until it is complete
    mask = torch.zeros_like(ids)
    for i, request in enumerate(requests):
        ids[i, widest - len(request["prompt"]) :] = torch.tensor(request["prompt"])
        mask[i, widest - len(request["prompt"]) :] = 1
    stamps: list[float] = []

    def stamp(so_far: torch.Tensor, _: Any, **__: Any) -> torch.Tensor:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # a token is there when it can be read
        stamps.append(time.perf_counter() - began)
        return torch.zeros(len(so_far), dtype=torch.bool, device=device)

    with torch.inference_mode():
        out = model.generate(
            ids.to(device),
            attention_mask=mask.to(device),
            min_new_tokens=most,
            max_new_tokens=most,
            stopping_criteria=[stamp],
        )
    produced = out[:, widest:].tolist()
    return {
        "requests": [
            {"tokens": tokens[: r["max_tokens"]], "times": stamps[: r["max_tokens"]]}
            for r, tokens in zip(requests, produced, strict=True)
        ],
        "seconds": time.perf_counter() - began,
    }


if __name__ == "__main__":
    main()
