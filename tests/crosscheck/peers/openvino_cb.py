"""OpenVINO GenAI's continuous batching.

The directory is what ``optimum-cli export openvino`` writes. Beside the runtime's defaults, prefix caching is off and
the number of threads is set.

    python openvino_cb.py DIR --threads 2
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import openvino as ov
import openvino_genai as genai
from protocol import Emit, Request, serve


class OpenVino:
    name = "openvino-genai"
    version = genai.__version__

    def __init__(self, path: str, threads: int, cache_gib: int, weights: str) -> None:
        self.weights = weights
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = cache_gib
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 2048
        properties = {"INFERENCE_NUM_THREADS": threads}
        self.pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
        capabilities = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        self.about = {"threads": threads, "device": capabilities}
        self.requests = 0

    def run(self, requests: list[Request], emit: Emit) -> None:
        import numpy as np  # comes with openvino

        running = {}
        for index, request in enumerate(requests):
            config = genai.GenerationConfig(
                max_new_tokens=request.max_tokens, ignore_eos=True, do_sample=False, apply_chat_template=False
            )
            prompt = ov.Tensor(np.array([request.prompt], np.int64))
            running[index] = self.pipeline.add_request(self.requests, prompt, config)
            self.requests += 1
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for index, handle in list(running.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        for token in output.generated_ids:
                            emit(index, token)
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    del running[index]


def stored_weights(directory: Path) -> str:
    """How the export compressed them, as it notes in the graph: ``int8_asym``; nothing noted: 16 bits, as they were."""
    graph = (directory / "openvino_model.xml").read_text(encoding="utf-8")
    modes: list[str] = re.findall(r'<mode value="(int\w+)" />', graph)
    return modes[0] if modes else "fp16"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-gib", type=int, default=2, help="room for the key-value cache")
    a = parser.parse_args()
    serve(lambda: OpenVino(str(a.directory), a.threads, a.cache_gib, stored_weights(a.directory)))


if __name__ == "__main__":
    main()
