"""``python -m engine.bench.gpu --out FILE.json [--minutes 9] [--artifact artifacts/bf16]``: see the package."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.bench.gpu import standin

DEFAULT_ARTIFACT = Path("artifacts/bf16")


def main(argv: list[str] | None = None) -> int:
    """0: every demand was measured and met; 1: one was not; 3: nothing could be run."""
    parser = argparse.ArgumentParser(prog="engine.bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON; written anew after each part")
    parser.add_argument("--minutes", type=float, default=9.0, help="budget (default 9): what runs then is cut short")
    parser.add_argument(
        "--artifact", type=Path, help=f"the default model in bf16 (default {DEFAULT_ARTIFACT}, if there)"
    )
    parser.add_argument("--resume", action="store_true", help="run only what FILE does not have the whole of yet")
    parser.add_argument("--only", help="parts, comma-separated (default: all)")
    parser.add_argument(
        "--toy",
        action="store_true",
        help="tiny shapes in Triton's interpreter on the CPU: tries the run, measures nothing",
    )
    arguments = parser.parse_args(argv)
    began = time.monotonic()
    if arguments.toy:
        os.environ["TRITON_INTERPRET"] = "1"
    without_pydantic = standin.install()
    from engine.bench.errors import BenchError
    from engine.bench.files import write_json
    from engine.bench.gpu import demands, parts
    from engine.bench.gpu.session import Session
    from engine.kernels.errors import UnavailableError

    artifact = arguments.artifact or (DEFAULT_ARTIFACT if DEFAULT_ARTIFACT.is_dir() and not arguments.toy else None)
    chosen = [n.strip() for n in arguments.only.split(",")] if arguments.only else list(parts.PARTS)
    if unknown := [n for n in chosen if n not in parts.PARTS]:
        print(f"error: no part is called {unknown[0]!r}; there are: {', '.join(parts.PARTS)}", file=sys.stderr)
        return 3
    try:
        session = Session(_device(arguments.toy), arguments.toy, artifact)
        head = {
            "schema_version": 1,
            "kind": "gpu",
            "began_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "toy": arguments.toy,
            "minutes": arguments.minutes,
            "artifact": None if artifact is None else str(artifact),
            "environment": _environment(session) | {"pydantic": not without_pydantic},
        }

        def write(found: dict[str, Any]) -> None:
            whole = head | {"seconds": round(time.monotonic() - began, 1)}
            write_json(arguments.out, whole | {"parts": found, "demands": demands.judge(found)})

        run = parts.Run(session, began + 60 * arguments.minutes)
        if arguments.resume and arguments.out.is_file():
            run.found = json.loads(arguments.out.read_text(encoding="utf-8"))["parts"]
        write(run.found)  # before minutes are spent on what could not be kept
        rest = parts.left_of(chosen, run.found)
        with run.ended_in_time():
            usable = parts.run_all(run, rest, write, lambda text: print(text, file=sys.stderr, flush=True))
        if not usable:
            return _again(arguments, run.left_s / 60, chosen)
    except (BenchError, UnavailableError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 3
    judged = demands.judge(run.found)
    print(demands.table(judged), flush=True)
    return 0 if all(entry["met"] for entry in judged) else 1


def _again(arguments: argparse.Namespace, minutes: float, chosen: list[str]) -> int:
    """A process of its own for what is left: this one has lost the device."""
    print("the device does not answer this process any more; the rest runs in another one", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "engine.bench.gpu", "--out", str(arguments.out), "--minutes", f"{minutes:.3f}"]
    command += ["--resume", "--only", ",".join(chosen), *(["--toy"] if arguments.toy else [])]
    command += [] if arguments.artifact is None else ["--artifact", str(arguments.artifact)]
    return subprocess.run(command, check=False).returncode


def _device(toy: bool) -> Any:
    import torch

    from engine.kernels.cuda.backend import Device
    from engine.kernels.cuda.device import current

    return Device(torch.device("cpu"), "Triton's interpreter", None, None) if toy else current()


def _environment(session: Any) -> dict[str, Any]:
    import torch
    import transformers
    import triton

    memory = session.own.memory
    return {
        "device": session.own.name,
        "capability": session.own.capability,
        "device_memory_bytes": None if memory is None else memory.read().total,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "cpus": session.threads,
    }


if __name__ == "__main__":
    sys.exit(main())
