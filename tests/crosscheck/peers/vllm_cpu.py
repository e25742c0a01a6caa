"""vLLM's CPU build, stepped in this process.

python vllm_cpu.py DIR --threads 2 [--eager] [--dtype float32]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from protocol import Emit, Request, serve


class Vllm:
    name = "vllm-cpu"

    def __init__(self, directory: Path, dtype: str, eager: bool, threads: int, cache_gib: int) -> None:
        in_this_process(threads, cache_gib)
        import torch
        import vllm
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.version = vllm.__version__
        self.weights = stored_weights(directory, dtype)
        options = EngineArgs(
            model=str(directory), dtype=dtype, enforce_eager=eager, enable_prefix_caching=False,
            max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=2048,
        )  # fmt: skip
        self.engine = LLMEngine.from_engine_args(options)
        capability = torch.backends.cpu.get_cpu_capability()
        self.about = {"threads": threads, "dtype": dtype, "eager": eager, "instructions": capability}
        self.requests = 0

    def run(self, requests: list[Request], emit: Emit) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        indices = {}
        for index, request in enumerate(requests):
            params = SamplingParams(
                temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True, detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            name = str(self.requests)
            self.requests += 1
            indices[name] = index
            self.engine.add_request(name, {"prompt_token_ids": request.prompt}, params)
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                for token in output.outputs[0].token_ids:
                    emit(indices[output.request_id], token)


def in_this_process(threads: int, cache_gib: int) -> None:
    """Settings that vLLM reads when it is imported. Its engine stays here: no queue between a token and its time."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def stored_weights(directory: Path, dtype: str) -> str:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return "W8A8" if "quantization_config" in config else dtype


def with_its_openmp() -> None:
    """Start over with Intel's OpenMP, which the package brings and vLLM asks for by LD_PRELOAD."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    preloaded = os.environ.get("LD_PRELOAD", "")
    if library.exists() and "libiomp5" not in preloaded:
        os.environ["LD_PRELOAD"] = f"{library}:{preloaded}"
        os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--eager", action="store_true", help="run as written, without compiling")
    parser.add_argument("--cache-gib", type=int, default=2, help="room for the key-value cache")
    a = parser.parse_args()
    with_its_openmp()
    serve(lambda: Vllm(a.directory, a.dtype, a.eager, a.threads, a.cache_gib))


if __name__ == "__main__":
    main()
