"""Fixtures for every part."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# A property is judged by what it says, not by how long a busy machine takes to try it, and everywhere by the same
# examples: a failure is then the code's doing, and comes back.
settings.register_profile("seatrial", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seatrial")

# Without a GPU, Triton's kernels run in its interpreter. Triton looks when it is imported, so this comes before all.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--isa", default="auto", help="run with the C kernels of a lesser CPU: avx512, avx2 or baseline")
    parser.addoption("--kernel-flags", default="", help="further flags for the compiler of the C kernels")


def pytest_configure(config: pytest.Config) -> None:
    """Both options hold for this process: for what it computes itself, not for servers that it starts."""
    from engine.kernels.cpu import compile as compiler

    compiler.BUILD_LIMIT_S = 1800  # a busy machine may take long, and checks on every lane take the compiler minutes
    isa, flags = config.getoption("--isa"), config.getoption("--kernel-flags")
    if isa == "auto" and not flags:
        return
    from engine.isa import isa_features, target_of

    if target := target_of(isa, isa_features()):
        compiler.target_flag = lambda: target
    if flags:
        compiler.FLAGS += f" {flags}"
        os.environ.pop(
            "LD_PRELOAD", None
        )  # a sanitizer's library is in this process, and none of the compiler's business


@pytest.fixture(scope="session")
def real_model_dir() -> Path:
    """The default model of params.yaml as ``fetch`` writes it; for tests marked ``slow``. Do not write into it.

    Fetched once per user, and again when the model or the code of ``fetch`` changes: it lies in a cache folder named
    after both.
    """
    from engine.artifact import ArtifactError, verify
    from pipeline.fetch.run import fetch
    from pipeline.params import load_params
    from pipeline.provenance import engine_source_digest
    from pipeline.stage import Stage

    root = Path(__file__).resolve().parent.parent
    model = load_params(root / "params.yaml").model
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seatrial"
    key = f"{model.sha256 or 'unpinned'}-{engine_source_digest(root / 'pipeline' / 'fetch')[:16]}"
    final = cache / "models" / key / "base"
    final.parent.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            verify(final)
        except ArtifactError:
            fetch(model, final, cache / "work", Stage("fetch", None))
        for old in final.parent.parent.iterdir():  # of earlier versions, unless a run may still be reading it
            if old != final.parent and time.time() - old.stat().st_mtime > 86_400:
                shutil.rmtree(old, ignore_errors=True)
    return final
