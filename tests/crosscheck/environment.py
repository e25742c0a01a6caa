"""A virtual environment for somebody else's tool, and commands that are run in it without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import SeatrialError
from pipeline.processes import die_with_parent, tail

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class Environment:
    """``requirement`` in a virtual environment that borrows the packages of the interpreter that runs this, so that
    both sides have the same torch and the same transformers. Logs go to ``out``, as NAME.log.
    """

    venv: Path
    requirement: str
    out: Path
    threads: int
    limit_s: float  # of each command

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    def make(self) -> None:
        """Makes it; nothing is done if it is there, and an older one is replaced.

        Raises:
            SeatrialError: pip failed, or the directory holds something else.
        """
        purelib = sysconfig.get_paths()["purelib"]
        done, installed = self.venv / "installed", f"{self.requirement} {purelib}\n"
        if done.is_file() and done.read_text(encoding="utf-8") == installed:
            return
        if self.venv.exists() and not (self.venv / "pyvenv.cfg").is_file():
            raise SeatrialError(f"{self.venv} is there and no virtual environment; name a directory that can be made")
        self.run([sys.executable, "-m", "venv", "--clear", str(self.venv)], "venv", self.out)
        site = self.venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        (site / "borrowed.pth").write_text(purelib + "\n", encoding="utf-8")
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", self.requirement]
        self.run(pip, "pip", self.out)
        done.write_text(installed, encoding="utf-8")

    def run(self, command: Sequence[str], name: str, cwd: Path, variables: Mapping[str, str] | None = None) -> None:
        """Runs one command to its end.

        Raises:
            SeatrialError: it failed or took longer than the limit; with the end of its log.
        """
        log = self.out / f"{name}.log"
        around = {**os.environ, **OFFLINE, "HF_HOME": str(self.out / "hf"), "OMP_NUM_THREADS": str(self.threads)}
        with log.open("w", encoding="utf-8") as file:
            try:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**around, **(variables or {})},
                    cwd=cwd, timeout=self.limit_s, preexec_fn=die_with_parent,
                )  # fmt: skip
            except subprocess.TimeoutExpired as e:
                end = f"the end of {log}:\n{tail(log)}"
                raise SeatrialError(f"{name} took more than {self.limit_s:.0f} s; {end}") from e
        if done.returncode:
            raise SeatrialError(f"{name} ended with exit code {done.returncode}; the end of {log}:\n{tail(log)}")
