"""Nothing half written, whatever interrupts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.files import atomic_dir, atomic_write, write_json


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    with atomic_dir(tmp_path / "a" / "out") as d:
        (d / "x").write_text("1")
        assert not (tmp_path / "a" / "out").exists()
    assert (tmp_path / "a" / "out" / "x").read_text() == "1"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["out"]


def test_a_failure_leaves_the_old_directory_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with atomic_dir(out) as d:
        (d / "x").write_text("old")
    with pytest.raises(RuntimeError, match="disk"), atomic_dir(out) as d:  # noqa: PT012
        (d / "x").write_text("new")
        raise RuntimeError("disk")
    assert (out / "x").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path) -> None:
    for leftover in (".out.partial", ".out.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "half").write_text("x")
    with atomic_dir(tmp_path / "out") as d:
        assert list(d.iterdir()) == []
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_file_keeps_its_old_content_when_the_new_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="Out of range float values"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    atomic_write(path, b"\x00")
    assert path.read_bytes() == b"\x00"
    assert [p.name for p in tmp_path.iterdir()] == ["v.json"]


def test_an_error_of_the_disk_names_the_file(tmp_path: Path) -> None:
    """/dev/full refuses every write, as a full disk does."""
    (tmp_path / ".v.json.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as e:
        atomic_write(tmp_path / "v.json", b"x")
    assert e.value.filename == str(tmp_path / "v.json")
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_tensor_library_is_one_of_the_disk(tmp_path: Path) -> None:
    import torch

    from pipeline.weights import save_tensors

    with pytest.raises(FileNotFoundError) as e:
        save_tensors({"a": torch.zeros(2)}, tmp_path / "none" / "x.safetensors", {})
    assert e.value.filename == str(tmp_path / "none" / "x.safetensors")
