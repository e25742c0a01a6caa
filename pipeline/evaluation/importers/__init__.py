"""Public forms of test sets by name, and ``import_set``: a file of one becomes an evalset of its own.

Nothing is mended on the way: a row that does not suit its grader is left out, with the reason counted, and rows that
repeat are kept, for the health checks to find.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import SeatrialError
from pipeline.evaluation.expectations import SUITES
from pipeline.evaluation.graders import check_item
from pipeline.evaluation.importers import choices, lm_eval, programs, texts
from pipeline.evaluation.importers.base import Form, Question, Unsuitable, jsonl_rows
from pipeline.evaluation.items import EVALSETS, Item, to_line
from pipeline.evaluation.versions import record
from pipeline.files import atomic_dir, atomic_write

__all__ = ["FORMS", "Imported", "import_set"]

SUITE = "imported"
FORMS: dict[str, Form] = {
    "choice": Form("JSONL of a question with choices: MMLU, ARC, PIQA", jsonl_rows, choices.asked),
    "continuation": Form("JSONL of a context and its endings: HellaSwag", jsonl_rows, choices.continued),
    "squad": Form("one JSON file of SQuAD or XQuAD", texts.squad_rows, texts.squad),
    "gsm8k": Form("JSONL of GSM8K, answers end in #### NUMBER", jsonl_rows, texts.gsm8k),
    "mbpp": Form("JSONL of MBPP", jsonl_rows, programs.mbpp),
    "humaneval": Form("JSONL of HumanEval", jsonl_rows, programs.humaneval),
    "ifeval": Form("JSONL of IFEval", jsonl_rows, texts.ifeval),
    "lm-eval": Form("samples_*.jsonl of lm-eval --log_samples", jsonl_rows, lm_eval.sample),
}


@dataclass
class Imported:
    """What came of a file: items, and how many rows were left out for which reason."""

    items: list[Item] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        return [f"{n} left out: {why}" for why, n in self.left_out.most_common()]


def read(form: Form, path: Path, name: str, week: str) -> Imported:
    """The items of a file of this form.

    Raises:
        SeatrialError: the file cannot be read, is not of that form at all, or has a name twice.
    """
    if not path.is_file():
        raise SeatrialError(f"{path} not found; expected {form.what}")
    result = Imported()
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(form.rows(path), 1):
        try:
            item = _item(form.question(row), name, number, week)
            check_item(item)
        except Unsuitable as e:
            result.left_out[str(e)] += 1
            continue
        except SeatrialError as e:  # "item ID: grader: what is wrong"
            result.left_out[str(e).partition(": ")[2]] += 1
            continue
        if item.id in seen:
            raise SeatrialError(f"{where} has the name {item.id!r} of {seen[item.id]}; names must be unique")
        seen[item.id] = where
        result.items.append(item)
    if not result.items:
        raise SeatrialError(f"{path}: no row became an item; expected {form.what}. {'; '.join(result.lines())}")
    return result


def _item(q: Question, name: str, number: int, week: str) -> Item:
    fields: dict[str, Any] = {
        "id": f"{name}-{_slug(q.key) if q.key else f'{number:05d}'}",
        "scenario": name,
        "kind": q.kind,
        "origin": "imported",
        "week": week,
        "source": f"{name}.{q.cluster or number}",
        "grader": {"name": q.grader, "params": q.params},
        "reference": q.reference,
        "prompt": q.prompt,
        "choices": q.choices,
        "messages": [{"role": "user", "content": q.ask}] if q.ask is not None else None,
        "max_tokens": q.max_tokens,
    }
    return Item.model_validate(fields)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-") or "x"


def import_set(form_name: str, path: Path, out: Path, week: str) -> Imported:
    """Writes the evalset ``out`` (its name is the folder's) from a file of a public form, as version 1.0.0.

    Raises:
        SeatrialError: see :func:`read`; or ``out`` exists.
    """
    name = out.name
    if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", name):
        raise SeatrialError(
            f"--out ends in {name!r}; expected lower-case letters, digits, _: it names scenario and ids"
        )
    if out.exists():
        raise SeatrialError(f"{out} exists; choose another folder, or remove it first")
    result = read(FORMS[form_name], path, name, week)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest = {
        "name": name,
        "version": "0",
        "description": f"Imported from {path.name} (sha256 {digest}) in the form {form_name}.",
        "suite": SUITE,
        "scenarios": {},
        "content_digest": "",
        "changelog": [],
    }
    with atomic_dir(out) as folder:
        atomic_write(folder / "items" / f"{name}.jsonl", "".join(map(to_line, result.items)))
        atomic_write(folder / "manifest.yaml", yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=110))
        record(folder, "1.0.0", week, f"Imported: {len(result.items)} items of {path.name}")
    beside, shipped = (root / SUITES / f"{SUITE}.json" for root in (out.parent, EVALSETS))
    if not beside.exists() and shipped.exists():
        atomic_write(beside, shipped.read_bytes())
    return result
