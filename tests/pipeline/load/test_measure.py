"""The stage against the mock server: as a foreign one, and as a child that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import yaml

from engine.artifact import ArtifactError, read_manifest
from loadtests.output import read_run
from pipeline.errors import SeatrialError
from pipeline.load import __main__ as load_main
from pipeline.load import child as child_module
from pipeline.load.measure import measure
from pipeline.load.metrics import SAMPLE_SCHEMA
from pipeline.provenance import Header
from pipeline.serving import Server
from pipeline.stage import Stage
from pipeline.targets.capabilities import promised
from pipeline.targets.foreign import foreign
from pipeline.targets.target import Target
from tests.loadtests.mock_server import Reply, mock_server
from tests.tiny import make_tiny_artifact

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.stage._MEASURING_LOCK", tmp_path / "lock")  # not the machine's
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # nor that of child processes


def profile(tmp_path: Path, duration_s: float = 1.2, **kwargs: Any) -> str:
    stage = {
        "name": "short_burst",
        "warmup_s": 0.2,
        "duration_s": duration_s,
        "arrivals": {"kind": "closed", "concurrency": 3},
        "prompt_tokens": {"kind": "fixed", "tokens": 12},
        "output_tokens": {"kind": "fixed", "tokens": 3},
    }
    value = {"name": "t", "kind": "smoke", "drain_s": 60, "output": {"fixed_by": "ignore_eos"}, "stages": [stage]}
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(value | kwargs))
    return str(path)


@pytest.fixture
def child() -> Iterator[Server]:
    """The mock server as a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.loadtests.mock_server"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        log = Path("server.log")
        log.write_text("last words of the server\n")
        yield Server(process, f"http://127.0.0.1:{port}", "mock", log)
        process.kill()


def owned(server: Server) -> Target:
    known = foreign(server.base_url, "mock")
    return Target(
        server.base_url, "mock", *known.identities, {"seed": 0}, {}, None, server.check, pid=server.process.pid,
        bundled=True, capabilities=promised(),
    )  # fmt: skip


def test_five_files_and_a_header(tmp_path: Path, child: Server) -> None:
    out = tmp_path / "results" / "x" / "load"
    load = measure(Stage("loadtest", "x"), owned(child), profile(tmp_path), 3, out, tmp_path / "locust.log")
    names = {"records.parquet", "run.json", "load.json", "server.json", "samples.parquet"}
    assert {p.name for p in out.iterdir()} == names
    assert load == json.loads((out / "load.json").read_text())
    header = Header.model_validate(load["header"])
    assert header.workload.name == "t (seed 3)"
    assert header.engine_derived == {"compute_dtype": "float32"}
    records, _ = read_run(out)
    due = records.filter(pl.col("phase") == "measured")
    figures = load["stages"]["short_burst"]
    assert figures["requests"] == figures["ok"] == due.height > 0
    assert load["overall"] == figures
    # An oracle of its own: numpy on the raw times.
    import numpy as np

    ttft = (due["first_token_s"] - due["due_s"]).to_numpy() * 1000
    assert figures["ttft_ms"]["p95"] == pytest.approx(np.quantile(ttft, 0.95, method="inverted_cdf"))
    assert set(load["definitions"]) <= set(figures)
    looks = {"trend", "step", "spikes", "stall", "memory", "blocks", "host", "client"}
    assert {f["kind"] for f in load["findings"]} == looks
    assert load["truncation"]["paired"]["n"] == 8
    assert {p["loaded_tokens"] for p in load["truncation"]["pairs"]} == {3}
    server = json.loads((out / "server.json").read_text())
    assert server["info"]["model"] == server["info_after"]["model"] == "mock"
    assert "seatrial_num_requests_running" in server["metrics_after"]
    samples = pl.read_parquet(out / "samples.parquet")
    assert samples.columns == list(SAMPLE_SCHEMA)
    assert samples.height >= 1
    assert samples["rss_bytes"].min() > 0  # type: ignore[operator]
    assert samples["stolen_s"].is_sorted()


