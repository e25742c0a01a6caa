"""CPUs that a process was given, from made-up control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.cpus import available_cpus
from engine.ledger import compute_threads


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    path = tmp_path / "own"
    path.write_text("0::/batch/job\n")
    return path


def group(root: Path, name: str, **files: str) -> None:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file.replace("__", ".")).write_text(text)


def test_without_groups_it_is_the_affinity(tmp_path: Path, own: Path) -> None:
    assert available_cpus(tmp_path / "none", tmp_path / "nothing") == 8
    assert available_cpus(tmp_path / "none", own) == 8


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("max 100000", 8),
        ("1000 100000", 1),
        ("9900000 100000", 8),
        ("?", 8),
    ],
)
def test_the_quota_of_version_2_is_rounded_up(tmp_path: Path, own: Path, quota: str, cpus: int) -> None:
    group(tmp_path, "batch/job", cpu__max=quota + "\n")
    assert available_cpus(tmp_path, own) == cpus


def test_a_group_above_binds_too(tmp_path: Path, own: Path) -> None:
    group(tmp_path, "batch/job", cpu__max="max 100000\n")
    group(tmp_path, "batch", cpu__max="300000 100000\n")
    assert available_cpus(tmp_path, own) == 3


@pytest.mark.parametrize(("quota", "cpus"), [("400000", 4), ("-1", 8)])
def test_version_1(tmp_path: Path, own: Path, quota: str, cpus: int) -> None:
    own.write_text("4:memory:/else\n3:cpu,cpuacct:/job\n")
    group(tmp_path, "cpu,cpuacct/job", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert available_cpus(tmp_path, own) == cpus


def test_threads_that_are_asked_for_are_not_limited() -> None:
    assert compute_threads(EngineConfig(threads=99)) == 99
