"""What a config really takes on this machine: ``python -m engine.measure --artifact DIR --config-json JSON``.

Boots an engine core, fills the whole KV pool, runs the largest steps that the config allows, and prints one line of
JSON: the planned bytes and the measured ones.

    weights       storages of the model's tensors
    KV pool       storages of the caches, every page of them written to
    activations   what all other tensors that stay lie in, and how far the largest steps lift the process's memory
                  while the allocator hands every large block back at once
    total         the highest memory of the process, less what it had after its imports, while the allocator keeps as
                  much for later as it ever does; so with Python's objects and the allocator's slack, which nobody plans

On a device the allocator's own books are read instead: ``device_measured``.

A process's memory here is what is resident and its own (``RssAnon``): pages of libraries and other mapped files are not
in it.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.artifact import ArtifactError
from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.kernels.errors import UnavailableError
from engine.ledger import SLICE_ROWS, shared_tiles
from engine.memory import LEAST_KEPT_BYTES, MOST_KEPT_BYTES, give_back, keep_freed, status_bytes
from engine.process import build
from engine.protocol import AddRequest, StepRow
from engine.request import SamplingParams
from engine.runner import ModelRunner

CLEAR_REFS = Path("/proc/self/clear_refs")
COPIES = 256  # blocks copied at once while the pool is filled
REFERENCE_GIB = 64.0  # more than the one small file there will ever be


class MeasureError(Exception):
    """This machine does not let the memory of a process be measured: the message is the reason."""


def status(field: str) -> int:
    """Bytes of one of the fields of proc_pid_status(5).

    Raises:
        MeasureError: the system does not say.
    """
    if (found := status_bytes(field)) is None:
        raise MeasureError(f"/proc/self/status does not give {field}: resident memory is measured on Linux only")
    return found


def in_use() -> int:
    """The process's memory now, in bytes."""
    settle()
    return status("RssAnon")


def peak_of(steps: Callable[[], None]) -> int:
    """The process's highest memory during ``steps``, in bytes. They may not need code that was not there before."""
    settle()
    reset_peak()
    steps()
    return status("VmHWM") - status("RssFile")


def reset_peak() -> None:
    """``VmHWM`` counts from here (proc(5), clear_refs)."""
    try:
        CLEAR_REFS.write_text("5")
    except OSError as e:
        raise MeasureError(
            f"{CLEAR_REFS} cannot be written: {e}; the peak of a step cannot be told from earlier ones"
        ) from e


def settle() -> None:
    """Garbage and free pages go back, so that what is resident is in use."""
    gc.collect()
    give_back()


def storage_bytes() -> int:
    """All that the process's tensors lie in, each byte once. Not all of their storages: one that tensors are put into
    one by one has room that nobody has written to (``engine.kernels.cpu.pages``)."""
    spans = []
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.numel():  # isinstance would wake lazy attributes of modules
            last = sum((size - 1) * stride for size, stride in zip(thing.shape, thing.stride(), strict=True))
            spans.append((thing.data_ptr(), thing.data_ptr() + (last + 1) * thing.element_size()))
    total = reached = 0
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0)
        reached = max(end, reached)
    return total


