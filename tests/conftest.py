"""Fixtures for every part."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest


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
