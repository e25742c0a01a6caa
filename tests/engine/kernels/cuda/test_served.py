"""``device: cuda`` alone: what the core is built as, what it tells the server, and how its memory is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import measure
from engine.artifact import ArtifactError
from engine.config import EngineConfig
from engine.kernels import registry
from engine.kernels.cuda.backend import Device
from engine.process import build
from engine.protocol import LENGTH_BYTES, AddRequest, decode, encode
from engine.request import SamplingParams
from tests.engine.kernels.cuda.fakes import Books, FakeGraphs, OnReference
from tests.tiny import make_tiny_artifact

CONFIG: dict[str, Any] = {
    "device": "cuda", "max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 32,
    "prefill_chunk_tokens": 32, "threads": 1,
}  # fmt: skip


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    """Of a device that is none, where the engine looks for one."""
    made = Books(total=2**27, free=2**26, reserved=2**23, allocated=2**22)

    def kernels(dtype: torch.dtype, threads: int, target: str | None) -> OnReference:
        return OnReference(dtype, threads, Device(torch.device("cpu"), "H", FakeGraphs, made.memory, (9, 0)))

    monkeypatch.setitem(registry.BACKENDS, "cuda", [("cuda", kernels)])
    monkeypatch.setattr("engine.runner.capability_of", lambda backend: (9, 0))
    return made


def test_the_setting_is_all_that_is_needed(tmp_path: Path, books: Books) -> None:
    config = EngineConfig(**CONFIG)
    core, about = build(make_tiny_artifact(tmp_path / "tiny", num_hidden_layers=1), config)
    core.submit(AddRequest(["a"], [1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True).to_wire()))
    found = [o.token for _ in range(9) for o in core.step() if o.token is not None]
    assert len(found) == 3
    told = decode(encode({"type": "ready", **about})[LENGTH_BYTES:])
    derived = told["derived"]
    assert (derived["compute_dtype"], derived["compute_dtype_reason"]) == ("bfloat16", "cuda")
    assert derived["device"]["name"] == "H"
    assert derived["device"]["graphs"] > 0
    assert told["memory"]["device_total_bytes"] == 2**27


def test_the_limit_is_what_the_device_has_and_not_the_host(tmp_path: Path, books: Books) -> None:
    """What is free and cached, less the reserve."""
    books.figures = replace(books.figures, free=2**23, reserved=2**22 + 2**16)
    with pytest.raises(ArtifactError, match=f"limit {2**16} bytes"):
        build(make_tiny_artifact(tmp_path / "tiny", num_hidden_layers=1), EngineConfig(**CONFIG))


def test_memory_is_measured_by_the_devices_books(tmp_path: Path, books: Books) -> None:
    artifact = make_tiny_artifact(tmp_path / "tiny", num_hidden_layers=1)
    found = measure.measure(artifact, EngineConfig(**CONFIG), tmp_path)
    assert found["measured"]["total_bytes"] == 2**23
    assert found["largest_step"]["tokens"] == 32