class Trial:
    """An engine core and what is sent to it."""

    def __init__(self, core: EngineCore) -> None:
        self.core, self.config = core, core.config
        self.rows: list[StepRow] = []
        self._sent = 0

    def send(self, length: int, **params: Any) -> None:
        """One request; no two have a block in common."""
        first = 1 + self._sent % (self.core.runner.vocab_size - 1)
        prompt = [(first + i) % self.core.runner.vocab_size for i in range(length)]
        self.core.submit(AddRequest([str(self._sent)], prompt, SamplingParams(**params).to_wire()))
        self._sent += 1

    def run(self) -> None:
        """Until nothing is left to do.

        Raises:
            MeasureError: a request failed.
        """
        while self.core.has_work:
            errors = [o.error for o in self.core.step() if o.error]
            if errors:
                raise MeasureError(f"a request of the largest step failed: {errors[0]}")
        self.rows += self.core.take_steps()

    def fill_pool(self) -> None:
        """Every block of every layer gets the keys and values of one that was computed."""
        pool = self.core.runner.num_blocks
        for at in range(1, pool, COPIES):
            self.core.runner.copy_blocks([(0, target) for target in range(at, min(pool, at + COPIES))])

    def steps(self, rows: int, seqs: int, scored: int) -> None:
        """Steps of so many rows in so many requests: one draws from each; one scores all prompts; in one a single
        prompt is scored, and held to the reference that it left before."""
        for length in shares(rows, seqs):
            self.send(length, max_tokens=1, temperature=float(self._sent % 2), logprobs=20)
        self.run()
        for what in ("store", "reference"):
            self._sent = scored  # the same tokens
            self.send(scored, max_tokens=0, prompt_logprobs=20, **{what: f"rows-{scored}"})
            others = {"prompt_logprobs": 0} if what == "store" else {}
            for length in shares(rows - scored, seqs - 1):
                self.send(length, max_tokens=1, logprobs=20, **others)
            self.run()

    def shared_ranges(self) -> None:
        """The end of the longest context, in as many rows as have its ranges shared among threads."""
        runner, size = self.core.runner, self.config.block_size
        assert isinstance(runner, ModelRunner)
        blocks = min(-(-runner.max_model_len // size), runner.num_blocks)
        length = min(runner.max_model_len, blocks * size)
        tiles, tile_rows = shared_tiles(runner.shape, self.config)
        rows = min(tiles * tile_rows, self.config.max_num_batched_tokens, length)
        if rows:
            runner.execute([BatchEntry("shared ranges", [0] * rows, length - rows, list(range(blocks)), "none")])

    def largest_steps(self) -> None:
        """All rows that a step may have, all requests that may run; before them, what stays of a long context."""
        length = self.core.runner.max_model_len - 2
        rows = min(self.config.max_num_batched_tokens, self.config.max_num_seqs * length)
        self.shared_ranges()
        self.steps(rows, self.config.max_num_seqs, min(2 * SLICE_ROWS + 1, rows, length))


def shares(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` that differ by one at most, none of them 0."""
    parts = min(total, parts)
    return [total // parts + (i < total % parts) for i in range(parts)] if parts > 0 else []


def measure(artifact: Path, config: EngineConfig, references: Path) -> dict[str, Any]:
    """The line that is printed.

    Raises:
        ArtifactError: the artifact cannot be served under this config.
        MeasureError: the machine does not say what is asked, or a step fails.
    """
    torch.zeros(1)
    keep_freed(LEAST_KEPT_BYTES)
    imported = in_use()
    core, about = build(artifact, config, references, REFERENCE_GIB)
    runner = core.runner
    assert isinstance(runner, ModelRunner)
    trial = Trial(core)
    if config.backend == "cuda":
        trial.largest_steps()
        return report(about, trial, device_measured(runner.memory()), {"imported_bytes": imported})
    trial.steps(rows=4, seqs=3, scored=2)  # so that code is loaded and block 0 has something in it
    trial.fill_pool()
    filled, memory = in_use(), runner.memory()
    others = storage_bytes() - memory["weights_bytes"] - memory["kv_pool_bytes"]
    step_peak = peak_of(trial.largest_steps)
    keep_freed(MOST_KEPT_BYTES)
    peak = peak_of(trial.largest_steps)
    measured = {
        "weights_bytes": memory["weights_bytes"],
        "activation_bytes": others + step_peak - filled,
        "kv_pool_bytes": memory["kv_pool_bytes"],
        "total_bytes": peak - imported,
    }
    process = {
        "imported_bytes": imported,
        "pool_filled_bytes": filled,
        "step_peak_bytes": step_peak,
        "peak_bytes": peak,
    }
    return report(about, trial, measured, process)


def device_measured(memory: dict[str, int]) -> dict[str, int]:
    """Of a device, by its allocator: activations are what its tensors took at most beside weights and pool since the
    model was loaded; total is what it has taken from the device, with what it keeps for later."""
    weights, pool = memory["weights_bytes"], memory["kv_pool_bytes"]
    return {
        "weights_bytes": weights,
        "activation_bytes": memory["device_highest_bytes"] - weights - pool,
        "kv_pool_bytes": pool,
        "total_bytes": memory["device_reserved_bytes"],
    }


def report(about: dict[str, Any], trial: Trial, measured: dict[str, int], process: dict[str, int]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "derived": about["derived"],
        "largest_step": {
            "tokens": max(row.prefill_tokens + row.decode_requests for row in trial.rows),
            "requests": max(row.prefill_requests + row.decode_requests for row in trial.rows),
        },
        "measured": measured,
        "process": process,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="engine.measure", description=__doc__.partition("\n")[0])
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--config-json", required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(prefix="seatrial-measure-") as references:
            config = EngineConfig.model_validate_json(arguments.config_json)
            print(json.dumps(measure(arguments.artifact, config, Path(references))))
    except (ArtifactError, MeasureError, UnavailableError) as e:
        print(json.dumps({"schema_version": 1, "error": str(e)}))
        sys.exit(1)


if __name__ == "__main__":
    main()
