"""A recorded step against the same model run one operation after the other: equal bits, whatever is in the step."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.artifact import LinearSpec, read_manifest, write_manifest
from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.kernels.cpu import CpuKernels
from engine.kernels.cpu.program import Program
from engine.kernels.interface import StepInput, StepOutput, StepSizes
from engine.layers.linear import Linear
from engine.ledger import step_row_bytes
from engine.runner import ModelRunner
from tests.tiny import Family, Tier, make_tiny_artifact

FAMILIES: list[Family] = ["llama", "mistral", "qwen2", "qwen3", "gemma3"]
TIERS: list[Tier] = ["bf16", "int8", "int4", "int4-a8"]
DTYPES = ["float32", "bfloat16"]
TABLES = {"a": [0, 1, 2, 3], "b": [4, 5, 6], "c": [7, 8], "d": [9, 10]}


def runner_of(path: Path, dtype: str = "float32", kv: str = "auto", **config: object) -> ModelRunner:
    asked = {"compute_dtype": dtype, "kv_dtype": kv, "max_model_len": 128, "max_num_batched_tokens": 256, **config}
    return ModelRunner(path, EngineConfig.model_validate({"threads": 3, **asked}))


def batches(wanted: str = "last") -> list[list[BatchEntry]]:
    """A prompt with others, chunks of which nothing is wanted, then decodes beside a chunk."""

    def entry(name: str, start: int, count: int, logits: str) -> BatchEntry:
        tokens = [(31 * ord(name) + 7 * p) % 270 for p in range(start, start + count)]
        return BatchEntry(name, tokens, start, TABLES[name], logits)  # type: ignore[arg-type]

    return [
        [entry("a", 0, 40, "last"), entry("b", 0, 17, "none"), entry("c", 0, 1, wanted)],
        [entry("d", 0, 3, "none")],
        [entry("a", 40, 1, "last"), entry("b", 17, 20, wanted), entry("c", 1, 1, "last")],
        [entry("c", 2, 1, "last")],
    ]


def outputs(runner: ModelRunner, wanted: str = "last") -> list[list[torch.Tensor]]:
    """Logits of all rows that are wanted, then keys and values."""
    made = [[rows[:] for rows in runner.execute(batch) if rows is not None] for batch in batches(wanted)]
    return [*made, [t.clone() for cache in runner.caches for t in cache.tensors]]


def expect_equal(path: Path, wanted: str = "last", **config: object) -> None:
    recorded, plain = runner_of(path, **config), runner_of(path, **config)  # type: ignore[arg-type]
    assert isinstance(recorded._run, Program)
    plain._run = plain._run_plainly
    for step, (found, expected) in enumerate(zip(outputs(recorded, wanted), outputs(plain, wanted), strict=True)):
        assert len(found) == len(expected)
        assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True)), f"step {step}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tier", TIERS)
def test_equals_the_operations_one_by_one(tmp_path: Path, family: Family, tier: Tier) -> None:
    make_tiny_artifact(tmp_path, tier, family=family)
    for dtype, kv in product(DTYPES, ["auto", "int8", "int4"]):
        expect_equal(tmp_path, dtype=dtype, kv=kv)


@pytest.mark.parametrize("tier", TIERS)
def test_biases_a_head_of_its_own_and_scored_rows(tmp_path: Path, tier: Tier) -> None:
    make_tiny_artifact(tmp_path, tier, tie_word_embeddings=False, attention_bias=True, mlp_bias=True)
    for dtype in DTYPES:
        expect_equal(tmp_path, "all", dtype=dtype)


def test_layers_of_mixed_schemes(tmp_path: Path) -> None:
    """Products that are joined, and a norm that is read in 8 bits and as it is."""
    make_tiny_artifact(tmp_path, "int8")
    manifest = read_manifest(tmp_path)
    spared = [LinearSpec(pattern=f"*.{name}_proj", scheme="bf16") for name in ("k", "up")]
    write_manifest(tmp_path, manifest.model_copy(update={"linears": [*spared, *manifest.linears]}))
    from safetensors.torch import load_file, save_file

    tensors = load_file(tmp_path / "model.safetensors")
    for name in [n for n in tensors if n.endswith(("k_proj.weight", "up_proj.weight"))]:
        tensors[name] = (tensors[name] * tensors.pop(f"{name}_scale")).to(torch.bfloat16)
    save_file(tensors, tmp_path / "model.safetensors")
    for dtype in DTYPES:
        runner = runner_of(tmp_path, dtype)
        layer = runner.model.layers[0]
        assert (len(layer.attention.qkv.parts), len(layer.mlp.gate_up.parts)) == (3, 2)
        expect_equal(tmp_path, dtype=dtype)


def test_an_8_bit_head(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path, "int8")
    recorded, plain = runner_of(tmp_path), runner_of(tmp_path)
    for runner in (recorded, plain):
        weight = torch.randint(-127, 128, (272, 64), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
        stored = {"weight": weight, "weight_scale": torch.rand(272, 1, generator=torch.Generator().manual_seed(1))}
        runner.model.head = runner.model.kernels.pack_linear(stored, LinearSpec(pattern="*", scheme="w8a8"), None)
    replay = recorded.model.kernels.record(recorded.model, recorded.caches, StepSizes(64, 16, 128))
    assert replay is not None
    recorded._run, plain._run = replay, plain._run_plainly
    for found, expected in zip(outputs(recorded), outputs(plain), strict=True):
        assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def test_more_rows_than_reserved(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    small = runner_of(tmp_path, max_num_batched_tokens=16, prefill_chunk_tokens=16)
    for found, expected in zip(outputs(small), outputs(runner_of(tmp_path)), strict=True):
        assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("isa", ["auto", "avx2"])
@pytest.mark.parametrize("kv", ["float32", "bfloat16", "int8", "int4"])
def test_one_token_of_every_request(tmp_path: Path, kv: str, isa: str) -> None:
    """Attention of such steps has kernels of its own: all edges of pieces, strips and ranges; one head of keys for one
    to four of queries, and for more, which go the general way."""
    lengths = [0, 1, 14, 15, 16, 63, 64, 65, 126, 127, 128, 129, 191, 192, 300, 384]
    tables = [[28 * i + (5 * j + i) % 28 for j in range(28)] for i in range(len(lengths))]
    shapes = [(4, 2, 128), (3, 1, 64), (4, 1, 64), (5, 1, 64)]
    for (heads, kv_heads, dim), threads in zip(shapes, (1, 2, 1, 2), strict=True):
        sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim}
        make_tiny_artifact(tmp_path, "int8", num_hidden_layers=1, max_position_embeddings=512, **sizes)
        asked = {"kv": kv, "threads": threads, "isa": isa, "max_model_len": 448, "max_num_batched_tokens": 512}
        recorded, plain = (runner_of(tmp_path, **asked) for _ in range(2))  # type: ignore[arg-type]
        plain._run = plain._run_plainly
        found = []
        for runner in (recorded, plain):
            made = []
            for i, length in enumerate(lengths):
                if length:
                    tokens = [(7 * p + i) % 270 for p in range(length)]
                    runner.execute([BatchEntry(f"{i}", tokens, 0, tables[i], "none")])
            for step in range(2):
                batch = [
                    BatchEntry(f"{i}", [i + 1], length + step, tables[i], "last") for i, length in enumerate(lengths)
                ]
                if step:  # and some more of one
                    batch[-1] = BatchEntry("15", [3, 4, 5], lengths[-1] + step, tables[-1], "last")
                made += [rows[:].clone() for rows in runner.execute(batch) if rows is not None]
            found.append(torch.cat(made))
        assert len(found[0]) == 2 * len(lengths)
        assert torch.equal(*found), (heads, kv_heads, dim)


def run_once(runner: ModelRunner, with_logits: bool = True) -> StepOutput:
    with torch.inference_mode():
        return runner._run(runner._step(batches()[0]), with_logits)


def test_the_first_of_the_largest_logits(tmp_path: Path) -> None:
    """In any place of a vector or after the last one; on ties the first; NaN where any is."""
    make_tiny_artifact(tmp_path, vocab_size=275, tie_word_embeddings=False)
    runner = runner_of(tmp_path, threads=1)
    assert isinstance(runner._replay, Program)
    found = run_once(runner)
    assert found.logits is not None
    assert found.best == [(int(row.argmax()), float(row.max())) for row in found.logits]
    weight = torch.zeros(275, 64)
    for rows, expected in [([274], 274), ([272, 274], 272), ([17, 40], 17), ([0], 0), ([31, 32], 31), ([], 0)]:
        weight.zero_()
        weight[rows] = 1e-3
        best = best_with(runner, weight * run_once(runner).hidden[0].float())
        assert best[0] == expected
        for broken in (0, 31, 200, 274):
            damaged = weight.clone()
            damaged[broken] = float("nan")
            assert best_with(runner, damaged)[1] != best_with(runner, damaged)[1]  # NaN


def best_with(runner: ModelRunner, weight: torch.Tensor) -> tuple[int, float]:
    runner.model.head = runner.model.kernels.pack_linear({"weight": weight}, None, None)
    replay = runner.model.kernels.record(runner.model, runner.caches, StepSizes(64, 16, 128))
    assert replay is not None
    with torch.inference_mode():
        best = replay(runner._step(batches()[0]), True).best
    assert best is not None
    return best[0]


def test_logits_only_where_they_are_asked_for(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    runner = runner_of(tmp_path)
    both, hidden = run_once(runner), run_once(runner, with_logits=False)
    assert (hidden.logits, hidden.best) == (None, None)
    assert torch.equal(hidden.hidden, both.hidden)


def test_a_profile_has_every_layer(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path, "int8")
    runner = runner_of(tmp_path)
    assert runner.profile(on=True) == []
    run_once(runner)
    rows = runner.profile(on=False)
    assert all(seconds > 0 for *_, seconds in rows)
    kinds = {kind for kind, layer, _ in rows if layer == 1}
    assert kinds == {"product_int", "queries", "attend", "quantise", "norm"}
    assert [kind for kind, layer, _ in rows if layer is None] == ["embed", "norm", "product", "best"]
    assert runner.profile(on=False) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ledger_knows_the_working_memory(tmp_path: Path, family: Family) -> None:
    """Within a buffer's alignment for each of some ten buffers, and rows in 8 bits."""
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 384}
    for tier, dtype in product(TIERS, DTYPES):
        make_tiny_artifact(tmp_path, tier, family=family, **sizes)
        runner = runner_of(tmp_path, dtype)
        assert isinstance(runner._replay, Program)
        planned = step_row_bytes(runner.shape, dtype)
        assert planned * 0.7 < runner._replay.row_bytes < planned + 384 + 640


def test_tensors_from_elsewhere_are_refused() -> None:
    kernels = CpuKernels(torch.float32, threads=1)
    linear = Linear([kernels.pack_linear({"weight": torch.ones(8, 8)}, None, None)])

    class Wrong:
        head = linear.parts[0]

        def run(self, ops: object, step: StepInput, caches: object) -> torch.Tensor:
            return linear(ops, torch.ones(1, 8))  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="a tensor that no operation has made"):
        kernels.record(Wrong(), [], StepSizes(1, 1, 1))
