"""What the doctor finds: each check on a machine that has what it asks for, and on one that has not."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.project import doctor
from pipeline.project.doctor import Finding
from pipeline.provenance import Machine

BOARD = Machine(cpu="Testcore", cores=4, memory_gib=8, isa=["avx2", "avx512f"], os="Linux x86_64")


class Usage(NamedTuple):
    free: int = 0
    total: int = 0


@pytest.mark.parametrize(("version", "status"), [((3, 11, 0), "ok"), ((3, 10, 9), "missing"), ((4, 0, 0), "ok")])
def test_python(version: tuple[int, ...], status: str) -> None:
    assert doctor.python(version).status == status


def test_packages_and_lock_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor.packages().status == "ok"
    lock = tmp_path / "lock.txt"
    assert doctor.lock_file(lock).status == "ok"
    lock.write_text(f"--index x\npytest=={doctor._version('pytest')}\nno-such-package==1.0\n")
    assert doctor.lock_file(lock).status == "ok"
    lock.write_text("pytest==0.1 \\\n    --hash=sha256:0\n")
    found = doctor.lock_file(lock)
    assert (found.status, "(locked: 0.1)" in found.found) == ("partial", True)
    monkeypatch.setattr(doctor, "NEEDED", ("pytest", "no-such-package"))
    found = doctor.packages()
    assert (found.status, found.found) == ("missing", "no no-such-package")


def test_a_compiler_counts_if_it_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'fatal error: no headers' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    found = doctor.compiler()
    assert (found.status, found.found) == ("slow", f"{broken}: fatal error: no headers")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert (doctor.compiler().status, doctor.compiler().found) == ("slow", "none")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_this_machines_compiler_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    assert doctor.compiler().status == "ok"


@pytest.mark.parametrize(("isa", "status"), [(["avx2", "avx512f"], "ok"), (["avx2"], "ok"), ([], "slow")])
def test_instructions(monkeypatch: pytest.MonkeyPatch, isa: list[str], status: str) -> None:
    monkeypatch.setattr(doctor, "this_machine", lambda: BOARD.model_copy(update={"isa": isa}))
    assert doctor.instructions().status == status


@pytest.mark.parametrize(
    ("quota", "status", "found"),
    [("max 100000", "ok", "4"), ("150000 100000", "slow", "1.5 (a container's quota on 4)"), (None, "ok", "4")],
)
def test_a_containers_share_of_the_cores_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str | None, status: str, found: str
) -> None:
    monkeypatch.setattr(doctor, "this_machine", lambda: BOARD)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    assert (doctor.cores(tmp_path).status, doctor.cores(tmp_path).found) == (status, found)


@pytest.mark.parametrize(
    ("total", "limit", "status"),
    [
        (8, None, "ok"),
        (8, "max", "ok"),
        (8, str(3 * doctor.GIB), "partial"),
        (1, None, "missing"),
        (64, "1", "missing"),
    ],
)
def test_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, total: int, limit: str | None, status: str) -> None:
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: Usage(total=total * doctor.GIB))
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit + "\n")
    assert doctor.memory(tmp_path).status == status


@pytest.mark.parametrize(("free", "status"), [(20, "ok"), (4, "partial"), (1, "missing")])
def test_disk(monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _folder: Usage(free=free * doctor.GIB))
    assert doctor.disk().status == status


def test_a_port_that_somebody_holds_is_told() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        found = doctor.ports(port)
    assert (found.status, found.found) == ("partial", f"{port} is taken")


@pytest.mark.parametrize(
    ("cards", "torch", "status", "wanted"),
    [
        ([], "2.13.0+cpu", "ok", "missing"),
        (["H"], "2.13.0+cpu", "slow", "missing"),
        (["H"], "2.13.0", "ok", "ok"),
    ],
)
def test_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cards: list[str], torch: str, status: str, wanted: str
) -> None:
    """The same where ``params.yaml`` asks for one, by either name of the setting."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "this_machine", lambda: BOARD.model_copy(update={"accelerators": cards}))
    monkeypatch.setattr(doctor, "_version", lambda _name: torch)
    for text in ("engine: {isa: auto}", "engine: [", "[]", "engine:"):
        Path("params.yaml").write_text(text)
        assert doctor.gpu().status == status
    for text in ("engine: {device: cuda}", "engine:\n  backend: cuda\n"):
        Path("params.yaml").write_text(text)
        assert doctor.gpu().status == wanted


def test_programs_and_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    for absent, status in ((set(), "ok"), ({"make"}, "partial"), ({"git", "make"}, "missing")):
        monkeypatch.setattr(doctor.shutil, "which", lambda name, absent=absent: None if name in absent else name)
        assert doctor.programs().status == status
    assert doctor.browser().status == "ok"
    monkeypatch.setattr(doctor.shutil, "which", lambda _name: None)
    assert doctor.browser().status == "partial"


def test_the_sandbox_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.evaluation import sandbox

    for why, status in ((None, "ok"), ("no namespaces", "partial")):
        monkeypatch.setattr(sandbox, "unavailable", lambda why=why: why)
        assert doctor.sandbox().status == status


def test_analytics_of_dvc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DVC_NO_ANALYTICS", raising=False)
    assert doctor.analytics(tmp_path).status == "partial"
    (tmp_path / ".dvc").mkdir()
    for text, status in (("[core]\n    analytics = false\n", "ok"), ("[core]\n    analytics = true\n", "partial"),
                         ("analytics", "partial")):  # fmt: skip
        (tmp_path / ".dvc/config").write_text(text)
        assert doctor.analytics(tmp_path).status == status
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    assert doctor.analytics(tmp_path).status == "ok"


def _checks(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    checks: list[Callable[[], Finding]] = [lambda f=f: f for f in findings]  # type: ignore[misc]
    monkeypatch.setattr(doctor, "CHECKS", checks)


def test_only_what_is_missing_prevents_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    good, slow = Finding("a", "ok", "here"), Finding("b", "slow", "none", "some", "get it")
    _checks(monkeypatch, good, slow)
    assert doctor.exit_code(doctor.examine()) == 0
    assert doctor.lines(doctor.examine())[-1] == "fit for a trial; slow for want of: b"
    _checks(monkeypatch, good, slow, Finding("c", "missing", "none", "one", "install it"))
    findings = doctor.examine()
    assert doctor.exit_code(findings) == 1
    assert doctor.lines(findings)[-1] == "not fit for a trial: c; slow for want of: b"
    assert doctor.as_json(findings)["fit"] is False
    assert json.loads(json.dumps(doctor.as_json(findings)))["findings"][2]["do"] == "install it"


def test_a_check_that_fails_stops_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_check() -> Finding:
        raise RuntimeError("odd")

    monkeypatch.setattr(doctor, "CHECKS", (broken_check, lambda: Finding("a", "ok", "here")))
    first, second = doctor.examine()
    assert (first.name, first.status, first.found) == ("broken check", "partial", "RuntimeError: odd")
    assert second.name == "a"


def test_every_check_answers_on_this_machine() -> None:
    findings = doctor.examine()
    assert len(findings) == len({f.name for f in findings}) == len(doctor.CHECKS)
    assert not [f for f in findings if f.do.startswith("report it")]
    assert not [f for f in findings if f.status != "ok" and not (f.expected and f.do)]
