"""The whole GPU check at toy shapes without a GPU, so that the first GPU met finds nothing silly; the readable kernels
stand in for Triton's, which have tests of their own."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.bench.gpu import __main__ as command
from engine.bench.gpu import demands, parts, session, whole
from engine.bench.gpu.parts import PARTS, Run, Skip
from engine.bench.gpu.session import Session
from engine.kernels.cuda.backend import Device
from tests.engine.kernels.cuda.fakes import Books, OnReference
from tests.tiny import make_tiny_artifact


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("toy"), num_hidden_layers=1)


@pytest.fixture(autouse=True)
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CudaKernels", OnReference)
    monkeypatch.setattr(whole, "ROUNDS", 1)


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "gpu.json"
    code = command.main(["--toy", "--out", str(out), *arguments])
    return code, json.loads(out.read_text())


def test_every_part_runs(tmp_path: Path, artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(tmp_path, "--artifact", str(artifact), "--minutes", "60")
    assert {name: entry["status"] for name, entry in found["parts"].items()} == dict.fromkeys(PARTS, "done")
    results = {name: entry["result"] for name, entry in found["parts"].items()}
    assert results["invariance"]["rows_compared"] > 0
    assert results["invariance"]["rows_different"] == 0
    assert results["greedy"]["prompts"] == 3
    assert results["greedy"]["beyond_rounding"] == 0
    assert results["draws"] == {"rows": 20, "equal": 20, "left_to_host": 0, "different": 0}
    assert results["C64 135M"]["output_tokens"] == 6
    judged = {d["demand"]: d for d in found["demands"]}
    assert all(d["found"] is not None for d in judged.values())
    assert judged["rows whose bits depend on their batch"]["met"]
    assert code == (0 if all(d["met"] for d in judged.values()) else 1)
    printed = capsys.readouterr().out
    assert all(name in printed for name in judged)


def test_without_an_artifact_the_rest_runs(tmp_path: Path) -> None:
    code, found = run(tmp_path, "--only", "greedy,invariance")
    assert code == 1
    assert found["parts"]["greedy"]["status"] == "skipped"
    assert "no artifact of the default model; give --artifact DIR" in found["parts"]["greedy"]["error"]
    assert found["parts"]["invariance"]["result"]["weights"] == "random"


def test_a_part_that_fails_is_recorded_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: Run) -> Iterator[dict[str, Any]]:
        yield {"so_far": float("nan")}
        raise RuntimeError("an illegal instruction")

    monkeypatch.setitem(PARTS, "kernels 1B", broken)
    _, found = run(tmp_path, "--only", "kernels 1B,ceilings")
    entry = found["parts"]["kernels 1B"]
    assert (entry["status"], entry["error"]) == ("failed", "RuntimeError: an illegal instruction")
    assert entry["result"] == {"so_far": None}
    assert "broken" in entry["where"]
    assert found["parts"]["ceilings"]["status"] == "done"


def test_a_lost_device_is_left_to_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    class Done:
        returncode = 1

    def spawn(command: list[str], check: bool) -> Done:
        commands.append(command)
        return Done()

    def broken(run: Run) -> Iterator[dict[str, Any]]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
        yield

    monkeypatch.setitem(PARTS, "kernels 1B", broken)
    monkeypatch.setattr(Session, "usable", lambda self: False)
    monkeypatch.setattr(command.subprocess, "run", spawn)
    code, found = run(tmp_path, "--only", "kernels 1B,ceilings")
    assert code == 1
    assert list(found["parts"]) == ["kernels 1B"]
    assert [c[c.index("--only") + 1] for c in commands] == ["kernels 1B,ceilings"]
    assert "--resume" in commands[0]
    monkeypatch.undo()
    _, found = run(tmp_path, "--only", "kernels 1B,ceilings", "--resume")
    assert {n: e["status"] for n, e in found["parts"].items()} == {"kernels 1B": "failed", "ceilings": "done"}


def test_no_part_begins_after_the_budget(tmp_path: Path) -> None:
    _, found = run(tmp_path, "--minutes", "0", "--only", "ceilings,invariance")
    assert [entry["status"] for entry in found["parts"].values()] == ["out of time", "out of time"]


def test_a_part_is_cut_short_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def two(run: Run) -> Iterator[dict[str, Any]]:
        for n in range(2):
            now[0] += 6.0
            yield {"n": n}
            run.check()

    monkeypatch.setitem(PARTS, "ceilings", two)
    work = Run(Session(Device(torch.device("cpu"), "a CPU", None, None), toy=True), 10.0, lambda: now[0])
    written: list[Any] = []
    parts.run_all(work, ["ceilings"], lambda found: written.append(json.dumps(found)), lambda text: None)
    assert work.found["ceilings"]["status"] == "cut short"
    assert work.found["ceilings"]["result"] == {"n": 1}
    assert len(written) == 3


def test_what_was_cut_short_is_run_again_and_kept_until_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbered(n: int) -> Callable[[Run], Iterator[dict[str, Any]]]:
        def part(run: Run) -> Iterator[dict[str, Any]]:
            yield {"n": n}
            if n == 1:
                raise parts.OutOfTime

        return part

    monkeypatch.setitem(PARTS, "kernels 1B", numbered(1))
    monkeypatch.setitem(PARTS, "kernels 135M", numbered(0))
    run(tmp_path, "--only", "kernels 135M,kernels 1B")
    monkeypatch.setitem(PARTS, "kernels 1B", numbered(2))
    monkeypatch.setitem(PARTS, "kernels 135M", numbered(3))
    for minutes, second, third in (("0", ("cut short", 1), "out of time"), ("60", ("done", 2), "done")):
        _, found = run(tmp_path, "--only", "kernels 135M,kernels 1B,ceilings", "--resume", "--minutes", minutes)
        has = found["parts"]
        assert (has["kernels 135M"]["status"], has["kernels 135M"]["result"]) == ("done", {"n": 0})
        assert (has["kernels 1B"]["status"], has["kernels 1B"]["result"]) == (second[0], {"n": second[1]})
        assert has["ceilings"]["status"] == third


def test_a_part_that_gives_nothing_is_ended_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(run: Run) -> Iterator[dict[str, Any]]:
        yield {"n": 0}
        while True:
            try:
                time.sleep(0.001)
            except Exception:  # as a library might have it
                continue

    monkeypatch.setitem(PARTS, "ceilings", endless)
    before = signal.getsignal(signal.SIGUSR1)
    own = Session(Device(torch.device("cpu"), "a CPU", None, None), toy=True)
    work = Run(own, ends_at=0.05, now=lambda: 0.0)  # whose clock stands still: nothing but the end of the time ends it
    with work.ended_in_time():
        parts.run_all(work, ["ceilings"], lambda found: None, lambda text: None)
        signal.raise_signal(signal.SIGUSR1)  # outside of a part nothing happens
    assert (work.found["ceilings"]["status"], work.found["ceilings"]["result"]) == ("cut short", {"n": 0})
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_model_that_does_not_fit_is_skipped() -> None:
    books = Books(total=2**34, free=2**34, reserved=0, allocated=0)
    work = Run(Session(Device(torch.device("cpu"), "a CPU", None, books.memory)), ends_at=0.0)
    work.room_for("1B")
    with pytest.raises(Skip, match="bytes are needed for 8B, 16642998272 are free"):
        work.room_for("8B")


def test_a_part_that_nobody_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--toy", "--out", str(tmp_path / "x.json"), "--only", "everything"]) == 3
    assert "no part is called 'everything'" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["--out", str(tmp_path / "x.json")]) == 3
    assert "error: " in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


def found_of(**shares: float) -> demands.Found:
    return {"kernels 8B decode": {"result": {"share_of_ceiling": shares}}}


@pytest.mark.parametrize(
    ("shares", "met"),
    [
        ({"products w4a16 at 1 rows": 0.8, "products w4a16 at 8 rows": 0.71, "products w4a16 at 2048 rows": 0.1}, True),
        ({"products w4a16 at 1 rows": 0.8, "products w4a16 at 8 rows": 0.69}, False),
        ({"products w8a8 at 1 rows": 0.8}, None),
    ],
)
def test_the_worst_batch_decides(shares: dict[str, float], met: bool | None) -> None:
    judged = {d["demand"]: d for d in demands.judge(found_of(**shares))}
    assert judged["int4 products at batch 1-8, share of bandwidth"]["met"] is met


def test_what_was_not_measured_is_open() -> None:
    judged = demands.judge({"ceilings": {"result": None}})
    assert {d["met"] for d in judged} == {None}
    assert demands.table(judged).count("open") == len(demands.DEMANDS)
