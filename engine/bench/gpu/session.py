"""The device of a run, and engines on it."""

from __future__ import annotations

import gc
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.artifact import ArtifactError
from engine.bench.gpu.clock import Clock
from engine.bench.gpu.models import SHAPES, RandomWeights, write_config
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.cpus import available_cpus
from engine.kernels.cuda.backend import Device
from engine.kernels.cuda.kernels import CudaKernels
from engine.runner import ModelRunner

FREE_SHARE = 0.85  # of the device's free memory for one engine
SETTINGS: dict[str, Any] = {
    "backend": "cuda",
    "compute_dtype": "bfloat16",
    "max_model_len": 2304,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "prefill_chunk_tokens": 2048,
    "prefix_caching": False,
    "max_queue": 1024,
}
TOY: dict[str, Any] = {
    "max_model_len": 128,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 32,
    "prefill_chunk_tokens": 32,
    "kv_pool_bytes": 2**21,
    "threads": 1,
}


@dataclass(frozen=True)
class Session:
    """``artifact`` None: there is no model with real weights. ``toy``: tiny shapes, to try the run itself."""

    own: Device
    toy: bool = False
    artifact: Path | None = None

    @property
    def clock(self) -> Clock:
        return Clock(self.own.device, self.own.graphs, self.toy)

    @property
    def threads(self) -> int:
        return 1 if self.toy else available_cpus()

    def kernels(self) -> CudaKernels:
        return CudaKernels(torch.bfloat16, self.threads, self.own)

    def settings(self, **more: Any) -> EngineConfig:
        limit = 2**31 if self.own.memory is None else int(FREE_SHARE * self.own.memory.grant(2**62))
        return EngineConfig(**(SETTINGS | {"memory_limit_bytes": limit} | (TOY if self.toy else {}) | more))

    def random(self, shape: str, scheme: str, **more: Any) -> ModelRunner:
        """A runner of SHAPES[shape] with weights drawn on the device."""
        with tempfile.TemporaryDirectory(prefix="seatrial-gpu-") as folder:
            path = write_config(Path(folder) / shape, shape, scheme)
            weights = RandomWeights(SHAPES[shape], scheme, self.own.device)
            return ModelRunner(path, self.settings(**more), weights, self.kernels())

    def real(self, **more: Any) -> ModelRunner:
        """A runner of the artifact.

        Raises:
            ArtifactError: there is none.
        """
        return ModelRunner(self.needed(), self.settings(**more), kernels=self.kernels())

    def needed(self) -> Path:
        if self.artifact is None:
            raise ArtifactError("no artifact of the default model; give --artifact DIR (artifacts/bf16 of a trial)")
        return self.artifact

    def core(self, runner: ModelRunner, **more: Any) -> EngineCore:
        return EngineCore(runner, self.settings(**more))

    def on_host(self, artifact: Path) -> EngineCore:
        """The same model and arithmetic on the CPU."""
        config = self.settings(backend="cpu", memory_limit_bytes=2**33, max_num_seqs=16)
        return EngineCore(ModelRunner(artifact, config), config)

    def transformers(self, shape: str | None) -> Any:
        """transformers' model on the device, in bf16, greedy: of a shape with random weights, or of the artifact."""
        import transformers

        if shape is None:
            model = transformers.AutoModelForCausalLM.from_pretrained(self.needed(), dtype=torch.bfloat16)
        else:
            config = transformers.AutoConfig.for_model(**{k: v for k, v in SHAPES[shape].items() if k != "torch_dtype"})
            with torch.device(self.own.device):
                model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model = model.to(self.own.device).eval()
        model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
        return model

    def free(self) -> None:
        """What nobody holds any more goes back to the device."""
        gc.collect()
        if self.own.device.type == "cuda" and self.usable():
            torch.cuda.empty_cache()

    def usable(self) -> bool:
        """Not after a kernel has gone where it must not: then this process gets errors for whatever it asks."""
        try:
            return float(torch.ones(1, device=self.own.device).sum()) == 1.0
        except RuntimeError:
            return False


def vocab_of(directory: Path) -> int:
    return int(json.loads((directory / "config.json").read_text(encoding="utf-8"))["vocab_size"])
