"""The command as a user runs it: a tiny model in process and over HTTP, transformers, a driver, a server."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from engine.bench.__main__ import main
from engine.bench.engines.contenders import add_options, contenders, device_of
from engine.bench.engines.drivers.ours import weight_facts
from engine.bench.engines.piped import PipedEngine
from engine.bench.engines.served import ServedEngine
from tests.tiny import CONFIG, make_tiny_artifact

HERE = Path(__file__).parent
DRIVER, SERVER = f"{sys.executable} {HERE / 'fake_driver.py'}", f"{sys.executable} {HERE / 'fake_server.py'}"
SMALL = {
    "max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 64, "prefill_chunk_tokens": 32,
    "memory_limit_bytes": 64 * 2**20, "threads": 1,
}  # fmt: skip
WORKLOADS = {
    "A": {"prompt": list(range(20)), "out": 30},
    "B": {"prompt": [3] * 70, "out": 1},
    "C3": [{"prompt": [i] * (10 + i), "out": 4 + i} for i in range(3)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    make_tiny_artifact(folder / "bf16", "bf16")
    make_tiny_artifact(folder / "int8", "int8")
    (folder / "workloads.json").write_text(json.dumps(WORKLOADS))
    return folder


def arguments(folder: Path, out: Path, *more: str) -> list[str]:
    workloads = ["--workloads", str(folder / "workloads.json")]
    return ["engine", "--out", str(out), "--config-json", json.dumps(SMALL), *workloads, *more]


@pytest.fixture(scope="module")
def done(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """Every kind of engine, two rounds; one of them dies in the warm-up, one URL is not there."""
    out = tmp_path_factory.mktemp("out")
    more = [
        "--artifact", str(folder / "int8"), "--http", "--set", "compute_dtype=float32",
        "--transformers", str(folder / "bf16"),
        "--peer", f"good={DRIVER}", "--peer", f"bad={DRIVER} dies", "--against", f"server={SERVER} {{port}}",
        "--against", "gone=http://127.0.0.1:9", "--skip", "server:C3", "--rounds", "2", "--base", "good",
        "--profile",
    ]  # fmt: skip
    assert main(arguments(folder, out, *more)) == 3
    return out, json.loads((out / "results.json").read_text()), more


def by_engine(results: dict[str, Any], workload: str) -> dict[str, Any]:
    found = next(w for w in results["workloads"] if w["name"] == workload)
    return {e["name"]: e for e in found["engines"]}


def test_everyone_who_could_was_measured(done: tuple[Path, dict[str, Any], list[str]]) -> None:
    results = done[1]
    whole = ["tiny-int8", "tiny-int8 http", "transformers float32", "server", "good"]
    assert [e["name"] for e in results["engines"]] == [*whole, "bad"]
    assert list(by_engine(results, "A")) == list(by_engine(results, "B")) == whole
    assert list(by_engine(results, "C3")) == [n for n in whole if n != "server"]
    for workload in ("A", "B", "C3"):
        for name, engine in by_engine(results, workload).items():
            assert engine["spreads"]["ttft_ms"]["rounds"] == 2, name
            assert engine["spreads"]["peak_bytes"]["median"] > 2**20, name
            assert bool(engine["ratios"]) == (name != "good")
    assert by_engine(results, "A")["good"]["spreads"]["itl_ms"]["median"] == pytest.approx(1.0)
    assert by_engine(results, "A")["good"]["spreads"]["output_tokens_per_s"]["median"] == pytest.approx(1000)


def test_what_is_missing_is_said_and_the_rest_is_there(done: tuple[Path, dict[str, Any], list[str]]) -> None:
    out, results, _ = done
    assert [m.partition(":")[0] for m in results["missing"]] == ["gone", "bad"]
    assert "out of luck" in results["missing"][1]
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 5  # one a workload, TTFT of A, the layers of a step
    assert "<script" not in page
    assert "Missing: gone: http://127.0.0.1:9 does not answer" in page
    assert sorted(p.name for p in out.iterdir()) == ["report.html", "requests.parquet", "results.json"]


def test_agreement_is_with_float32(done: tuple[Path, dict[str, Any], list[str]]) -> None:
    engines = by_engine(done[1], "A")
    assert engines["tiny-int8 http"]["agreement_tokens"] == [None, None]  # no ids over HTTP
    assert engines["good"]["agreement_tokens"] == [0, 0]
    assert all(0 <= n <= 30 for n in engines["tiny-int8"]["agreement_tokens"])
    assert engines["transformers float32"]["agreement_tokens"] == []


def test_raw_samples_are_kept(done: tuple[Path, dict[str, Any], list[str]]) -> None:
    """And figures follow from them: recomputed with other means."""
    rows = pl.read_parquet(done[0] / "requests.parquet")
    assert rows.height == 2 * (5 + 5 + 4 * 3)
    for workload in ("A", "C3"):
        for name, engine in by_engine(done[1], workload).items():
            for number in (0, 1):
                mine = rows.filter(
                    (pl.col("workload") == workload) & (pl.col("engine") == name) & (pl.col("round") == number)
                )
                ttft = 1000 * mine["token_s"].list.first().median()  # type: ignore[operator]
                itl = 1000 * mine["token_s"].list.diff(null_behavior="drop").explode().median()  # type: ignore[operator]
                assert engine["rounds"]["ttft_ms"][number]["value"] == pytest.approx(ttft)
                assert engine["rounds"]["itl_ms"][number]["value"] == pytest.approx(itl)


def test_what_engines_say_of_themselves(done: tuple[Path, dict[str, Any], list[str]]) -> None:
    engines = {e["name"]: e for e in done[1]["engines"]}
    ours, theirs = engines["tiny-int8"], engines["transformers float32"]
    assert ours["about"]["config"]["compute_dtype"] == ours["about"]["derived"]["compute_dtype"] == "float32"
    assert ours["about"]["config"]["prefix_caching"] is False
    assert len(ours["about"]["artifact_digest"]) == len(done[1]["engine_source_sha256"]) == 64
    assert (ours["about"]["model"]["name"], ours["about"]["recipe"]) == ("tiny random llama, seed 0", "int8")
    assert (ours["arithmetic"], theirs["arithmetic"]) == ("int8", "float32")
    # one model: as many weights whoever counts them; the head is in a step's bytes, the layers' count is without it
    layers, head = ours["layer_weights"], CONFIG["vocab_size"] * CONFIG["hidden_size"]
    assert theirs["layer_weights"] == layers
    assert theirs["step_weight_bytes"] == 4 * (layers + head)
    assert layers + 2 * head <= ours["step_weight_bytes"] < 2 * (layers + head)
    shares = {(s["engine"], s["workload"]) for s in done[1]["shares"]}
    assert shares == {(e, w) for e in ("tiny-int8", "transformers float32") for w in ("A", "B")}


def test_a_step_of_ours_is_taken_apart(done: tuple[Path, dict[str, Any], list[str]]) -> None:
    profiles = done[1]["profiles"]
    assert [(p["engine"], p["batch"]) for p in profiles] == [("tiny-int8", 1), ("tiny-int8", 4), ("tiny-int8", 1)]
    for p in profiles:
        assert 0 < p["python_share"] < 1
        assert sum(p["kernels_s"].values()) == pytest.approx(p["step_s"])


def test_settings_reach_the_artifact_they_name(folder: Path) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    int8 = str(folder / "int8")
    more = ["--artifact", f"mine={int8}", "--artifact", int8, "--http", "--config-json", json.dumps(SMALL)]
    settings = ["--set", "compute_dtype=float32", "--set", "mine:kv_dtype=int8", "--set", "mine:max_num_seqs=7"]
    engines = contenders(parser.parse_args([*more, *settings]))
    found = {}
    for engine in engines:
        assert isinstance(engine, PipedEngine | ServedEngine)
        found[engine.name] = json.loads(engine.command[engine.command.index("--config-json") + 1])
    assert list(found) == ["mine", "mine http", "tiny-int8", "tiny-int8 http"]
    for name, config in found.items():
        mine = name.startswith("mine")
        assert (config["kv_dtype"], config["max_num_seqs"]) == (("int8", 7) if mine else ("auto", 4))
        assert (config["compute_dtype"], config["prefix_caching"]) == ("float32", False)


def test_weight_facts_of_a_model_that_is_loaded(folder: Path) -> None:
    from engine.config import EngineConfig
    from engine.runner import ModelRunner

    model = ModelRunner(folder / "int8", EngineConfig(**SMALL)).model
    facts = weight_facts(model, "float32")
    assert facts["arithmetic"] == "int8"
    assert facts["step_weight_bytes"] <= model.nbytes


def test_drawn_workloads_and_one_engine(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["engine", "--out", str(tmp_path), "--peer", f"only={DRIVER}", "--vocab", "50", "--quick", "--warm-up", "0"]
    assert main(more) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(w["name"], w["prompt_tokens"], w["output_tokens"]) for w in results["workloads"]] == [
        ("A", 128, 128),
        ("B", 1024, 1),
    ]
    assert (results["rounds"], results["seed"]) == (2, 0)
    assert "A: one request, 128 tokens in, 128 out; median of 2 rounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "no engine is given: --artifact, --transformers, --against or --peer"),
        (["--artifact", "nowhere"], "nowhere is not a directory; expected an artifact"),
        (["--peer", "x"], "'x', expected NAME=... with something on both sides"),
        (["--peer", "x='"], "the command of x cannot be read: No closing quotation"),
        (["--peer", "x=a", "--peer", "x=b"], "two engines are called 'x'; give names"),
        (["--against", "x=server --port 80"], "--against x: the command has no {port}"),
        (["--transformers", "nowhere"], "--transformers nowhere has no config.json"),
        (["--transformers", "a", "float16"], "expected DIR and float32 or bfloat16"),
        (["--artifact", "ART", "--set", "kv_dtype=int3"], "the engine config is not valid: kv_dtype: Input should be"),
        (["--artifact", "ART", "--set", "prefix_caching=true"], "it is off; every round has the same prompts"),
        (["--artifact", "ART", "--set", "other:threads=1"], "no artifact is called 'other'"),
        (["--artifact", "ART", "--set", "threads"], "expected KEY=VALUE or NAME:KEY=VALUE"),
        (["--artifact", "ART", "--config-json", "{"], "--config-json is not a valid engine config"),
        (["--artifact", "ART", "--config-json", "[]"], "--config-json is not a valid engine config"),
        (["--artifact", "ART", "--base", "llama"], "--base 'llama': no such engine; there are: tiny-bf16"),
        (["--artifact", "ART", "--only", "D"], "unknown workload 'D'; known: A, B, C3"),
        (["--artifact", "ART", "--workloads", "nowhere.json"], "nowhere.json cannot be read"),
        (["--artifact", "ART", "--skip", "A"], "--skip 'A', expected ENGINE:WORKLOAD"),
        (["--artifact", "ART", "--rounds", "0"], "--rounds: '0', expected a number of at least 1"),
        (["--peer", "x=nowhere/at/all"], "no engine could be started: x: `nowhere/at/all` cannot be run"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_3(
    more: list[str], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [str(folder / "bf16") if m == "ART" else m for m in more]
    assert main(arguments(folder, tmp_path / "out", *more)) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ")
    assert message in lines[-1]
    assert not list((tmp_path / "out").glob("*"))


def test_ids_need_a_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--out", str(tmp_path), "--peer", f"only={DRIVER}"]) == 3
    assert "the vocabulary is not known: give --vocab N" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "device"),
    [
        ([], "cpu"),
        (["--device", "cuda"], "cuda"),
        (["--config-json", '{"device": "cuda"}'], "cuda"),
        (["--set", "backend=cuda"], "cuda"),
    ],
)
def test_both_sides_run_on_the_same_device(folder: Path, more: list[str], device: str) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    given = ["--artifact", str(folder / "int8"), "--transformers", str(folder / "int8"), *more]
    arguments = parser.parse_args(given)
    ours, theirs = contenders(arguments)
    assert isinstance(ours, PipedEngine)
    assert isinstance(theirs, PipedEngine)
    assert json.loads(ours.command[ours.command.index("--config-json") + 1])["backend"] == device
    assert theirs.command[theirs.command.index("--device") + 1] == device
    assert device_of(arguments) == device
