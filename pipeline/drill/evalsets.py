"""Faults of a regression set, planted into a copy: the stage ``check_evalsets`` must see them."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from pipeline.drill.fault import Fault, Seen
from pipeline.drill.trial import working_in
from pipeline.evaluation import outputs
from pipeline.evaluation.check import examine
from pipeline.evaluation.items import EVALSETS, Item
from pipeline.evaluation.leaks import CALIBRATION, calibration_texts
from pipeline.evaluation.versions import next_version, record
from pipeline.params import PARAMS, load_params

OWN = (
    "Send the parcel back within thirty days in its box, put the printed slip on top, and keep the receipt that the "
    "counter gives you until the money is on your account."
)
Rows = list[dict[str, Any]]
Edit = Callable[[Path, Rows], None]


def copied(root: Path) -> Path:
    """The evalset of params.yaml with its expectations and the calibration text that it is held against; its folder."""
    source = Path.cwd()
    shutil.copytree(source / EVALSETS, root / EVALSETS)
    shutil.copytree(source / CALIBRATION, root / CALIBRATION)
    shutil.copy(source / PARAMS, root)
    return root / EVALSETS / load_params().evaluation.evalset


def by_check(edit: Edit, check: str, *, recorded: bool = True, week: str | None = None) -> Callable[[Path], Seen]:
    """Caught if the set is called unsound; named if the check that is meant for it fails with an example.

    Args:
        edit: changes the rows of the first scenario that has messages.
        recorded: the digest is brought up to date, so that only the fault itself can be seen.
        week: that counts as now.
    """

    def run(root: Path) -> Seen:
        folder = copied(root)
        path = next(p for p in sorted((folder / "items").glob("*.jsonl")) if '"messages":[' in _compact(p))
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        before = copy.deepcopy(rows)
        with working_in(root):
            edit(root, rows)
            if rows != before:
                path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
                if recorded:
                    _record(folder)
            report = examine(folder, load_params(), week)
        failed = [c for c in report["checks"] if not c["success"]]
        mine = [c for c in failed if c["name"].startswith(check)]
        shown = (mine or failed)[:1]
        said = f"{shown[0]['what']} {'; '.join(map(str, shown[0]['examples'][:2]))}".strip() if shown else "sound"
        return Seen(not report["success"], bool(mine), shown[0]["name"] if shown else check, said)

    return run


def _compact(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace('": [', '":[')[:4000]


def _record(folder: Path) -> None:
    """The next version of the set; the composition that it promises stays as it was."""
    path = folder / "manifest.yaml"
    before = yaml.safe_load(path.read_text(encoding="utf-8"))
    record(folder, next_version(str(before["version"]), "major"), before["changelog"][-1]["week"], "planted")
    after = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(after | {"scenarios": before["scenarios"]}, sort_keys=False), encoding="utf-8")


def _leaks(root: Path, rows: Rows) -> None:
    rows[0]["messages"][-1]["content"] = calibration_texts(load_params(), root / CALIBRATION)[0].joined.strip()


def _personal(root: Path, rows: Rows) -> None:
    rows[0]["messages"][-1]["content"] += " Write to jo.doe@example.org."


def _unpinned(root: Path, rows: Rows) -> None:
    next(r for r in rows if r["origin"] == "pinned")["origin"] = "written"


def _gone(root: Path, rows: Rows) -> None:
    rows.pop(0)


def _twice(root: Path, rows: Rows) -> None:
    rows[1]["messages"] = rows[0]["messages"]


def _future(root: Path, rows: Rows) -> None:
    rows[0]["week"] = "2099-W01"


def _edited(root: Path, rows: Rows) -> None:
    rows[0]["messages"][-1]["content"] += " Please."


def _own_output(root: Path, rows: Rows) -> None:
    """A model answers, and later its answer becomes the reference."""
    written = outputs.fingerprint(Item.model_validate(rows[0]), OWN, "drill", "2026-01-01T00:00:00Z")
    assert written is not None
    outputs.remember([written])
    rows[0]["reference"] = OWN


def _nothing(root: Path, rows: Rows) -> None:
    """Time goes by."""


def _of(id: str, what: str, edit: Edit, check: str, **how: Any) -> Fault:
    return Fault(id, "evalset", what, by_check(edit, check, **how))


FAULTS = [
    _of("leaked-item", "a question that stands in the calibration text", _leaks, "leaks_"),
    _of("personal-data", "an email address in a prompt", _personal, "personal_data"),
    _of("missing-pinned-case", "a pinned case made an ordinary one", _unpinned, "composition_pinned"),
    _of("missing-item", "an item taken out", _gone, "composition_items"),
    _of("asked-twice", "two items ask the same", _twice, "duplicates"),
    _of("item-of-the-future", "an item of a week to come", _future, "weeks_not_in_the_future"),
    _of("own-output", "an answer of a model that was evaluated, as a reference", _own_output, "own_outputs"),
    _of("stale-rotation", "no production request has come in for years", _nothing, "production_", week="2030-W01"),
    _of("unrecorded-edit", "a changed prompt under the old version", _edited, "version", recorded=False),
]
