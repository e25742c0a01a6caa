"""Triton's kernels themselves behind the recorded step, in Triton's interpreter, on a model of one layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.batch import BatchEntry
from engine.kernels.cuda.kernels import CudaKernels
from engine.kernels.triton.launch import INTERPRETED
from engine.runner import ModelRunner
from tests.engine.kernels.cuda.fakes import FakeGraphs, OnReference, device_runner, replay_of
from tests.engine.runners import compute
from tests.tiny import Tier, make_tiny_artifact

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="on a GPU test_gpu.py runs the kernels compiled")
SMALL = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "prefill_chunk_tokens": 16, "max_model_len": 32}


def steps(runner: ModelRunner) -> list[torch.Tensor]:
    """Two prompts, then a decode step of both: the rows of logits."""
    first = compute(
        runner,
        [BatchEntry("a", [5, 6, 7], 0, [3], "last"), BatchEntry("b", list(range(18)), 0, [1, 2], "last")],
    )
    second = compute(runner, [BatchEntry("a", [9], 3, [3], "last"), BatchEntry("b", [8], 18, [1, 2], "last")])
    return [t.clone() for t in (*first, *second) if t is not None]


@pytest.mark.parametrize("tier", ["bf16", "int4"])
def test_a_recorded_step_has_the_bits_of_an_eager_one_and_the_numbers_of_the_reference(
    tmp_path: Path, tier: Tier
) -> None:
    artifact = make_tiny_artifact(tmp_path, tier, num_hidden_layers=1)
    graphs = FakeGraphs()
    recorded = device_runner(artifact, graphs, CudaKernels, **SMALL)
    assert recorded.model.kernels.name == "cuda"
    found = steps(recorded)
    assert graphs.replays == 1
    assert len(replay_of(recorded).graphs) == 2
    replay_of(recorded).graphs.clear()
    eager = steps(recorded)
    assert graphs.replays == 1
    reference = steps(device_runner(artifact, None, OnReference, **SMALL))
    for mine, plain, right in zip(found, eager, reference, strict=True):
        assert torch.equal(mine, plain)
        assert (mine - right).abs().max() < 0.03 * right.abs().max()