def test_a_server_that_dies_is_named_and_leaves_the_earlier_result(tmp_path: Path, child: Server) -> None:
    out = tmp_path / "load"
    out.mkdir()
    (out / "load.json").write_text("earlier")
    ended: list[int] = []

    class Dying(Server):
        def check(self) -> None:
            if Path("locust.log").exists() and "users spawned" in Path("locust.log").read_text() and not ended:
                ended.append(1)
                self.process.kill()
                self.process.wait()
            super().check()

    server = Dying(child.process, child.base_url, child.model, child.log)
    with pytest.raises(
        SeatrialError, match=r"(?s)ended with exit code -9 while it was needed.*last words of the server"
    ):
        measure(Stage("loadtest", "x"), owned(server), profile(tmp_path, 60), 3, out, Path("locust.log"))
    assert ended
    assert (out / "load.json").read_text() == "earlier"
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []
    assert _locusts() == []


def _locusts() -> list[psutil.Process]:
    found = []
    for p in psutil.Process().children(recursive=True):
        try:
            if "locust" in p.cmdline():
                found.append(p)
        except psutil.NoSuchProcess:  # ended meanwhile, or ended and not yet waited for
            continue
    return found


def run_stage(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["load", *map(str, arguments)])
    load_main.main()


def test_a_foreign_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mock_server(Reply(first_s=0.01, usage="final", cached_tokens=None)) as server:
        run_stage(monkeypatch, "--tier", "mine", "--base-url", server.url + "/v1", "--profile", profile(tmp_path))
    load = json.loads(Path("results/mine/load/load.json").read_text())
    assert load["header"]["engine"]["name"] == f"foreign at {server.url} (unverified)"
    assert load["header"]["model"]["name"].startswith("mock ")
    assert load["stages"]["short_burst"]["prefix_hit_share"] is None
    assert load["stages"]["short_burst"]["ok"] > 0
    assert load["stages"]["short_burst"]["reasons"]["queue_ms.p50"].startswith("not measurable here")
    assert Path("reports/stages/loadtest@mine.json").is_file()
    found = load["capabilities"]["found"]
    assert (found["stream_usage"]["state"], found["running_usage"]["state"]) == ("yes", "no")
    assert "request log" in load["not_comparable"]["engine_logs"]
    assert "running_usage" in load["not_comparable"]
    # Nothing shows that it goes on to the length asked for, so its answers may be called cut off, but not short.
    assert load["not_comparable"]["ignore_eos"].startswith("throughput, E2E and answers' lengths: not measurable here")
    assert load["stages"]["short_burst"]["cut_off_share"] == 1.0


def test_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = [*child_module._LOCUST[:-1], str(ROOT / "tests/loadtests/patient_locustfile.py")]
    monkeypatch.setattr(child_module, "_LOCUST", patient)
    with mock_server(Reply(first_s=0.01)) as server:
        line = ["--tier", "mine", "--base-url", server.url, "--profile", profile(tmp_path), "--workers", "2"]
        run_stage(monkeypatch, *line)
    records, run = read_run(Path("results/mine/load"))
    assert records.height == sum(w.requests for w in run.workers) == run.stages[0]["requests"]
    assert records["request_id"].is_unique().all()
    assert set(records["worker"]) == {0, 1}
    assert [w.lost for w in run.workers] == [None, None]
    load = json.loads(Path("results/mine/load/load.json").read_text())
    assert load["client"] == run.client.model_dump(mode="json")
    assert _locusts() == []


def test_all_requests_failed_is_a_result_without_latencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(body: dict[str, Any]) -> Reply:
        first = body.get("messages", [{}])[-1].get("content") == "Say yes."  # the load client's own first request
        return Reply() if first else Reply(status=500, message="boom")

    with mock_server(reply) as server:
        run_stage(monkeypatch, "--tier", "mine", "--base-url", server.url, "--profile", profile(tmp_path))
    figures = json.loads(Path("results/mine/load/load.json").read_text())["stages"]["short_burst"]
    assert figures["ok"] == 0
    assert figures["error"] == figures["requests"] > 0
    assert figures["ttft_ms"] == {"p50": None, "p95": None, "p99": None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tier", "int3"], r"unknown tier 'int3'.*int8"),
        (["--tier", "../x", "--base-url", "http://127.0.0.1:1"], "it names a folder"),
        (["--tier", "int8", "--profile", "nope"], "no load profile 'nope'"),
        (
            ["--tier", "int8", "--profile", "release", "--duration-s", "60"],
            "measures 60 s; a release profile measures at least",
        ),
        (["--tier", "int8", "--model", "m"], "goes with --base-url"),
        (["--tier", "int8", "--workers", "0"], "--workers is 0; expected 1 or more"),
    ],
)
def test_wrong_arguments(monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    with pytest.raises(SeatrialError, match=message):
        run_stage(monkeypatch, *arguments)
    assert not Path("results").exists()


def test_nobody_at_the_base_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mock_server() as server:
        pass
    with pytest.raises(SeatrialError, match=r"stage loadtest@mine: .*expected an OpenAI-compatible server"):
        run_stage(monkeypatch, "--tier", "mine", "--base-url", server.url, "--profile", profile(tmp_path))
    assert not Path("results/mine/load").exists()


def test_a_server_that_reports_no_usage_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        mock_server(Reply(usage="none")) as server,
        pytest.raises(SeatrialError, match=r"(?s)Locust ended with exit code 2.*without usage"),
    ):
        run_stage(monkeypatch, "--tier", "mine", "--base-url", server.url, "--profile", profile(tmp_path))
    assert not Path("results/mine/load").exists()


