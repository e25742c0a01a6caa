"""params.yaml: the shipped one is good, and a bad one says where and why."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline.errors import SeatrialError
from pipeline.params import load_params
from pipeline.quantize.registry import parse_entry

ROOT = Path(__file__).resolve().parents[2]


def _changed(tmp_path: Path, **change: object) -> Path:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({**raw, **change}))
    return path


def test_the_shipped_file_is_good() -> None:
    params = load_params(ROOT / "params.yaml")
    assert params.release.candidate in params.tiers
    assert params.recipe_of(params.release.reference)["recipe"] == "bf16"


def test_every_tier_of_the_graph_is_a_key_that_dvc_tracks() -> None:
    graph = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    assert graph["stages"]["quantize"]["foreach"] == "${tiers}"
    assert graph["stages"]["quantize"]["do"]["params"] == ["quantization.${item}"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tiers": ["bf16", "int3"]}, r"tiers names 'int3', which quantization does not describe; it describes .*bf16"),
        ({"extra": 1}, r"extra: Extra inputs are not permitted"),
        ({"engine": {"block_sise": 16}}, r"engine\.block_sise: Extra inputs are not permitted"),
        ({"engine": {"prefill_chunk_tokens": 1024}}, r"the step budget max_num_batched_tokens is 512"),
        ({"engine": {"prefill_chunk_tokens": 100}}, r"not a multiple of block_size 16"),
        ({"release": {"candidate": "int3", "reference": "bf16"}}, r"release\.candidate is 'int3'"),
        ({"evaluation": {"items": 0}}, r"evaluation\.items: Input should be greater than or equal to 1"),
        ({"model": {"source": "x", "sha256": "12"}}, r"model\.sha256"),
    ],
)
def test_a_bad_key_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(SeatrialError, match=message):
        load_params(_changed(tmp_path, **change))


def test_what_is_described_can_be_built_without_being_run() -> None:
    params = load_params(ROOT / "params.yaml")
    assert "int4-g64-a8" not in params.tiers
    for tier in params.quantization:
        assert parse_entry(tier, params.recipe_of(tier))[0].name == params.recipe_of(tier)["recipe"]


def test_an_unknown_tier_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SeatrialError, match=r"unknown tier 'int2'; params\.yaml has bf16, int8"):
        load_params(ROOT / "params.yaml").recipe_of("int2")


def test_not_yaml_and_not_there(tmp_path: Path) -> None:
    bad = tmp_path / "params.yaml"
    with pytest.raises(SeatrialError, match=r"params\.yaml not found"):
        load_params(bad)
    bad.write_text("a: [1")
    with pytest.raises(SeatrialError, match=r"is not YAML"):
        load_params(bad)
    bad.write_bytes(b"model: \xff\xfe")
    with pytest.raises(SeatrialError, match=r"is not YAML"):
        load_params(bad)
