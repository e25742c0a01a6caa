"""Answers that survive a killed evaluation: one JSON line each, in a folder named by who answered.

The folder's name is a digest over the artifact and the engine, so that an answer of one model or engine is never found
when another is asked; within it an answer is found by its item and the whole request. Only complete answers
are kept. A line that a kill tore is dropped when the file is next opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from pipeline.evaluation.client import Reply, Request
from pipeline.evaluation.items import Item
from pipeline.files import write_json
from pipeline.provenance import digest_of

WORK = Path(".seatrial/work")
SCHEMA_VERSION = 1


def key_of(item: Item, request: Request) -> str:
    return digest_of([item.id, request.path, request.body])


class AnswerCache:
    """Use :func:`open_cache`. Not for several processes at once; the measuring lock of the stage sees to that."""

    def __init__(self, known: dict[str, Reply], file: TextIO | None) -> None:
        self._known, self._file = known, file

    def get(self, item: Item, request: Request) -> Reply | None:
        return self._known.get(key_of(item, request))

    def put(self, item: Item, request: Request, reply: Reply) -> None:
        key = key_of(item, request)
        self._known[key] = reply
        if self._file:
            row = {"schema_version": SCHEMA_VERSION, "key": key, "item": item.id, "reply": reply.as_json()}
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()


@contextmanager
def open_cache(identity: dict[str, Any] | None, work: Path = WORK) -> Iterator[AnswerCache]:
    """The answers of whoever ``identity`` describes; with None, a cache that forgets."""
    if identity is None:
        yield AnswerCache({}, None)
        return
    folder = work / digest_of({"answers": identity})
    path = folder / "answers.jsonl"
    write_json(folder / "identity.json", identity)
    known = _read(path)
    with path.open("a", encoding="utf-8") as file:
        yield AnswerCache(known, file)


def _read(path: Path) -> dict[str, Reply]:
    """Every whole row; cuts a torn last line off the file, so that the next one does not continue it."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with path.open("r+b") as f:
            f.truncate(len(whole))
    known: dict[str, Reply] = {}
    for line in whole.decode("utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
            if row["schema_version"] == SCHEMA_VERSION:
                known[row["key"]] = Reply(**row["reply"])
        except (ValueError, KeyError, TypeError):
            continue  # unreadable: the item is asked again
    return known
