"""Evaluation and load test of a server with a key that says it wherever it can: it stands nowhere afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import polars as pl
import pytest
import yaml

from loadtests.client import Endpoint, Exchange, StreamClient, encoded
from pipeline.errors import SeatrialError
from pipeline.evaluation import __main__ as evaluate
from pipeline.load import __main__ as load
from pipeline.load.sweep.run import Asked, run_sweep
from tests.pipeline.evaluation.make import chat_item, choice_item, read_results, write_evalset, write_params
from tests.pipeline.targets import pretend
from tests.pipeline.targets.pretend import Pretend, serve

ROOT = Path(__file__).resolve().parents[3]
SECRET = "sk-0123456789-very-secret"
OTHER = "sk-9876543210-of-no-use"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.stage._MEASURING_LOCK", tmp_path / "lock")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of Locust, which is a process of its own
    monkeypatch.setenv("THEIR_KEY", SECRET)
    write_params(tmp_path)
    write_evalset(tmp_path, [chat_item("extract.0"), chat_item("extract.1", "refuse me"), choice_item()])
    line = [sys.executable, str(pretend.__file__), "{port}", json.dumps({"key_from": "THEIR_KEY"})]
    theirs = {"kind": "command", "start": line, "model": "x", "api_key_env": "THEIR_KEY"}
    changed = yaml.safe_load(Path("params.yaml").read_text()) | {"targets": {"theirs": theirs}}
    Path("params.yaml").write_text(yaml.safe_dump(changed))
    stage = {
        "name": "short_burst", "warmup_s": 0.2, "duration_s": 1.2, "arrivals": {"kind": "closed", "concurrency": 2},
        "prompt_tokens": {"kind": "fixed", "tokens": 12},
        "output_tokens": {"kind": "fixed", "tokens": pretend.EVERY_THIRD},
    }  # fmt: skip
    value = {"name": "t", "kind": "smoke", "drain_s": 60, "output": {"fixed_by": "max_tokens"}, "stages": [stage]}
    Path("profile.yaml").write_text(yaml.safe_dump(value))
    return tmp_path


def everything_below(folder: Path) -> str:
    """All files as text; tables, which are compressed, by their values."""
    texts = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if path.suffix == ".parquet":
            texts.append(json.dumps(pl.read_parquet(path).to_dicts(), default=str))
        else:
            texts.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(texts)


def test_the_key_is_in_no_file_log_error_output_or_argument(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments: list[str] = []
    begin = subprocess.Popen.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        arguments.append(repr(args) + repr({k: v for k, v in kwargs.items() if k != "env"}))
        begin(self, *args, **kwargs)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    evaluate.main(["--tier", "theirs", "--target", "theirs"])
    monkeypatch.setattr(sys, "argv", ["load", "--tier", "theirs", "--target", "theirs", "--profile", "profile.yaml"])
    load.main()
    outcome, rows = read_results(project, "theirs")
    records = pl.read_parquet("results/theirs/load/records.parquet")
    # It was served, it was refused with the key in the words, and the words are there without it.
    assert outcome["capabilities"]["found"]["prompt_logprobs"]["state"] == "yes"
    assert [r["reason"] for r in rows if r["status"] == "error"] == [
        "the server refused it: 400: I will not, whatever *** may be"
    ]
    refused = set(records.filter(pl.col("http_status") == 400)["reason"])  # how many there are is the machine's affair
    assert refused <= {"HTTP 400: I will not, whatever *** may be"}
    server = json.loads(Path("results/theirs/load/server.json").read_text())
    assert server["info"] == {"argv": ["--api-key", "***"]}
    assert "my key is ***" in Path(".seatrial/logs/evaluate@theirs.log").read_text()
    assert any("--api-key-env" in a for a in arguments)
    out, err = capfd.readouterr()
    for where in (everything_below(project), out, err, *arguments):
        assert SECRET not in where


def test_the_load_client_does_not_record_a_key_that_is_said_back() -> None:
    server = serve(Pretend(key=SECRET), 0)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    client = StreamClient(Endpoint(url, SECRET), 240)
    exchange = Exchange("r", "s", "measured", 0, 0.0, 2)
    client.send(exchange, encoded({"messages": [{"role": "user", "content": "refuse me"}], "stream": True}))
    client.close()
    server.shutdown()
    server.server_close()
    thread.join()
    assert (exchange.http_status, exchange.reason) == (400, "HTTP 400: I will not, whatever *** may be")


def test_nor_where_the_run_fails(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A server that wants another key and repeats ours when it says so."""
    monkeypatch.setenv("THEIR_KEY", OTHER)
    server = serve(Pretend(key=SECRET), 0)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    url = {"kind": "url", "url": f"http://127.0.0.1:{server.server_address[1]}", "api_key_env": "THEIR_KEY"}
    Path("params.yaml").write_text(
        yaml.safe_dump(yaml.safe_load(Path("params.yaml").read_text()) | {"targets": {"theirs": url}})
    )
    asked = Asked(
        server="theirs", base_url=None, model=None, tier=None, profile="profile.yaml", stage=None, ttft_ms=500,
        tpot_ms=50, target=0.9, lowest=1, highest=2, budget_s=600, requests=20, probe_s=2, tolerance=0.1, seed=1,
        out=project / "sweep",
    )  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["load", "--tier", "theirs", "--target", "theirs", "--profile", "profile.yaml"])
    errors = []
    for command in (lambda: evaluate.main(["--tier", "x", "--target", "theirs"]), load.main, lambda: run_sweep(asked)):
        with pytest.raises(SeatrialError, match="401") as caught:
            command()
        errors.append(str(caught.value))
    server.shutdown()
    server.server_close()
    thread.join()
    out, err = capfd.readouterr()
    for where in (everything_below(project), out, err, *errors):
        assert OTHER not in where
        assert SECRET not in where
