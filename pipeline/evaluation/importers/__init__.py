"""Public forms of test sets by name, and one for questions of one's own; ``import_set``: a file becomes an evalset.

Nothing is mended on the way: a row that does not suit its grader is left out, with the reason counted, and rows that
repeat are kept, for the health checks to find.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import SeatrialError
from pipeline.evaluation.expectations import suite_path
from pipeline.evaluation.graders import check_item
from pipeline.evaluation.importers import choices, lm_eval, own, programs, texts
from pipeline.evaluation.importers.base import Form, Question, Unsuitable, jsonl_rows
from pipeline.evaluation.items import Item, content_digest, load_evalset, to_line
from pipeline.evaluation.versions import parsed, read_manifest, record
from pipeline.files import atomic_dir, atomic_write

__all__ = ["FORMS", "Imported", "import_set"]

SUITE = "imported"
SHIPPED = "template/evalsets/expectations/EVALSET.json"  # the suite of imported sets, where no checkout is at hand
FORMS: dict[str, Form] = {
    "own": Form(
        "JSONL of one's own questions, kinds mixed: `question` with choices, constraints, tests or an answer alone",
        jsonl_rows,
        own.question,
        names_scenarios=True,
    ),
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
    """What came of a file: items, and how many rows were left out for which reason, the first of them where."""

    items: list[Item] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def leave_out(self, why: str, where: str) -> None:
        self.left_out[why] += 1
        self.first.setdefault(why, where)

    def lines(self) -> list[str]:
        said = self.left_out.most_common()
        return [f"{n} left out: {why} ({'first ' if n > 1 else ''}{self.first[why]})" for why, n in said]


def read(form: Form, path: Path, name: str, week: str) -> Imported:
    """The items of a file of this form.

    Raises:
        SeatrialError: the file cannot be read, is not of that form at all, has a name twice or two kinds in a scenario.
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
            result.leave_out(str(e), where)
            continue
        except SeatrialError as e:  # "item ID: grader: what is wrong"
            result.leave_out(str(e).partition(": ")[2], where)
            continue
        if item.id in seen:
            raise SeatrialError(f"{where} has the name {item.id!r} of {seen[item.id]}; names must be unique")
        seen[item.id] = where
        result.items.append(item)
    if not result.items:
        raise SeatrialError(f"{path}: no row became an item; expected {form.what}. {'; '.join(result.lines())}")
    kinds: dict[str, str] = {}
    for item in result.items if form.names_scenarios else ():
        if (kind := kinds.setdefault(item.scenario, item.kind)) != item.kind:
            raise SeatrialError(
                f"{seen[item.id]}: scenario {item.scenario!r} has {kind} items already, and this one is {item.kind}; a "
                "scenario holds one kind: give one of them another name"
            )
    return result


def _item(q: Question, name: str, number: int, week: str) -> Item:
    fields: dict[str, Any] = {
        "id": f"{name}-{_slug(q.key) if q.key else f'{number:05d}'}",
        "scenario": q.scenario or name,
        "kind": q.kind,
        "origin": q.origin,
        "week": week,
        "source": f"{name}.{q.cluster or number}",
        "grader": {"name": q.grader, "params": q.params},
        "reference": q.reference,
        "prompt": q.prompt,
        "choices": q.choices,
        "messages": [{"role": "user", "content": q.ask}] if q.ask is not None else None,
        "max_tokens": q.max_tokens,
        "watches_for": q.watches_for,
    }
    return Item.model_validate(fields)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-") or "x"


def import_set(form_name: str, path: Path, out: Path, week: str) -> Imported:
    """Writes the evalset ``out`` (its name is the folder's) from a file of a public form, as version 1.0.0.

    Examples that nobody has touched (a recorded version below 1, as `seatrial init` writes them) give way to it; the
    suite of their set stays its suite.

    Raises:
        SeatrialError: see :func:`read`; or ``out`` exists.
    """
    name = out.name
    if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", name):
        raise SeatrialError(
            f"--out ends in {name!r}; expected lower-case letters, digits, _: it names scenario and ids"
        )
    examples = _examples(out)
    if out.exists() and examples is None:
        raise SeatrialError(f"{out} exists; choose another folder, or remove it first")
    result = read(FORMS[form_name], path, name, week)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest: dict[str, Any] = {
        "name": name,
        "version": "0",
        "description": f"Imported from {path.name} (sha256 {digest}) in the form {form_name}.",
        "suite": SUITE if examples is None else examples.get("suite"),
        "scenarios": {},
        "content_digest": "",
        "changelog": [],
    }
    with atomic_dir(out) as folder:
        atomic_write(folder / "items" / f"{name}.jsonl", "".join(map(to_line, result.items)))
        atomic_write(folder / "manifest.yaml", yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=110))
        record(folder, "1.0.0", week, f"Imported: {len(result.items)} items of {path.name}")
    if not (suite := suite_path(out, load_evalset(out).manifest)).exists():
        atomic_write(suite, _shipped_suite(suite.stem))
    return result


def _examples(folder: Path) -> dict[str, Any] | None:
    """The manifest of a set that is but examples, as they were written; None of any other, or where there is none."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.get("content_digest") != content_digest(folder):
        return None
    return manifest if parsed(str(manifest.get("version"))) < (1, 0, 0) else None


def _shipped_suite(name: str) -> str:
    suite = json.loads((files("pipeline.project") / SHIPPED).read_text(encoding="utf-8"))
    return json.dumps(suite | {"name": name}, indent=2) + "\n"
