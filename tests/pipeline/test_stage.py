"""What every stage has: a note at the end, one message for an expected error, a lock, and death with its driver."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipeline import stage as stages
from pipeline.errors import SeatrialError
from pipeline.stage import run_main, stage, why_it_failed


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stages, "_MEASURING_LOCK", tmp_path / "lock")


def test_a_stage_that_ends_well_leaves_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    with stage("evaluate", "int8", measuring=True) as s:
        ballast = bytearray(64 * 1024**2)
        assert list(s.track(range(20), "items")) == list(range(20))
        time.sleep(0.3)
        del ballast
    note = json.loads(Path("reports/stages/evaluate@int8.json").read_text())
    assert (note["stage"], note["tier"]) == ("evaluate", "int8")
    assert note["wall_s"] > 0.25
    assert note["peak_rss_bytes"] > 64 * 1024**2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "evaluate@int8: begins"
    assert any(line.startswith("evaluate@int8 items: 10/20, ") and line.endswith(" s left") for line in lines)


def test_a_stage_that_fails_leaves_none() -> None:
    def fail() -> None:
        with stage("fetch"):
            raise SeatrialError("no such model")

    with pytest.raises(SeatrialError, match="no such model"):
        fail()
    assert not Path("reports").exists()


def test_why_a_stage_failed_is_kept_until_it_ends_well() -> None:
    def ends(error: SeatrialError | None) -> None:
        with stage("loadtest", "mine"):
            if error is not None:
                raise error

    assert why_it_failed("loadtest@mine") is None
    with pytest.raises(SeatrialError):
        ends(SeatrialError("found no usage,\nexpected some; " + "x" * 1000))
    said = why_it_failed("loadtest@mine")
    assert said is not None
    assert said.startswith("found no usage, expected some; xxx")
    assert len(said) == 600
    assert why_it_failed("loadtest@other") is None
    ends(None)
    assert why_it_failed("loadtest@mine") is None


def test_a_stage_that_was_killed_or_broke_has_not_ended_well() -> None:
    said: list[str | None] = []

    def breaks() -> None:
        with stage("quantize", "mine"):
            said.append(why_it_failed("quantize@mine"))  # what a kill would leave
            raise ZeroDivisionError("no scale")

    with pytest.raises(ZeroDivisionError):
        breaks()
    assert re.fullmatch(r"it began at \S+Z and has not come to its end: killed, or running still", str(said[0]))
    assert why_it_failed("quantize@mine") == "ZeroDivisionError('no scale')"


def test_a_look_at_something_else_says_nothing_of_the_trial() -> None:
    def breaks() -> None:
        with stage("check_evalsets", note=False):
            raise SeatrialError("another set is broken")

    with pytest.raises(SeatrialError, match="another set"):
        breaks()
    assert why_it_failed("check_evalsets") is None


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (SeatrialError("found x, expected y"), 3, "error: found x, expected y\n"),
        (OSError(errno.ENOSPC, "No space left", "big.bin"), 3, "error: big.bin: no space left on the device: free"),
        (OSError(errno.EROFS, "Read-only file system", "reports"), 3, "error: reports: the file system is read-only"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)  # fmt: skip
def test_expected_errors_become_one_message(
    error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as e:
        run_main(main)
    assert e.value.code == code
    shown = capsys.readouterr().err
    assert text in shown
    assert "Traceback" not in shown


def test_other_errors_keep_their_traceback() -> None:
    def main() -> None:
        raise ZeroDivisionError("a defect of ours")

    with pytest.raises(ZeroDivisionError, match="a defect of ours"):
        run_main(main)


_HOLD = """
import sys, time
from pathlib import Path
from pipeline import stage as stages
stages._MEASURING_LOCK = Path(sys.argv[1])
with stages._measuring_lock("first"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_measuring_stage_at_a_time_and_the_lock_of_a_killed_one_is_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    waiter = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert waiter.stdout is not None
    assert waiter.stderr is not None
    assert waiter.stderr.readline().startswith(f"first: waiting for first (process {holder.pid})")
    holder.kill()
    holder.wait()
    assert waiter.stdout.readline() == "held\n"
    waiter.kill()
    for p in (holder, waiter):
        p.communicate()


_STAGE = "import time; from pipeline.stage import stage\nwith stage('x'):\n  print('on', flush=True); time.sleep(60)"
_DRIVER = """
import subprocess, sys
p = subprocess.Popen(["sh", "-c", f"{sys.executable} -c \\"$STAGE\\"; true"])
p.wait()
"""


def test_a_stage_ends_when_its_driver_is_killed(tmp_path: Path) -> None:
    """The driver starts stages through a shell, as DVC does; only the driver is killed."""
    import os

    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, "dvc"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "STAGE": _STAGE},
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "on\n"
    family = psutil.Process(driver.pid).children(recursive=True)
    assert family
    driver.kill()
    driver.wait()
    driver.stdout.close()
    _, left = psutil.wait_procs(family, timeout=240)
    assert left == []