def test_the_bundled_engine_on_a_tiny_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_artifact(Path("artifacts/int8"), "int8")
    value = yaml.safe_load(Path("params.yaml").read_text())
    value["engine"] |= {"max_model_len": 512, "compute_dtype": "float32", "threads": 1}
    Path("params.yaml").write_text(yaml.safe_dump(value))
    run_stage(monkeypatch, "--tier", "int8", "--profile", profile(tmp_path))
    load = json.loads(Path("results/int8/load/load.json").read_text())
    figures = load["stages"]["short_burst"]
    assert figures["requests"] == figures["ok"] > 0
    assert figures["output_tokens_mean"] == figures["asked_tokens_mean"] == 3
    assert figures["prefix_hit_share"] is not None
    manifest = read_manifest(Path("artifacts/int8"))
    assert load["header"]["quantisation"]["name"] == manifest.name
    assert load["header"]["engine_derived"]["compute_dtype"] == "float32"
    assert load["truncation"]["deterministic"]
    assert load["truncation"]["paired"]["shorter"] == load["truncation"]["paired"]["different"] == 0
    assert next(f for f in load["findings"] if f["kind"] == "blocks")["size"] == 0
    server = json.loads(Path("results/int8/load/server.json").read_text())
    assert server["info_after"]["steps"]["generation_tokens"] > server["info"]["steps"]["generation_tokens"]
    samples = pl.read_parquet("results/int8/load/samples.parquet")
    for column in samples.columns:
        assert samples[column].null_count() == 0, column
    # The server counted what the client did, the preflight's two tokens and the unmeasured requests included.
    records, _ = read_run(Path("results/int8/load"))
    made = server["metrics_after"]["seatrial_generation_tokens_total"]
    assert made == server["metrics_before"]["seatrial_generation_tokens_total"] + 2 + records["output_tokens"].sum()
    # Every answer is known to the engine's own log, which says how long it waited.
    waited = records.filter(pl.col("status") == "ok")["queued_s"]
    assert waited.null_count() == 0
    assert waited.min() >= 0  # type: ignore[operator]
    assert figures["intervals"]["queue_ms.p50"]["n"] == figures["ok"]
    assert figures["queue_ms"]["p50"] < figures["ttft_ms"]["p50"]


def test_an_artifact_that_was_changed_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_artifact(Path("artifacts/int8"), "int8")
    Path("artifacts/int8/config.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"config\.json"):
        run_stage(monkeypatch, "--tier", "int8", "--profile", profile(tmp_path))


def test_killed_it_leaves_no_locust_behind(tmp_path: Path) -> None:
    with mock_server(Reply(first_s=0.02)) as server:
        line = [sys.executable, "-m", "pipeline.load", "--tier", "mine", "--base-url", server.url]
        stage = subprocess.Popen([*line, "--profile", profile(tmp_path, 60)], stderr=subprocess.DEVNULL)
        try:
            while sum(s.body.get("max_tokens") == 3 for s in server.seen) < 5:  # the profile's, not the first questions
                assert stage.poll() is None
                time.sleep(0.05)
            children = psutil.Process(stage.pid).children(recursive=True)
            assert any("locust" in p.cmdline() for p in children)
            os.kill(stage.pid, signal.SIGKILL)
            stage.wait(240)
            gone, alive = psutil.wait_procs(children, timeout=240)
            assert gone
            assert not alive
        finally:
            stage.kill()
            stage.wait()
    assert not Path("results/mine/load").exists()
