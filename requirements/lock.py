"""Writes the lock files from what is installed here. The CUDA lock keeps the packages that only it has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIP = {"pip", "seatrial"}


def key(line: str) -> str:
    return re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower()


def read(path: Path) -> dict[str, str]:
    return {key(line): line for line in path.read_text().splitlines() if "==" in line and not line.startswith("#")}


def write(path: Path, pins: dict[str, str]) -> None:
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    path.write_text("\n".join([*comments, *(pins[k] for k in sorted(pins))]) + "\n")


def main() -> None:
    freeze = [sys.executable, "-m", "pip", "freeze", "--all", "--exclude-editable"]
    lines = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout.splitlines()
    here = {key(x): re.sub(r"\+\w+$", "", x) for x in lines if "==" in x and key(x) not in SKIP}
    cpu, cuda = HERE / "lock-cpu.txt", HERE / "lock-cuda.txt"
    only_cuda = {k: v for k, v in read(cuda).items() if k not in read(cpu)}
    write(cpu, here)
    write(cuda, {**only_cuda, **here})


if __name__ == "__main__":
    main()
