"""Nothing is compiled while requests wait: whatever a step launches, in its form, was launched when the engine booted.

The launches are recorded, not run, and the tensors have no memory: what a compiler would see is all there is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.kernels.cuda.backend import Device, OnDevice
from engine.kernels.cuda.transfers import Transfers
from engine.kernels.triton.aot import Recorder
from engine.kernels.triton.backend import TritonKernels
from engine.ledger import SLICE_ROWS
from engine.request import SamplingParams
from engine.runner import ModelRunner
from tests.engine.kernels.cuda.fakes import CONFIG, FakeGraphs
from tests.tiny import Family, Tier, make_tiny_artifact

NOWHERE = torch.device("meta")
LONG = {"max_model_len": 4096, "max_num_batched_tokens": 512, "kv_pool_bytes": 2**32, "memory_limit_bytes": 2**33}
DRAWN = SamplingParams(max_tokens=4, temperature=0.8, top_p=0.9)


class Noted(OnDevice, TritonKernels):
    """Triton's kernels, of which only the launches are noted."""

    def __init__(self, recorder: Recorder, graphs: FakeGraphs) -> None:
        TritonKernels.__init__(self, torch.bfloat16, 1, NOWHERE, launch=recorder)
        self.own = Device(NOWHERE, "nowhere", lambda: graphs, None, (9, 0))


class OneWay(Transfers):
    """From nowhere nothing comes back."""

    def fetch(self, results: Tensor, into: Tensor) -> Callable[[], None]:
        return lambda: None


def batches(draw: random.Random, blocks: int, seqs: int) -> list[BatchEntry]:
    """A step of prompts, of decodes, or of both, in requests of any length."""
    entries, left, scored = list[BatchEntry](), 512, draw.random() < 0.2
    for number in range(draw.randint(1, seqs)):
        count = draw.choice([1, 1, 1, draw.randint(1, 40), 16, 64, draw.randint(1, 300)])
        if count > left:
            break
        left -= count
        start = draw.choice([0, draw.randint(0, 300), draw.randint(0, 3000)])
        table = [draw.randrange(blocks) for _ in range(-(-(start + count) // 16))]
        wanted = "last" if count == 1 else draw.choice(["none", "last"])
        params = draw.choice([None, DRAWN])
        entries.append(BatchEntry(str(number), [1] * count, start, table, "all" if scored else wanted, params, 7))
    return entries


@pytest.mark.parametrize(
    ("tier", "family", "seqs"),
    [("bf16", "llama", 8), ("int8", "llama", 40), ("int4", "qwen3", 3), ("int4-a8", "gemma3", 16)],
)
def test_a_step_launches_what_was_launched_at_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: Tier, family: Family, seqs: int
) -> None:
    monkeypatch.setattr("engine.kernels.triton.launch.INTERPRETED", False)  # the tiles of a device
    monkeypatch.setattr("engine.kernels.cuda.backend.Transfers", OneWay)
    layers = 3 if family == "gemma3" else 2  # some with a window; of the last one only wanted rows go all the way
    artifact = make_tiny_artifact(tmp_path, tier, family=family, max_position_embeddings=4096, num_hidden_layers=layers)
    recorder = Recorder()
    config: dict[str, Any] = CONFIG | LONG | {"max_num_seqs": seqs}
    graphs = FakeGraphs(fail=tier == "int4")  # a model that cannot be recorded is no exception
    runner = ModelRunner(artifact, EngineConfig(**config), kernels=Noted(recorder, graphs))
    at_boot = dict(recorder.found)
    draw = random.Random(0)
    for _ in range(60):
        runner.execute(batches(draw, runner.num_blocks, seqs))
    for rows in (1, 17, SLICE_ROWS):  # of scored prompts, when somebody looks at them
        runner.model.logits(torch.empty(rows, runner.shape.hidden, dtype=torch.bfloat16, device=NOWHERE))
    assert not [launch.key for key, launch in recorder.found.items() if key not in at_boot]
