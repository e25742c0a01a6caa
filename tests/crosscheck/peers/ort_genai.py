"""ONNX Runtime GenAI, a job as one static batch.

Its engine with continuous batching needs paged attention, which its model builder writes for GPUs alone. So the
prompts are padded on the right to the longest, and the batch goes on until its longest request has its tokens; those
that a finished request still makes are not handed out.

    python ort_genai.py DIR --threads 2
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np  # comes with onnxruntime
import onnxruntime_genai as og
from protocol import Emit, Refusal, Request, serve


class OrtGenai:
    name = "onnxruntime-genai"
    version = og.__version__

    def __init__(self, directory: Path, threads: int, weights: str, pad: int | None) -> None:
        described = json.loads((directory / "genai_config.json").read_text(encoding="utf-8"))
        self.pad = described["model"]["vocab_size"] - 1 if pad is None else pad
        config = og.Config(str(directory))
        session = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        # The end must be a token of the vocabulary, and cannot be ignored: it becomes one that nothing comes up with.
        model = {"pad_token_id": self.pad, "eos_token_id": [self.pad], "decoder": {"session_options": session}}
        config.overlay(json.dumps({"model": model}))
        self.model = og.Model(config)
        self.weights = weights
        self.about = {"threads": threads, "batching": "static, padded on the right"}

    def run(self, requests: list[Request], emit: Emit) -> None:
        longest = max(len(request.prompt) for request in requests)
        steps = max(request.max_tokens for request in requests)
        if any(self.pad in request.prompt for request in requests):  # it would be masked
            raise Refusal(f"a prompt has the token {self.pad}, which pads and ends here: give another as --pad")
        params = og.GeneratorParams(self.model)
        params.set_search_options(
            batch_size=len(requests), max_length=longest + steps, do_sample=False, past_present_share_buffer=True
        )
        generator = og.Generator(self.model, params)
        rows = [request.prompt + [self.pad] * (longest - len(request.prompt)) for request in requests]
        generator.append_tokens(np.array(rows, np.int32))
        for step in range(steps):
            generator.generate_next_token()
            tokens = generator.get_next_tokens()
            for index, request in enumerate(requests):
                if tokens[index] == self.pad and step < request.max_tokens:
                    raise SystemExit(f"request {index} made the token {self.pad}, which ends it: give another as --pad")
                if step < request.max_tokens:
                    emit(index, tokens[index])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", required=True, help="what the model was built with, for the report: int4")
    parser.add_argument(
        "--pad", type=int, help="a token of no prompt and no output (default: the last of the vocabulary)"
    )
    a = parser.parse_args()
    serve(lambda: OrtGenai(a.directory, a.threads, a.weights, a.pad))


if __name__ == "__main__":
    main()
