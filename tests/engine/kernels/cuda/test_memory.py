"""Out of memory, told apart by its cause; what a limit grants; what the books say at boot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.kernels.cuda.memory import DeviceMemoryError, Figures, wanted_of
from engine.kernels.triton import launch
from engine.ledger import DEVICE_CHUNK, SPLIT_PROGRAMS, device_activation_bytes
from engine.measure import device_measured
from tests.engine.kernels.cuda.fakes import Books, FakeGraphs, device_runner
from tests.tiny import make_tiny_artifact

FIGURES = Figures(total=1000, free=600, reserved=300, allocated=200, highest=250)
MESSAGE = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.2 GiB"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("device"), num_hidden_layers=1)


@pytest.mark.parametrize(("wanted", "cause"), [(700, "fragmented"), (701, "exhausted"), (None, "exhausted")])
def test_causes_are_told_apart(wanted: int | None, cause: str) -> None:
    error = DeviceMemoryError(wanted, FIGURES)
    assert error.cause == cause
    assert f"device memory is {cause}" in str(error)
    assert "600 bytes free and 100 cached of 1000; 200 are in tensors" in str(error)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (MESSAGE, 5 * 2**29),
        ("Tried to allocate 512 bytes.", 512),
        ("Tried to allocate 20.00 MiB", 20 * 2**20),
        ("", None),
    ],
)
def test_the_size_is_read_from_the_allocators_message(message: str, size: int | None) -> None:
    assert wanted_of(message) == size


def test_a_limit_grants_what_is_there_but_for_the_reserve() -> None:
    memory = Books(total=1600, free=600, reserved=300, allocated=200).memory
    assert memory.grant(500) == 500
    assert memory.grant(5000) == 600  # 700 less a sixteenth of all
    assert Books(total=1600, free=40, reserved=0, allocated=0).memory.grant(500) == 0
    large = Books(total=2**36, free=2**36 - 1, reserved=0, allocated=0).memory
    assert large.grant(2**36) == 2**36 - 1 - 2**29


def test_the_allocators_error_becomes_ours_and_others_stay() -> None:
    memory = Books().memory
    with pytest.raises(DeviceMemoryError, match="exhausted: an allocation of 2684354560 bytes failed"), memory.told():
        raise torch.OutOfMemoryError(MESSAGE)
    with pytest.raises(RuntimeError, match="another"), memory.told():
        raise RuntimeError("another")


def test_the_pool_is_sized_by_what_the_device_has(artifact: Path) -> None:
    """Free and cached bytes less the reserve, not the larger limit, bound weights, activations and pool."""
    room = 2**26
    books = Books(total=2**28, free=room + 2**24 - 2**20, reserved=2**21, allocated=2**20)
    runner = device_runner(artifact, None, memory=books.memory, kv_pool_bytes=None, max_num_seqs=4096)
    ledger = runner.derived["ledger"]
    assert room - ledger["kv_bytes_per_block"] < ledger["total_bytes"] <= room


def test_the_books_are_reported(artifact: Path) -> None:
    books = Books(total=2**28, free=2**27, reserved=2**21, allocated=2**20)
    runner = device_runner(artifact, FakeGraphs(), memory=books.memory)
    assert books.forgotten == 1
    assert runner.derived["device"]["step_bytes"] == 0
    memory = runner.memory()
    assert memory["device_total_bytes"] == 2**28
    assert memory["device_allocated_bytes"] == 2**20
    per_block = runner.derived["ledger"]["kv_bytes_per_block"]
    assert memory["kv_pool_bytes"] == runner.derived["ledger"]["kv_pool_bytes"] + per_block  # and the scratch block


def test_a_step_without_memory_says_what_there_was(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = device_runner(artifact, None, memory=Books(free=2**27).memory)

    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError(MESSAGE)

    monkeypatch.setattr(runner.model.kernels, "rms_norm", fail)
    with pytest.raises(DeviceMemoryError, match="device memory is exhausted: an allocation of 2684354560 bytes"):
        runner.execute([BatchEntry("a", [1, 2], 0, [0], "last")])
    monkeypatch.setattr(torch, "tensor", fail)
    with pytest.raises(DeviceMemoryError, match="device memory is exhausted"):
        runner.copy_blocks([(0, 1)])


def test_the_plan_counts_chunks_as_the_kernels_split_them() -> None:
    assert (launch.AttentionTile().chunk, launch.SPLIT_PROGRAMS) == (DEVICE_CHUNK, SPLIT_PROGRAMS)


def test_the_plan_of_a_device_covers_what_a_step_holds(artifact: Path) -> None:
    """At least the rows of the widest operation and two sets of logits; and it grows with each of them."""
    runner = device_runner(artifact, None)

    def planned(**config: Any) -> int:
        return device_activation_bytes(runner.shape, EngineConfig(backend="cuda", **config), "bfloat16")

    base = {"max_num_batched_tokens": 512, "max_num_seqs": 16}
    assert planned(**base) > 512 * 3 * 160 * 2 + 2 * 16 * 272 * 4
    assert planned(**base | {"max_num_batched_tokens": 1024}) > planned(**base)
    assert planned(**base | {"max_num_seqs": 32}) > planned(**base)


def test_a_device_is_measured_by_its_books() -> None:
    memory = {
        "weights_bytes": 100,
        "kv_pool_bytes": 50,
        "device_highest_bytes": 190,
        "device_reserved_bytes": 220,
        "device_allocated_bytes": 155,
    }
    assert device_measured(memory) == {
        "weights_bytes": 100,
        "activation_bytes": 40,
        "kv_pool_bytes": 50,
        "total_bytes": 220,
    }
