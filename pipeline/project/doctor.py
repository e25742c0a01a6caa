"""``seatrial doctor``: what this machine lacks for a trial, and what will be slow on it.

Each check says what was found, what was expected and what to do. ``missing`` prevents a trial; ``slow`` and ``partial``
do not: the trial takes longer, or leaves something out and says so.
"""

from __future__ import annotations

import configparser
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil
import yaml

from pipeline.provenance import this_machine

Status = Literal["ok", "slow", "partial", "missing"]
GIB = 1024**3
LEAST_MEMORY, GOOD_MEMORY = 2 * GIB, 4 * GIB
LEAST_DISK, GOOD_DISK = 2 * GIB, 6 * GIB
PORT = 8000
SETUP = "make setup, or pip install -r requirements.txt in a project of your own"
NEEDED = ("torch", "transformers", "tokenizers", "polars", "scipy", "fastapi", "locust", "dvc", "great-expectations")


@dataclass(frozen=True)
class Finding:
    name: str
    status: Status
    found: str
    expected: str = ""
    do: str = ""


def python(found: tuple[int, ...] = tuple(sys.version_info[:3])) -> Finding:
    version = ".".join(map(str, found))
    if found >= (3, 11):
        return Finding("python", "ok", version)
    return Finding("python", "missing", version, "3.11 or newer", "make PYTHON=python3.11")


def packages() -> Finding:
    absent = [name for name in NEEDED if _version(name) is None]
    if absent:
        return Finding("packages", "missing", f"no {', '.join(absent)}", "those of the lock file", SETUP)
    return Finding("packages", "ok", f"torch {_version('torch')}, transformers {_version('transformers')}")


def lock_file(path: Path = Path("requirements/lock-cpu.txt")) -> Finding:
    """Whether what is installed is what the lock file names; no such file in a project of one's own."""
    if not path.is_file():
        return Finding("lock file", "ok", "none here")
    lines = [line.split(" ")[0].partition("==") for line in path.read_text(encoding="utf-8").splitlines()]
    other = [
        f"{name} {found or 'absent'} (locked: {locked})"
        for name, sign, locked in lines
        if sign and (found := _version(name)) is not None and found.partition("+")[0] != locked.partition("+")[0]
    ]
    if other:
        more = f" and {len(other) - 3} more" if len(other) > 3 else ""
        return Finding("lock file", "partial", ", ".join(other[:3]) + more, "the locked versions", "make setup")
    return Finding("lock file", "ok", "installed versions are the locked ones")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def compiler() -> Finding:
    """A program is compiled and run, since a compiler without its headers or linker is found as well."""
    name = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
    without = "the engine then computes with its reference kernels, many times slower"
    if name is None:
        return Finding("C compiler", "slow", "none", "cc, gcc or clang", f"install one: {without}")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "a.c"), Path(folder, "a")
        source.write_text('#include <math.h>\n#include <stdio.h>\nint main(void) { return puts("ok") < 0; }\n')
        done = subprocess.run([name, str(source), "-o", str(program), "-lm"], capture_output=True, text=True)
        if done.returncode or subprocess.run([str(program)], capture_output=True).stdout != b"ok\n":
            said = (done.stderr.strip().splitlines() or ["its program does not run"])[0]
            return Finding("C compiler", "slow", f"{name}: {said}", "one that compiles", f"mend it: {without}")
    first = subprocess.run([name, "--version"], capture_output=True, text=True).stdout.splitlines()
    return Finding("C compiler", "ok", first[0] if first else name)


def instructions() -> Finding:
    isa = this_machine().isa
    if "avx512f" in isa:
        return Finding("instructions", "ok", ", ".join(isa))
    if "avx2" in isa:
        return Finding("instructions", "ok", f"{', '.join(isa)} (AVX-512 would be quicker)")
    return Finding(
        "instructions", "slow", ", ".join(isa) or "none known", "AVX2 or AVX-512", "expect several times the time"
    )


