"""A server that a command starts: its identity, its log, its end with all that came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.artifact import ArtifactError
from pipeline.errors import SeatrialError
from pipeline.provenance import quantisation_identity
from pipeline.serving import ServerEnded
from pipeline.targets.command import started
from pipeline.targets.spec import CommandSpec
from pipeline.targets.target import Target
from tests.pipeline.evaluation.make import write_artifact
from tests.pipeline.targets import pretend

ROOT = Path(__file__).resolve().parents[3]
SECRET = "sk-very-secret-1234"
LOG = Path("server.log")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def spec(how: dict[str, Any] | None = None, **more: Any) -> CommandSpec:
    line = [sys.executable, str(pretend.__file__), "{port}", json.dumps(how or {})]
    return CommandSpec(**{"start": line, "model": "somewhere/else", **more})


def test_it_serves_under_an_identity_of_its_own_and_ends_with_its_children(tmp_path: Path) -> None:
    image = f"repo/server@sha256:{'a' * 64}"
    with started("theirs", spec({"child": "child.pid"}, image=image), "int8", LOG) as target:
        assert target.model_name == "m"
        assert target.engine.name == "foreign vllm 1.2.3 (target theirs)"
        assert target.engine_derived["software"] == {"name": "vllm", "version": "1.2.3", "at": "/version"}
        assert target.engine_derived["image"] == image
        assert target.quantisation.name == "unknown (foreign server)"
        assert target.engine_derived["command"][:2] == [sys.executable, str(pretend.__file__)]
        assert "{port}" in target.engine_requested["template"]
        assert target.health_url == f"{target.base_url}/health"
        target.check_alive()
        below = psutil.Process(target.pid).children(recursive=True)
        child = psutil.Process(int(Path("child.pid").read_text()))
        assert child in below
        engine = target.engine
    assert [p for p in (*below, child) if p.is_running()] == []
    assert "about to serve" in LOG.read_text()
    with started("again", spec({"child": "child.pid"}, image=image), "bf16", LOG) as target:
        assert target.engine.digest == engine.digest  # another boot, another tier, another name: the same server
    other = f"repo/server@sha256:{'b' * 64}"
    with started("theirs", spec({"child": "child.pid"}, image=other), "int8", LOG) as target:
        assert target.engine.digest != engine.digest


def test_what_it_loads_is_checked_and_is_its_identity(tmp_path: Path) -> None:
    write_artifact(tmp_path, "int8", "weights")
    with started("theirs", spec(model="artifacts/{tier}"), "int8", LOG) as target:
        assert (target.model.name, target.quantisation.name) == ("tiny@1", "int8")
    Path("m.gguf").write_text("bytes")
    with started("theirs", spec(model="m.gguf"), "mine", LOG) as target:
        assert (target.model.name, target.quantisation.name) == ("m.gguf", "m.gguf")
        digests = {target.model.digest, target.quantisation.digest, quantisation_identity(_manifest()).digest}
        assert len(digests) == 3
    with (
        pytest.raises(SeatrialError, match="artifacts/int4 is not built"),
        started("theirs", spec(model="artifacts/{tier}"), "int4", LOG),
    ):
        pass
    Path("artifacts/int8/model.safetensors").write_text("others")
    with (
        pytest.raises(ArtifactError, match="the manifest says"),
        started("theirs", spec(model="artifacts/int8"), "int8", LOG),
    ):
        pass


def _manifest() -> Any:
    from engine.artifact import read_manifest

    return read_manifest(Path("artifacts/int8"))


@pytest.mark.parametrize(
    ("how", "more", "words"),
    [
        ({"die": 3}, {}, r"(?s)target theirs ended with exit code 3 while it was needed.*last words"),
        ({"deaf": True}, {"start_timeout_s": 0.2}, r"did not answer 200 at http.*/health within 0\.2 s"),
        ({}, {"start": ["no-such-program", "{port}"]}, r"(?s)exit code 127.*no-such-program: No such file"),
    ],
)
def test_one_that_does_not_come_up_is_told_with_the_end_of_its_log(
    how: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(SeatrialError, match=words), started("theirs", spec(how, **more), "int8", LOG):
        pass


def test_one_that_dies_later_is_noticed() -> None:
    with started("theirs", spec(), "int8", LOG) as target:
        (server,) = psutil.Process(target.pid).children()
        server.kill()
        with pytest.raises(ServerEnded, match="ended with exit code 137"):
            until_noticed(target)


def until_noticed(target: Target) -> None:
    until = time.monotonic() + 240
    while time.monotonic() < until:
        target.check_alive()
        time.sleep(0.05)


def test_its_own_way_to_stop_is_taken_first(capsys: pytest.CaptureFixture[str]) -> None:
    stop = [sys.executable, "-c", "open('stopped', 'w').close(); raise SystemExit(4)"]
    with started("theirs", spec(stop=stop), "int8", LOG):
        pass
    assert Path("stopped").exists()
    assert "its stop command ended with exit code 4" in capsys.readouterr().err


def test_a_key_reaches_the_server_by_its_own_variable_and_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_KEY", SECRET)
    program = [sys.executable, "-c", "import os; print('my key is', os.environ['VLLM_API_KEY'])"]
    theirs = CommandSpec(preset="vllm", program=program, model="m", api_key_env="OUR_KEY")
    with pytest.raises(ServerEnded, match=r"my key is \*\*\*"), started("theirs", theirs, "int8", LOG):
        pass
    assert SECRET not in LOG.read_text()
    monkeypatch.delenv("OUR_KEY")
    with pytest.raises(SeatrialError, match="OUR_KEY"), started("theirs", theirs, "int8", LOG):
        pass


def test_a_stage_that_is_killed_leaves_no_server_behind(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from pipeline.targets.command import started\nfrom pipeline.targets.spec import CommandSpec\n"
        "spec = CommandSpec(start=sys.argv[1:], model='x')\n"
        "with started('theirs', spec, 'int8', Path('server.log')) as t:\n"
        "    print(t.pid, flush=True)\n    time.sleep(600)\n"
    )
    line = [sys.executable, "-c", code, *(spec({"child": "child.pid"}).start or [])]
    stage = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    with stage:
        assert stage.stdout is not None
        guard = psutil.Process(int(stage.stdout.readline()))
        family = [guard, *guard.children(recursive=True)]
        assert len(family) == 3
        os.kill(stage.pid, signal.SIGKILL)
        until = time.monotonic() + 240
        while left := [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]:
            assert time.monotonic() < until, left
            time.sleep(0.05)
