"""Calibration text -> token sequences.

``calibration/NAME.jsonl``: one JSON object a line, ``{"id", "kind", "text"}`` or ``{"id", "kind", "messages"}``.
A change of the text needs a new name, since its digest is part of what identifies an artifact.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.artifact import Named, sha256_file
from pipeline.errors import SeatrialError

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = Path(__file__).resolve().parent / "calibration"
SEQUENCE_TOKENS = 512


def calibration_file(name: str) -> Path:
    """
    Raises:
        SeatrialError: there is no calibration text of this name.
    """
    path = FOLDER / f"{name}.jsonl"
    known = sorted(p.stem for p in FOLDER.glob("*.jsonl"))
    if name not in known:
        raise SeatrialError(f"unknown calibration text {name!r}; {FOLDER.name}/ has {', '.join(known)}")
    return path


def calibration_identity(name: str) -> Named:
    return Named(name=f"calibration-{name}", digest=sha256_file(calibration_file(name)))


def read_entries(path: Path) -> list[dict[str, Any]]:
    """
    Raises:
        SeatrialError: a line that is not such an object; names file and line.
    """
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
        except ValueError as e:
            raise SeatrialError(f"{path}:{number}: not JSON: {e}") from e
        if not isinstance(entry, dict) or ("text" in entry) == ("messages" in entry):
            raise SeatrialError(f"{path}:{number}: expected an object with either text or messages")
        entries.append(entry)
    return entries


def calibration_sequences(name: str, model: Path, tokens: int, max_length: int) -> list[Tensor]:
    """int64 sequences of at most 512 tokens, ``tokens`` in all: the entries in order, end to end.

    Where the tokenizer opens every text with a token (Gemma, Mistral, Llama 3), each sequence has it in front, not
    counted in ``tokens``: without it such models have activations that they never have when they serve.

    Raises:
        SeatrialError: the text has fewer tokens than asked for.
    """
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.model_max_length = sys.maxsize  # entries are cut into sequences below: no warning about long ones
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    ids: list[int] = []
    for entry in read_entries(calibration_file(name)):
        text = entry["text"] if "text" in entry else _rendered(tokenizer, entry["messages"])
        ids += tokenizer(text, add_special_tokens=False)["input_ids"] + (end if "text" in entry else [])
        if len(ids) >= tokens:
            break
    if len(ids) < tokens:
        raise SeatrialError(
            f"calibration_tokens is {tokens}, but calibration text {name} has {len(ids)} tokens for this model; "
            "lower calibration_tokens"
        )
    opening = tokenizer("")["input_ids"]
    opening = opening if opening == [tokenizer.bos_token_id] else []
    parts = torch.tensor(ids[:tokens]).split(min(SEQUENCE_TOKENS, max_length) - len(opening))
    return [torch.cat((torch.tensor(opening, dtype=torch.int64), part)) for part in parts]


def _rendered(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    if tokenizer.chat_template:
        return str(tokenizer.apply_chat_template(messages, tokenize=False))
    return "".join(f"{m['role']}: {m['content']}\n" for m in messages)