def cores(cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Cores that this process may run on, or the share of them that a container is given."""
    count, quota = float(this_machine().cores), _cpu_quota(cgroup)
    given = count if quota is None else min(count, quota)
    found = f"{given:g}" + (f" (a container's quota on {count:g})" if quota is not None and quota < count else "")
    if given < 2:
        return Finding("cores", "slow", found, "2", "server and load share one: load tests may be void by client lag")
    return Finding("cores", "ok", found)


def _cpu_quota(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def memory(cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    total = psutil.virtual_memory().total
    try:
        limit = int((cgroup / "memory.max").read_text())
    except (OSError, ValueError):  # no container, or "max"
        limit = total
    given = min(total, limit)
    found = f"{given / GIB:.1f} GiB" + (" (a container's limit)" if limit < total else "")
    if given < LEAST_MEMORY:
        return Finding("memory", "missing", found, "2 GiB for the default model", "a larger machine or container")
    if given < GOOD_MEMORY:
        return Finding("memory", "partial", found, "4 GiB", "lower engine.memory_limit_bytes in params.yaml")
    return Finding("memory", "ok", found)


def disk(folder: Path = Path()) -> Finding:
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free in {folder.resolve()}"
    if free < LEAST_DISK:
        return Finding("disk", "missing", found, "6 GiB, at least 2", "free some")
    if free < GOOD_DISK:
        return Finding("disk", "partial", found, "6 GiB", "free some: packages, artifacts and DVC's cache lie there")
    return Finding("disk", "ok", found)


def ports(port: int = PORT) -> Finding:
    """Stages take any free port; only `seatrial serve` wants a certain one."""
    try:
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
    except OSError as e:
        return Finding("ports", "missing", f"none on 127.0.0.1 ({e})", "a free port", "allow listening on 127.0.0.1")
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return Finding("ports", "partial", f"{port} is taken", f"{port} for `seatrial serve`", "serve with --port")
    return Finding("ports", "ok", f"{port} is free")


def gpu() -> Finding:
    cards, torch, wanted = this_machine().accelerators, _version("torch") or "", _wants_a_gpu()
    if not cards:
        if wanted:
            do = "look what nvidia-smi says, or take engine.device out of params.yaml"
            return Finding("GPU", "missing", "none, but engine.device is cuda", "a device that the driver shows", do)
        return Finding("GPU", "ok", "none: everything runs on the CPU")
    if "+cpu" in torch:
        found = f"{', '.join(cards)}, but torch {torch}"
        status: Status = "missing" if wanted else "slow"
        return Finding("GPU", status, found, "torch's CUDA build", "make setup TORCH=cuda")
    return Finding("GPU", "ok", f"{', '.join(cards)}, torch {torch}")


def _wants_a_gpu(path: Path = Path("params.yaml")) -> bool:
    """What is wrong with the file is for others to say."""
    try:
        engine = yaml.safe_load(path.read_text(encoding="utf-8"))["engine"]
        return "cuda" in (engine.get("device"), engine.get("backend"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return False


def programs() -> Finding:
    absent = [p for p in ("git", "make") if shutil.which(p) is None]
    if "git" in absent:
        return Finding("programs", "missing", "no git", "git: DVC, releases and A/B need it", "install it")
    if absent:
        return Finding("programs", "partial", "no make", "make for `make trial`", "`seatrial trial` does the same")
    return Finding("programs", "ok", "git, make")


def sandbox() -> Finding:
    from pipeline.evaluation.sandbox import unavailable

    if why := unavailable():
        return Finding("sandbox", "partial", why, "user namespaces", "else code items count as not measurable here")
    return Finding("sandbox", "ok", "code items can run isolated")


def browser() -> Finding:
    found = next((p for p in ("chromium", "chromium-browser", "google-chrome") if shutil.which(p)), None)
    if found is None:
        return Finding(
            "browser", "partial", "no chromium", "chromium", "only for tests of the scorecard: they are skipped"
        )
    return Finding("browser", "ok", found)


def analytics(folder: Path = Path()) -> Finding:
    """DVC sends usage figures unless it is told not to; the stages tell it, a `dvc` by hand reads its settings."""
    if os.environ.get("DVC_NO_ANALYTICS"):
        return Finding("DVC analytics", "ok", "off (DVC_NO_ANALYTICS)")
    settings = configparser.ConfigParser()
    try:
        settings.read(folder / ".dvc/config", encoding="utf-8")
        off = not settings.getboolean("core", "analytics", fallback=True)
    except (configparser.Error, ValueError):
        off = False
    if off:
        return Finding("DVC analytics", "ok", "off")
    return Finding("DVC analytics", "partial", "on", "off", "dvc config core.analytics false")


CHECKS: tuple[Callable[[], Finding], ...] = (
    python, packages, lock_file, compiler, instructions, cores, memory, disk, ports, gpu, programs, sandbox, browser,
    analytics,
)  # fmt: skip


def examine() -> list[Finding]:
    """All checks. One that fails itself is told as such and stops none of the others."""
    out = []
    for check in CHECKS:
        try:
            out.append(check())
        except Exception as e:
            name = check.__name__.replace("_", " ")
            out.append(Finding(name, "partial", f"{type(e).__name__}: {e}", "an answer", "report it: the check failed"))
    return out


def exit_code(findings: list[Finding]) -> int:
    """1 if something prevents a trial, else 0."""
    return int(any(f.status == "missing" for f in findings))


def as_json(findings: list[Finding]) -> dict[str, Any]:
    return {"schema_version": 1, "fit": not exit_code(findings), "findings": [asdict(f) for f in findings]}


def lines(findings: list[Finding]) -> list[str]:
    """For a terminal: what was found, and what to do where something is amiss."""
    marks = {"ok": "+", "slow": "~", "partial": "?", "missing": "x"}
    out = []
    for f in findings:
        out.append(f"{marks[f.status]} {f.name:14} {f.status:8} {f.found}")
        if f.status != "ok":
            out.append(f"{'':26}expected {f.expected}; {f.do}")
    missing = [f.name for f in findings if f.status == "missing"]
    slow = [f.name for f in findings if f.status == "slow"]
    said = f"not fit for a trial: {', '.join(missing)}" if missing else "fit for a trial"
    return [*out, "", said + (f"; slow for want of: {', '.join(slow)}" if slow else "")]
