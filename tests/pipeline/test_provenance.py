"""The four identities: what moves each of them, and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.artifact import (
    ArtifactError,
    LinearSpec,
    Manifest,
    Named,
    list_files,
    read_manifest,
    verify,
    write_manifest,
)
from engine.config import EngineConfig
from pipeline import provenance
from pipeline.provenance import (
    Header,
    differing,
    digest_of,
    engine_identity,
    engine_source_digest,
    quantisation_identity,
    this_machine,
    utc_now,
)

CODE = '"""About."""\n\ndef f(x: int) -> int:\n    """Doubles."""\n    return 2 * x  # why\n'


def _digest(tmp_path: Path, name: str, code: str) -> str:
    root = tmp_path / name
    root.mkdir()
    (root / "m.py").write_text(code)
    return engine_source_digest(root)


def test_comments_and_docstrings_are_not_the_engine(tmp_path: Path) -> None:
    plain = _digest(tmp_path, "plain", CODE)
    assert _digest(tmp_path, "bare", "def f(x: int) -> int:\n    return 2*x\n") == plain
    assert _digest(tmp_path, "other", CODE.replace("2 *", "3 *")) != plain


def test_the_requested_config_belongs_to_the_engine() -> None:
    assert engine_identity(EngineConfig()) == engine_identity(EngineConfig())
    assert engine_identity(EngineConfig(block_size=32)) != engine_identity(EngineConfig())


def _artifact(directory: Path, content: bytes = b"weights", **change: object) -> Manifest:
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(content)
    values: dict[str, object] = {
        "name": "int8",
        "source": Named(name="m", digest="a" * 64),
        "recipe": "int8",
        "linears": [LinearSpec(pattern="model.layers.*", scheme="w8a8")],
        "weight_bytes": len(content),
        "files": list_files(directory),
    }
    manifest = Manifest.model_validate({**values, **change})
    write_manifest(directory, manifest)
    return manifest


def test_an_artifact_is_its_bytes_and_its_schemes(tmp_path: Path) -> None:
    first = _artifact(tmp_path / "a")
    assert verify(tmp_path / "a") == first
    assert _artifact(tmp_path / "b").digest == first.digest
    assert _artifact(tmp_path / "c", b"Weights").digest != first.digest
    assert _artifact(tmp_path / "d", linears=[]).digest != first.digest
    other = _artifact(tmp_path / "e", parameters={"group_size": 64})
    assert quantisation_identity(other) != quantisation_identity(first)


def test_a_changed_or_missing_file_is_found(tmp_path: Path) -> None:
    _artifact(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").write_bytes(b"weightz")
    with pytest.raises(ArtifactError, match=r"model\.safetensors: found .*, the manifest says"):
        verify(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"found no file"):
        verify(tmp_path / "a")
    with pytest.raises(ArtifactError, match=r"is not a directory"):
        read_manifest(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match=r"has no seatrial\.json"):
        read_manifest(tmp_path / "empty")


def test_accelerators_are_named_by_the_driver_or_by_its_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may show the devices and not the driver's files; no device has to be there at all."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", str(tool.parent))
    asked = []
    for script in (None, "#!/bin/sh\necho no driver\nexit 9\n", "#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n"):
        if script is not None:
            tool.write_text(script)
            tool.chmod(0o755)
        provenance._asked_of_nvidia_smi.cache_clear()
        asked.append(provenance._accelerators(tmp_path / "none"))
    provenance._asked_of_nvidia_smi.cache_clear()
    assert asked == [[], [], ["NVIDIA H200", "NVIDIA H200"]]
    for number, name in enumerate(("NVIDIA A100-SXM4-80GB", "NVIDIA L4")):
        (tmp_path / "driver" / f"0000:0{number}:00.0").mkdir(parents=True)
        (tmp_path / "driver" / f"0000:0{number}:00.0" / "information").write_text(f"Model: \t {name}\nIRQ: 1\n")
    assert provenance._accelerators(tmp_path / "driver") == ["NVIDIA A100-SXM4-80GB", "NVIDIA L4"]


def test_what_differs_is_said() -> None:
    named = {k: Named(name=k, digest=digest_of(k)) for k in ("model", "engine", "quantisation", "workload")}
    a = Header(**named, machine=this_machine(), measured_at=utc_now(), engine_requested={})
    b = a.model_copy(update={"engine": Named(name="engine", digest=digest_of("new"))})
    assert differing(a, a) == []
    assert differing(a, b) == ["engine"]
