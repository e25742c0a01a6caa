"""`targets` of params.yaml: what is taken, what is refused, and that no message repeats a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import SeatrialError
from pipeline.params import Params, load_params
from pipeline.targets.choose import choose, spec_of
from pipeline.targets.keys import Key, looks_secret
from pipeline.targets.spec import CommandSpec, UrlSpec
from tests.pipeline.evaluation.make import write_params

SECRET = "sk-very-secret-1234"


def params_with(tmp_path: Path, **changes: Any) -> Params:
    write_params(tmp_path)
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
    return load_params(path)


def test_the_bundled_engine_is_the_default(tmp_path: Path) -> None:
    params = params_with(tmp_path)
    assert (params.target, params.targets, params.measured) == ("bundled", {}, ["bf16", "int8"])
    assert choose(params, "int8", None, None, None).bundled
    with pytest.raises(SeatrialError, match="unknown tier 'int3'"):
        choose(params, "int3", None, None, None)


def test_a_foreign_server_is_measured_beside_the_tiers_and_may_be_the_candidate(tmp_path: Path) -> None:
    there = {"there": {"kind": "url", "url": "https://h:8000/v1", "api_key_env": "THEIR_KEY"}}
    release = {"candidate": "there", "reference": "bf16"}
    params = params_with(tmp_path, targets=there, foreign=["there"], release=release)
    assert params.measured == ["bf16", "int8", "there"]
    chosen = choose(params, "there", "there", None, None)
    assert chosen.spec == UrlSpec(url="https://h:8000/v1", api_key_env="THEIR_KEY")
    assert not chosen.bundled
    assert params_with(tmp_path, targets=there, target="there").target == "there"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "x"}, "target is 'x', which targets does not describe; it has bundled"),
        ({"foreign": ["x"]}, "foreign names 'x', which is no foreign server"),
        ({"foreign": ["bundled"], "targets": {"bundled": {"kind": "bundled"}}}, "foreign names 'bundled'"),
        ({"targets": {"int8": {"kind": "url", "url": "http://h"}}, "foreign": ["int8"]}, "a tier and a foreign server"),
        ({"targets": {"a/b": {"kind": "url", "url": "http://h"}}, "foreign": ["a/b"]}, "it names a folder"),
        ({"targets": {"bundled": {"kind": "url", "url": "http://h"}}}, "that name is the bundled engine's"),
        ({"targets": {"x": {"kind": "ssh"}}}, "targets.x"),
        ({"targets": {"x": {"kind": "url", "url": "h:80"}}}, "expected http://HOST:PORT"),
        ({"targets": {"x": {"kind": "url", "url": "http://h", "image": "latest"}}}, r"targets\.x\.url\.image"),
        ({"targets": {"x": {"kind": "command"}}}, "give one of preset and start"),
        ({"targets": {"x": {"kind": "command", "start": ["serve"]}}}, r"start has no \{port\}"),
        ({"targets": {"x": {"kind": "command", "preset": "vllm", "start": ["{port}"]}}}, "one of preset and start"),
        ({"targets": {"x": {"kind": "command", "start": ["{port}"], "ray": True}}}, "ray goes with a preset"),
        ({"targets": {"x": {"kind": "command", "preset": "sglang", "ray": True}}}, "does not run on Ray"),
        (
            {"targets": {"x": {"kind": "command", "preset": "llama-server", "tensor_parallel": 2}}},
            "llama-server has no tensor_parallel",
        ),
        (
            {"targets": {"x": {"kind": "command", "preset": "sglang", "api_key_env": "K"}}},
            "takes its key on the command line only",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SeatrialError, match=words):
        params_with(tmp_path, **changes)


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "url", "url": f"http://me:{SECRET}@h"},
        {"kind": "url", "url": f"http://h/v1?key={SECRET}"},
        {"kind": "url", "url": "http://h", "api_key_env": SECRET},
        {"kind": "url", "url": "http://h", "api_key": SECRET},
        {"kind": "command", "preset": "vllm", "arguments": ["--api-key", SECRET]},
        {"kind": "command", "preset": "vllm", "arguments": [f"--hf-token={SECRET}"]},
        {"kind": "command", "preset": "vllm", "environment": {"VLLM_API_KEY": SECRET}},
    ],
)
def test_a_secret_in_params_is_refused_and_not_repeated(tmp_path: Path, entry: dict[str, Any]) -> None:
    with pytest.raises(SeatrialError, match=r"targets\.x") as caught:
        params_with(tmp_path, targets={"x": entry})
    assert SECRET not in str(caught.value)


def test_names_that_hold_secrets() -> None:
    secret = ("--api-key", "HF_TOKEN", "--password", "AWS_SECRET_ACCESS_KEY", "--auth")
    plain = ("--max-num-batched-tokens", "--tokenizer", "--api-key-file", "--port", "TOKENIZERS_PARALLELISM")
    assert [n for n in secret if not looks_secret(n)] == []
    assert [n for n in plain if looks_secret(n)] == []


def test_a_key_is_read_when_it_is_needed_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Key("SEATRIAL_TEST_KEY")
    monkeypatch.delenv("SEATRIAL_TEST_KEY", raising=False)
    with pytest.raises(SeatrialError, match=r"variable SEATRIAL_TEST_KEY \(api_key_env\) is not set or empty"):
        _ = key.headers
    monkeypatch.setenv("SEATRIAL_TEST_KEY", SECRET)
    assert key.headers == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in repr(key)
    said = {"a": [f"x {SECRET} y", 1, None], SECRET: (True,)}
    assert key.scrub(said) == {"a": ["x *** y", 1, None], "***": [True]}
    assert Key().scrub(said) is said
    assert Key().headers == {}


def line(**given: Any) -> str:
    return " ".join(CommandSpec(**given).command("int8", 4000))


def test_command_lines_of_the_presets() -> None:
    where = "--host 127.0.0.1 --port 4000"
    assert line(preset="vllm") == f"vllm serve artifacts/int8 {where} --served-model-name int8"
    spread = line(preset="vllm", tensor_parallel=2, pipeline_parallel=3, ray=True, arguments=["--seed", "1"])
    assert spread.endswith(
        "--tensor-parallel-size 2 --pipeline-parallel-size 3 --distributed-executor-backend ray --seed 1"
    )
    assert line(preset="sglang", tensor_parallel=4, program=["py", "-m", "s"]) == (
        f"py -m s --model-path artifacts/int8 {where} --served-model-name int8 --enable-metrics "
        "--tensor-parallel-size 4"
    )
    assert line(preset="llama-server", model="m.gguf", name="m") == (
        f"llama-server --model m.gguf {where} --alias m --metrics"
    )
    assert line(preset="llama-cpp-python", model="{tier}.gguf").startswith(
        f"python -m llama_cpp.server --model int8.gguf {where} --model_alias int8"
    )
    own = CommandSpec(start=["serve", "--at={port}", "{model}"], arguments=["--as", "{name}"], model="x")
    assert own.command("int8", 4000) == ["serve", "--at=4000", "x", "--as", "int8"]
    assert own.template == ["serve", "--at={port}", "{model}", "--as", "{name}"]
    assert (own.health_path, CommandSpec(preset="llama-cpp-python").health_path) == ("/health", "/v1/models")


def test_an_unknown_target_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    params = params_with(tmp_path, targets={"there": {"kind": "url", "url": "http://h"}})
    with pytest.raises(SeatrialError, match=r"unknown target 'vllm'; params\.yaml has bundled, there"):
        spec_of(params, "vllm")
