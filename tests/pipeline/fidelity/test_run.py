"""The measure on tiny models: against the reference itself, and against logits taken from the engine directly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from engine.artifact import ArtifactError, Named
from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.runner import ModelRunner
from pipeline.errors import SeatrialError
from pipeline.fidelity import run, table
from pipeline.fidelity.asking import Asker
from pipeline.fidelity.records import read_records
from pipeline.fidelity.run import Variant, measure
from pipeline.fidelity.texts import Sizes, Workload
from pipeline.stage import Stage
from pipeline.targets.target import Target
from tests.tiny import make_tiny_artifact

CONFIG = EngineConfig(max_model_len=256, memory_limit_bytes=2**28, threads=1, compute_dtype="float32")
HELD_OUT = [[(7 * i + s) % 256 for i in range(40)] for s in (1, 2)]
WORK = Workload(HELD_OUT, [[1, 2, 3], [9] * 70], [5 * i % 256 for i in range(200)], Named(name="w", digest="1" * 64))
SIZES = Sizes(held_out_tokens=80, sequence_tokens=40, prompts_per_scenario=1, long_tokens=200, output_tokens=6)


def distributions(artifact: Path) -> torch.Tensor:
    """float64 log-probabilities of HELD_OUT, [tokens, vocab], straight from the runner."""
    runner = ModelRunner(artifact, CONFIG)
    rows = []
    for ids in HELD_OUT:
        (logits,) = runner.execute([BatchEntry("x", ids, 0, list(range(16)), "all")])
        assert logits is not None
        rows.append(logits[slice(0, len(ids) - 1)].double().log_softmax(-1))
    return torch.cat(rows)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fidelity")
    make_tiny_artifact(root / "artifacts/bf16")
    make_tiny_artifact(root / "artifacts/int4", "int4")
    return root


@pytest.fixture(scope="module")
def records(places: Path) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as m:
        at(m, places)
        variants = [Variant("bf16"), Variant("int4"), Variant("bf16", "int8")]
        return measure("bf16", variants, CONFIG, WORK, SIZES, places / "work", Stage("fidelity", None))


def at(m: pytest.MonkeyPatch, root: Path) -> None:
    m.setattr(run, "ARTIFACTS", root / "artifacts")
    m.setattr(run, "RECORDS", root / "records")
    m.setattr(run, "LOGS", root / "logs")


def test_the_reference_is_exactly_itself(records: list[dict[str, Any]]) -> None:
    for part in records[0]["parts"].values():
        assert (part["kl_mean"], part["kl_max"], part["top1_agreement"]) == (0, 0, 1)
        assert part["perplexity"] == part["reference_perplexity"]
    assert records[0]["greedy"]["identical_share"] == 1
    assert records[0]["long"]["kl_mean"] == 0


def test_figures_are_those_of_the_logits(records: list[dict[str, Any]], places: Path) -> None:
    p, q = (distributions(places / "artifacts" / tier) for tier in ("bf16", "int4"))
    targets = torch.tensor([t for ids in HELD_OUT for t in ids[1:]])
    kl = (p.exp() * (p - q)).sum(1)
    found = records[1]["parts"]["held_out"]
    assert found["tokens"] == 78
    assert found["kl_mean"] == pytest.approx(float(kl.mean()), rel=1e-4)
    assert found["kl_max"] == pytest.approx(float(kl.max()), rel=1e-4)
    assert found["top1_agreement"] == pytest.approx(float((p.argmax(1) == q.argmax(1)).double().mean()))
    own = -q[torch.arange(78), targets].mean()
    assert found["perplexity"] == pytest.approx(float(own.exp()), rel=1e-4)


def test_an_int8_cache_is_a_variant_of_its_own(records: list[dict[str, Any]]) -> None:
    wide, narrow = records[0], records[2]
    assert (narrow["variant"], narrow["kv_dtype"]) == ("bf16+kv-int8", "int8")
    assert 0 < narrow["parts"]["held_out"]["kl_mean"] < records[1]["parts"]["held_out"]["kl_mean"]
    assert narrow["kv_bytes_per_token"] < wide["kv_bytes_per_token"]
    assert narrow["header"]["engine"]["digest"] != wide["header"]["engine"]["digest"]
    assert narrow["long"]["reason"] == "199 tokens; a slope needs 512"


def test_the_reference_has_16_bits_in_its_cache_whatever_the_engine_is_told(
    places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, places)
    monkeypatch.setattr(run, "RECORDS", tmp_path)
    narrow = CONFIG.model_copy(update={"kv_dtype": "int8"})
    asked = [Variant("bf16"), Variant("bf16", "int4")]
    eight, four = measure("bf16", asked, narrow, WORK, SIZES, tmp_path / "work", Stage("fidelity", None))
    assert (eight["kv_dtype"], eight["reference"]["engine_derived"]["kv_dtype"]) == ("int8", "float32")
    assert (four["variant"], four["kv_dtype"]) == ("bf16+kv-int4", "int4")
    assert 0 < eight["parts"]["held_out"]["kl_mean"] < four["parts"]["held_out"]["kl_mean"]
    assert four["kv_bytes_per_token"] < eight["kv_bytes_per_token"]


def test_records_are_written_and_distributions_are_not_kept(records: list[dict[str, Any]], places: Path) -> None:
    assert not (places / "work").exists()
    read = read_records(places / "records")
    assert [r["variant"] for r in read] == ["bf16", "bf16+kv-int8", "int4"]
    assert all(r in records for r in read)
    lines = table.markdown(read).splitlines()
    assert len(lines) == 5
    assert lines[2].startswith("| bf16 |")
    assert "| 100.00% |" in lines[2]


def test_records_of_two_workloads_are_not_one_table(records: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match="has no record; run `seatrial fidelity` first"):
        read_records(tmp_path)
    other = records[1] | {"header": records[1]["header"] | {"workload": {"name": "v", "digest": "2" * 64}}}
    for name, record in (("a", records[0]), ("b", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    with pytest.raises(SeatrialError, match=r"int4 was measured on v against .* measure them in one run"):
        read_records(tmp_path)
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(SeatrialError, match=r"b\.json is not a record of fidelity"):
        read_records(tmp_path)


def test_a_damaged_artifact_is_named(places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, tmp_path)
    damaged = make_tiny_artifact(tmp_path / "artifacts/bf16")
    weights = damaged / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"model\.safetensors: found .*the manifest says"):
        measure("bf16", [], CONFIG, WORK, SIZES, tmp_path / "work", Stage("fidelity", None))
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, {"error": {"message": "no room"}}, "/score: 400 .*no room"),
        (200, {"data": []}, "/score: IndexError: .*expected scores"),
    ],
)
def test_an_answer_that_is_none_is_an_error(status: int, body: dict[str, Any], message: str) -> None:
    nobody = Named(name="n", digest="0" * 64)
    target = Target("http://test", "m", nobody, nobody, nobody, {}, {}, None)
    asker = Asker(target, "r", False, httpx.MockTransport(lambda request: httpx.Response(status, json=body)))
    with pytest.raises(SeatrialError, match=message):
        asker.score([1, 2])
    asker.close()
