"""The four-tuple: model, engine, quantisation, evalset or workload; and the machine, as a fifth.

Every result carries a :class:`Header`. What differs between two headers is what a change may be attributed to.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import shutil
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.artifact import Manifest, Named
from engine.config import EngineConfig

ENGINE_ROOT = Path(__file__).resolve().parent.parent / "engine"
FOUR = ("model", "engine", "quantisation", "workload")


class Machine(BaseModel):
    """Where something was measured. ``digest`` is over ``machine_class``: equal classes may be compared in latency."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cpu: str
    cores: int
    memory_gib: int
    isa: list[str]
    accelerators: list[str] = []
    os: str

    @property
    def machine_class(self) -> str:
        gpu = "+".join(self.accelerators) or "no-gpu"
        return f"{self.cpu} x{self.cores}, {self.memory_gib} GiB, {gpu}"


class Header(BaseModel):
    """Provenance of one result. ``workload`` is the evalset (name and version) or the load profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    model: Named
    engine: Named
    quantisation: Named
    workload: Named
    machine: Machine
    measured_at: str = Field(description="UTC, RFC 3339, when measuring began")
    engine_requested: dict[str, Any]
    engine_derived: dict[str, Any] = Field({}, description="resolved dtype and why, pool size, kernels; not compared")


def differing(a: Header, b: Header) -> list[str]:
    """Which of the four identities differ between two results (by digest)."""
    return [k for k in FOUR if getattr(a, k).digest != getattr(b, k).digest]


def seam_of(header: Header) -> str | None:
    """The seam that the server said it was started with: such a result is of a planted fault, never of a release."""
    seam = header.engine_derived.get("seam")
    return None if seam is None else str(seam)


def digest_of(value: Any) -> str:
    """sha256 of a JSON value in canonical form."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def stripped(source: str) -> str:
    """Python source without comments, docstrings and layout: what can change behaviour."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        ):
            node.body = body[1:] or [ast.Pass()]
    return ast.dump(tree)


@cache
def engine_source_digest(root: Path = ENGINE_ROOT) -> str:
    """sha256 over the engine's code. In Python comments and docstrings do not count; C counts as it is written."""
    h = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".py", ".c", ".h"}):
        text = path.read_text(encoding="utf-8")
        h.update(path.relative_to(root).as_posix().encode() + b"\0")
        h.update((stripped(text) if path.suffix == ".py" else text).encode() + b"\0")
    return h.hexdigest()


def engine_identity(
    config: EngineConfig | dict[str, Any], *, root: Path = ENGINE_ROOT, seam: str | None = None
) -> Named:
    """Bundled engine: source and requested config together, and the seam through which something was planted.

    Args:
        config: a plain mapping for an engine of another revision; completed with defaults where it is a valid config.
        root: that revision's ``engine`` folder.
    """
    if isinstance(config, dict):
        with suppress(ValidationError):  # settings that this revision does not know stay as they are
            config = EngineConfig.model_validate(config)
    asked = config.model_dump() if isinstance(config, EngineConfig) else config
    source = engine_source_digest(root)
    planted = [] if seam is None else [seam]
    return Named(
        name=f"bundled-{source[:8]}{f' with seam {seam}' if seam else ''}", digest=digest_of([source, asked, *planted])
    )


def model_identity(manifest: Manifest) -> Named:
    return manifest.source


def quantisation_identity(manifest: Manifest) -> Named:
    """Recipe, parameters, calibration data and the bytes they led to."""
    return Named(
        name=manifest.name,
        digest=digest_of(
            [
                manifest.recipe,
                manifest.parameters,
                manifest.calibration.model_dump() if manifest.calibration else None,
                manifest.digest,
            ]
        ),
    )


def _cpu_info() -> tuple[str, list[str]]:
    interesting = (
        "avx2",
        "fma",
        "f16c",
        "avx_vnni",
        "avx512f",
        "avx512_vnni",
        "avx512_bf16",
        "amx_int8",
        "amx_bf16",
        "asimddp",
        "i8mm",
        "bf16",
    )
    name, flags = platform.processor() or platform.machine(), set[str]()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in {"flags", "Features"}:
                flags |= set(value.split())
    return name, [f for f in interesting if f in flags]


def _accelerators(driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Names of NVIDIA's devices, from the files of its driver; some containers show the devices and not the files."""
    by_file = [
        line.partition(":")[2].strip()
        for p in sorted(driver.glob("*/information"))
        for line in p.read_text().splitlines()
        if line.startswith("Model:")
    ]
    return by_file or list(_asked_of_nvidia_smi())


@cache
def _asked_of_nvidia_smi() -> tuple[str, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip()) if not done.returncode else ()


def this_machine() -> Machine:
    """The machine's class: stable from run to run, so that it can be a dependency of measuring stages."""
    cpu, isa = _cpu_info()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        cpu=cpu,
        cores=cores,
        memory_gib=round(psutil.virtual_memory().total / 1024**3),
        isa=isa,
        accelerators=_accelerators(),
        os=f"{platform.system()} {platform.machine()}",
    )
