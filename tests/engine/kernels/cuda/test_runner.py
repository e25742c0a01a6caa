"""The whole runner on a device that is none: the same bits as on the host, recorded or not, and one copy each way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.kernels.cuda.transfers import Transfers
from engine.protocol import AddRequest
from engine.request import SamplingParams
from engine.runner import ModelRunner
from tests.engine.kernels.cuda.fakes import CONFIG, FakeGraphs, device_runner, replay_of
from tests.engine.runners import compute, runner_on
from tests.engine.same_bits import check_any_batch_and_any_split, sequences
from tests.tiny import Tier, make_tiny_artifact

TIERS: list[Tier] = ["bf16", "int8", "int4"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("device"), num_hidden_layers=2)


def decode_batch(lengths: list[int], width: int = 8) -> list[BatchEntry]:
    """One row of each request, at the end of a context of so many tokens."""
    return [
        BatchEntry(str(i), [(5 * n + i) % 256], n - 1, list(range(i * width, i * width + -(-n // 16))), "last")
        for i, n in enumerate(lengths)
    ]


def prefilled(runner: ModelRunner, lengths: list[int]) -> ModelRunner:
    for i, entry in enumerate(decode_batch(lengths)):
        for start in range(0, lengths[i] - 1, 16):
            ids = [(p * 7 + i) % 256 for p in range(start, min(start + 16, lengths[i] - 1))]
            runner.execute([BatchEntry(str(i), ids, start, entry.block_table, "none")])
    return runner


def caches_of(runner: ModelRunner) -> list[Tensor]:
    return [t.clone() for cache in runner.caches for t in cache.tensors]


@pytest.mark.parametrize("tier", TIERS)
def test_any_batch_and_any_split_give_the_same_bits(artifacts: dict[str, Path], tier: Tier) -> None:
    graphs = FakeGraphs()
    runner = device_runner(artifacts[tier], graphs, max_num_batched_tokens=128)
    check_any_batch_and_any_split(runner, sequences(4), rounds=1)
    assert graphs.captures == len(replay_of(runner).graphs) == 4


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int4"])
@pytest.mark.parametrize("lengths", [[20], [33, 1, 50, 16, 17]])
def test_a_recorded_decode_step_has_the_bits_of_the_host(artifact: Path, lengths: list[int], kv_dtype: str) -> None:
    graphs = FakeGraphs()
    config = CONFIG | {"compute_dtype": "bfloat16", "kv_dtype": kv_dtype, "backend": "cpu"}
    host = prefilled(runner_on("reference", artifact, EngineConfig(**config)), lengths)
    there = prefilled(device_runner(artifact, graphs, kv_dtype=kv_dtype), lengths)
    assert graphs.replays == 0
    for expected, found in zip(
        compute(host, decode_batch(lengths)), compute(there, decode_batch(lengths)), strict=True
    ):
        assert expected is not None
        assert found is not None
        assert torch.equal(expected, found)
    assert graphs.replays == 1


def test_a_replay_reads_what_its_step_brings(artifact: Path) -> None:
    """Two batches of one class and then the first again: nothing of a step stays for the next."""
    lengths = [40, 7, 22]
    graphs = FakeGraphs()
    runner = prefilled(device_runner(artifact, graphs), lengths)
    first = [t.clone() for t in compute(runner, decode_batch(lengths)) if t is not None]
    turned = [t.clone() for t in compute(runner, decode_batch(lengths)[::-1]) if t is not None]
    again = [t.clone() for t in compute(runner, decode_batch(lengths)) if t is not None]
    assert graphs.replays == 3
    assert not torch.equal(first[0], first[1])
    for a, b, c in zip(first, turned[::-1], again, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_padding_writes_to_the_scratch_block_only(artifact: Path) -> None:
    """Five requests run in the class of eight: of the pool no block changes but at the five slots."""
    lengths = [16, 17, 33, 3, 40]
    runner = prefilled(device_runner(artifact, FakeGraphs()), lengths)
    before = caches_of(runner)
    batch = decode_batch(lengths)
    runner.execute(batch)
    written = {(e.block_table[-1], e.start % 16) for e in batch}
    changed = set()
    for old, new in zip(before, caches_of(runner), strict=True):
        assert len(new) == runner.num_blocks + 1
        places = (old != new).flatten(2).any(2).nonzero().tolist()
        changed |= {(b, at) for b, at in places if b < runner.num_blocks}
    assert changed == written


def test_what_the_runner_calls_best_is_the_largest_logit(artifact: Path) -> None:
    runner = prefilled(device_runner(artifact, FakeGraphs()), [40, 7])
    rows: list[Any] = runner.execute(decode_batch([40, 7]))
    for row in rows:
        token, logit = row.best
        assert token == int(row[:][0].argmax())
        assert logit == float(row[:][0].max())


class Counted(Transfers):
    """Counts the copies."""

    counts: dict[str, int]

    def send(self, nbytes: int, write: Callable[[Tensor], None], into: Tensor) -> None:
        self.counts["sent"] += 1
        super().send(nbytes, write, into)

    def fetch(self, results: Tensor, into: Tensor) -> Callable[[], None]:
        self.counts["fetched"] += 1
        wait = super().fetch(results, into)

        def counted() -> None:
            self.counts["waited"] += 1
            wait()

        return counted


def test_one_copy_each_way_and_one_wait(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kernels.cuda.backend.Transfers", Counted)
    monkeypatch.setattr(Counted, "counts", {"sent": 0, "fetched": 0, "waited": 0}, raising=False)
    counts = Counted.counts
    runner = device_runner(artifact, FakeGraphs())

    def during(batch: list[BatchEntry], look: bool) -> dict[str, int]:
        before = dict(counts)
        rows: list[Any] = runner.execute(batch)
        if look:
            assert [row.best for row in rows]
        return {k: counts[k] - before[k] for k in counts}

    prompt = [BatchEntry("a", list(range(20)), 0, [0, 1], "none")]
    assert during(prompt, look=False) == {"sent": 1, "fetched": 0, "waited": 0}
    assert during(decode_batch([20, 18]), look=True) == {"sent": 1, "fetched": 1, "waited": 1}
    assert during(decode_batch([20, 18]), look=False) == {"sent": 1, "fetched": 1, "waited": 0}
    mixed = [*decode_batch([21]), BatchEntry("b", list(range(9)), 0, [9], "last")]
    assert during(mixed, look=True) == {"sent": 1, "fetched": 1, "waited": 1}


def test_a_model_that_cannot_be_recorded_runs_eagerly_and_says_why(
    artifact: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = prefilled(device_runner(artifact, FakeGraphs(fail=True)), [20])
    plain = prefilled(device_runner(artifact, None), [20])
    assert "decode steps run without graphs: operation not permitted" in caplog.text
    assert runner.derived["device"]["graphs"] == 0
    assert runner.derived["device"]["graphs_reason"] == "operation not permitted when stream is capturing"
    assert plain.derived["device"]["graphs_reason"] == "switched off"
    (found,), (expected,) = compute(runner, decode_batch([20])), compute(plain, decode_batch([20]))
    assert found is not None
    assert expected is not None
    assert torch.equal(found, expected)


def tokens_of(core: EngineCore, **params: Any) -> dict[str, list[int]]:
    """Of six requests that come while others run, with a pool too small for all of them."""
    found: dict[str, list[int]] = {}
    waiting = [(f"r{i}", [(3 * i + p) % 256 for p in range(5 + 9 * i)]) for i in range(6)]
    while waiting or core.has_work:
        if waiting:
            name, prompt = waiting.pop()
            sampling = SamplingParams(max_tokens=6, ignore_eos=True, seed=7, **params)
            core.submit(AddRequest([name], prompt, sampling.to_wire()))
        for output in core.step():
            assert output.error is None
            if output.token is not None:
                found.setdefault(output.id, []).append(output.token)
    return found


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.8}, {"logprobs": 3}, {"prompt_logprobs": 2}],
    ids=["greedy", "seeded", "logprobs", "prompt logprobs"],
)
def test_the_core_draws_the_same_tokens_as_on_the_host(artifact: Path, params: dict[str, Any]) -> None:
    graphs = FakeGraphs()
    tight = {"compute_dtype": "bfloat16", "kv_pool_bytes": 12 * 16 * 2 * 2 * 2 * 16 * 2, "max_num_seqs": 4}
    there = device_runner(artifact, graphs, **tight)
    host = runner_on("reference", artifact, EngineConfig(**(CONFIG | tight | {"backend": "cpu"})))
    config = EngineConfig(**(CONFIG | tight))
    found = tokens_of(EngineCore(there, config), **params)
    assert found == tokens_of(EngineCore(host, config), **params)
    assert len(found) == 6
    assert graphs.replays > 0


@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "top_k": 20}], ids=["greedy", "seeded"])
def test_a_step_takes_tokens_that_lie_on_the_device(
    artifact: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In recorded and in eager steps; the host has not seen them by then."""
    host = runner_on("reference", artifact, EngineConfig(**(CONFIG | {"compute_dtype": "bfloat16", "backend": "cpu"})))
    config = EngineConfig(**CONFIG)
    expected = tokens_of(EngineCore(host, config), **params)
    for graphs in (FakeGraphs(), None):
        runner = device_runner(artifact, graphs, compute_dtype="bfloat16")
        inputs: list[list[int]] = []
        step = runner._step

        def noted(batch: list[BatchEntry], step: Any = step, inputs: list[list[int]] = inputs) -> Any:
            inputs.append([t for entry in batch for t in entry.token_ids])
            return step(batch)

        monkeypatch.setattr(runner, "_step", noted)
        assert tokens_of(EngineCore(runner, config), **params) == expected
        assert sum(all(t < 0 for t in tokens) for tokens in inputs) >= 3
