"""The tests of the kernels once with C kernels that watch themselves: ``python -m tests.engine.kernels.sanitized``.

The kernels are compiled with AddressSanitizer and UndefinedBehaviorSanitizer, for every instruction set that the tests
build; the first fault ends the run with its place in the source. Further arguments go to pytest, in place of this
folder (without the reference kernels, which are not in C). Python itself is not instrumented, so the sanitizers'
libraries are loaded before it, and what Python never gives back is not reported as lost.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from engine.kernels.cpu.compile import COMPILERS

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1"
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


def main() -> None:
    compiler = next((path for path in map(shutil.which, COMPILERS) if path), None)
    if compiler is None:
        raise SystemExit(f"no C compiler: none of {', '.join(COMPILERS)} is on the PATH")
    libraries = [_library(compiler, name) for name in ("libasan.so", "libubsan.so")]
    tests = sys.argv[1:] or ["tests/engine/kernels", "-k", "not reference", "--timeout=1800"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--kernel-flags={FLAGS}", *tests]
    os.execve(sys.executable, command, dict(os.environ) | OPTIONS | {"LD_PRELOAD": ":".join(libraries)})


def _library(compiler: str, name: str) -> str:
    found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    path = found.stdout.strip()
    if not Path(path).is_absolute():
        raise SystemExit(f"{compiler} has no {name} beside it; install the sanitizers of this compiler")
    return path


if __name__ == "__main__":
    main()
