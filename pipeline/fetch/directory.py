"""Writes the plain bf16 directory from whichever reader, and its manifest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.artifact import FileEntry, Manifest, Named, list_files, write_manifest
from pipeline.errors import SeatrialError
from pipeline.fetch.architectures import check_shapes, expected_shapes
from pipeline.fetch.gguf_file import GgufFile
from pipeline.fetch.gguf_tokenizer import write_tokenizer
from pipeline.provenance import digest_of
from pipeline.stage import Stage
from pipeline.weights import TensorFiles, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_CACHED_FREQUENCIES = "rotary_emb.inv_freq"  # a constant that old checkpoints carry along


def write_from_gguf(path: Path, into: Path, name: str, s: Stage) -> None:
    """
    Raises:
        SeatrialError: see :class:`GgufFile`, :func:`write_tokenizer`, :func:`check_shapes`.
    """
    gguf = GgufFile(path)
    config = gguf.config()
    expected = expected_shapes(config, str(path))
    check_shapes(gguf.shapes(), expected, str(path))
    write_tokenizer(gguf, into)
    generation = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if config[k] is not None}
    _finish(into, name, config, generation, lambda: gguf.tensors(config, list(expected)), len(expected), s)


def write_from_hf(source: Path, into: Path, name: str, s: Stage) -> None:
    """
    Raises:
        SeatrialError: a file is missing or does not parse, the architecture is unknown, the weights do not fit it.
    """
    if not source.is_dir():
        raise SeatrialError(f"{source} is not a directory; expected a Hugging Face model directory")
    config = _read_json(source / "config.json")
    if not (source / "tokenizer.json").is_file():
        raise SeatrialError(
            f"{source} has no tokenizer.json; load the tokenizer with transformers and save_pretrained it there first"
        )
    expected = expected_shapes(config, str(source))
    files = TensorFiles(source)
    names = [n for n in files.names() if not n.endswith(_CACHED_FREQUENCIES)]
    if "lm_head.weight" not in expected:  # tied: a copy of the embedding may lie beside it
        names = [n for n in names if n != "lm_head.weight"]
    check_shapes({n: files.shape(n) for n in names}, expected, str(source))
    for file in TOKENIZER_FILES:
        if (source / file).is_file():
            shutil.copyfile(source / file, into / file)
    has_generation = (source / "generation_config.json").is_file()
    generation = (
        _read_json(source / "generation_config.json")
        if has_generation
        else {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if config.get(k) is not None}
    )
    config = {k: v for k, v in config.items() if k not in {"dtype", "_name_or_path"}} | {"torch_dtype": "bfloat16"}

    def tensors() -> Iterator[tuple[str, Tensor]]:
        import torch

        for n in expected:
            tensor = files.read(n)
            if not tensor.is_floating_point():
                raise SeatrialError(f"{source}: {n} is stored as {tensor.dtype}, expected a floating-point type")
            yield n, tensor.to(torch.bfloat16)

    _finish(into, name, config, generation, tensors, len(expected), s)


def _finish(
    into: Path,
    name: str,
    config: dict[str, Any],
    generation: dict[str, Any],
    tensors: Callable[[], Iterator[tuple[str, Tensor]]],
    count: int,
    s: Stage,
) -> None:
    with s.progress(count, "tensors to bf16") as bar:

        def counted() -> Iterator[tuple[str, Tensor]]:
            for pair in tensors():
                yield pair
                bar.advance()

        weight_bytes = write_tensors(into, counted())
    for file, value in (("config.json", config), ("generation_config.json", generation)):
        (into / file).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    files = list_files(into)
    manifest = Manifest(
        name="base",
        source=Named(name=name, digest=_digest(files)),
        recipe="source",
        linears=[],
        weight_bytes=weight_bytes,
        files=files,
        report={},
    )
    write_manifest(into, manifest)


def _digest(files: dict[str, FileEntry]) -> str:
    """The model's identity: what was written, wherever it came from."""
    return digest_of({name: entry.sha256 for name, entry in files.items()})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise SeatrialError(f"{path} not found; expected a Hugging Face model directory") from e
    except ValueError as e:
        raise SeatrialError(f"{path} is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise SeatrialError(f"{path} holds a {type(value).__name__}, expected an object")
    return value
