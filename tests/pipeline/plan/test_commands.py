"""`seatrial plan scale` as a user types it; and that its memory is what `seatrial plan` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from engine.config import EngineConfig
from pipeline import cli
from pipeline.errors import SeatrialError
from pipeline.params import load_params
from pipeline.plan.memory import plan_of_directory
from tests.tiny import make_tiny_artifact

ROOT = Path(__file__).parents[3]
CPU = ["--device", "own", "--device-gbs", "20", "--device-tflops", "0.5", "--device-memory-gib", "40"]
SEVEN_B = ["--layers", "32", "--hidden", "4096", "--params", "7e9"]


def asked(*arguments: str) -> Any:
    done = CliRunner().invoke(cli.app, ["plan", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_the_memory_of_one_device_is_that_of_plan() -> None:
    """Byte for byte, every line of the ledger."""
    size = ["--max-model-len", "2304", "--max-num-seqs", "8", "--memory", "40"]
    ledger = asked(*SEVEN_B, *size)["ledger"]
    scaled = asked("scale", *SEVEN_B, *CPU, "--context", "2048", "--output", "256", "--concurrency", "8")
    assert scaled["splits"][0]["split"] == "one device"
    assert scaled["splits"][0]["ledger"] == ledger
    assert scaled["model"]["kv_bytes_per_token"] == ledger["kv_bytes_per_token"]


def test_the_memory_of_an_artifact_is_that_of_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_artifact(tmp_path / "tiny", "int8")
    monkeypatch.chdir(ROOT)
    told = asked("--artifact", str(tmp_path / "tiny"))["ledger"]
    scaled = asked("scale", "--model", str(tmp_path / "tiny"), *CPU, "--context", "100", "--concurrency", "3")
    one = scaled["splits"][0]["ledger"]
    for key in ("weights_bytes", "kv_bytes_per_token", "kv_bytes_per_block", "block_size"):
        assert one[key] == told[key], key
    engine = load_params(ROOT / "params.yaml").engine
    same = engine.model_copy(update={"max_model_len": 356, "max_num_seqs": 3, "memory_limit_bytes": 40 * 1024**3})
    assert one == plan_of_directory(tmp_path / "tiny", same)[1].model_dump()
    assert scaled["splits"][-1]["split"] == "pp2"


def test_without_params_yaml_an_artifact_gets_the_engines_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_artifact(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    scaled = asked("scale", "--model", "tiny", *CPU, "--devices", "1", "--context", "100")
    assert scaled["splits"][0]["ledger"]["block_size"] == EngineConfig().block_size
    with pytest.raises(SeatrialError, match="are 2,304 tokens together, but tiny has 512 positions; ask for fewer"):
        CliRunner().invoke(cli.app, ["plan", "scale", "--model", "tiny", *CPU], catch_exceptions=False)


def test_the_page_has_the_answer_first_then_the_table_then_the_flip_points() -> None:
    options = ["--model", "llama-3.1-8b", "--device", "h100", "--links", "ethernet-10"]
    done = CliRunner().invoke(cli.app, ["plan", "scale", *options], catch_exceptions=False)
    lines = done.output.splitlines()
    assert lines[0].startswith("Fits on one device: do not spread. One device: 6.52 ms a token")
    heads = next(i for i, line in enumerate(lines) if line.startswith("split "))
    assert [line.split("  ")[0] for line in lines[heads + 1 : heads + 5]] == ["one device", "dp2", "tp2", "pp2"]
    flips = lines.index("The answer flips")
    assert flips > heads
    assert "below 20.2 us a message" in lines[flips + 1]
    assert "Prefill on devices of its own" in lines[flips:]
    assert len(lines) < 40


def test_json_has_every_figure_and_no_infinity() -> None:
    value = asked("scale", "--model", "llama-3.1-70b", "--device", "h100", "--links", "nvlink4", "--devices", "8")
    assert value["schema_version"] == 1
    assert value["splits"][0]["times"] is None
    assert "141 GB of weights" in value["splits"][0]["why_not"]
    tp8 = next(s for s in value["splits"] if s["split"] == "tp8")
    assert tp8["times"]["decode"]["wire"]["messages"] > 0
    assert tp8["times"]["bound_by"] == "memory"
    prompt = tp8["times"]["prefill"]["wire"]
    assert tp8["wire_per_token"]["prefill"]["bytes"] * 2048 == pytest.approx(prompt["bytes_sent"])
    assert tp8["wire_per_token"]["decode"] == {
        "messages": tp8["times"]["decode"]["wire"]["messages"],
        "bytes": tp8["times"]["decode"]["wire"]["bytes_sent"],
    }
    assert {f["figure"] for f in value["flips"]} == {"itl", "ttft", "throughput"}
    assert value["disaggregation"]["kv_bytes"] == 2048 * 320 * 1024
    assert json.dumps(value, allow_nan=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--layers", "3", "scale"], "--layers stands before `scale`"),
        (["scale", *CPU], "give --model DIR or PRESET, or all of --layers, --hidden and --params"),
        (["scale", "--model", "gpt-9", *CPU], "'gpt-9' is neither a directory with config.json nor a preset"),
        (["scale", "--model", "llama-3.1-8b", "--layers", "3", *CPU], "--layers describes a model by numbers"),
        (["scale", "--model", ".", "--kv-dtype", "int8", *CPU], "--kv-dtype is what the artifact . decides"),
        (["scale", "--model", "llama-3.1-8b", "--kv-dtype", "fp3", *CPU], "unknown KV dtype 'fp3'"),
        (
            ["scale", "--model", "llama-3.1-8b", "--all-reduce", "magic", *CPU],
            "'magic' is not known; expected one of best",
        ),
    ],
)
def test_mistakes_are_told(arguments: list[str], words: str) -> None:
    with pytest.raises(SeatrialError, match=words):
        CliRunner().invoke(cli.app, ["plan", *arguments], catch_exceptions=False)


def test_a_sentence_of_a_tied_model_by_numbers() -> None:
    """A tied head is read as the embedding is held: once."""
    numbers = ["--layers", "4", "--hidden", "512", "--params", "2e7", "--vocab", "1000", *CPU, "--devices", "1"]
    apart, tied = asked("scale", *numbers), asked("scale", *numbers, "--tied")
    read = [v["splits"][0]["times"]["decode"]["memory_s"] for v in (apart, tied)]
    assert read[1] - read[0] == pytest.approx(1000 * 512 * 2 / 20e9)


def test_the_published_figures_are_shown_with_their_errors() -> None:
    done = CliRunner().invoke(cli.app, ["plan", "published"], catch_exceptions=False)
    assert "published figures: half of the predictions are off by a factor of" in done.output
    value = asked("published")
    assert all(c["predicted"] > 0 and c["title"] for c in value["cases"])
