"""What an importer of a public form is: one function from a row of the file to a question, or the reason why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import Kind, Origin

Row = dict[str, Any]


class Unsuitable(Exception):
    """This row cannot become an item; says why. It is left out and counted by reason."""


@dataclass(frozen=True)
class Question:
    """A row of a public set as an item in the making. ``key`` is its name in its source, ``cluster`` what it came from
    together with others (a paragraph), if anything."""

    kind: Kind
    grader: str
    key: str | None = None
    cluster: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    reference: Any = None
    prompt: str | None = None
    ask: str | None = None  # the only message of a chat
    choices: list[str] | None = None
    max_tokens: int = 0
    scenario: str | None = None  # None: the set is one scenario
    origin: Origin = "imported"
    watches_for: str | None = None


@dataclass(frozen=True)
class Form:
    """An entry of the registry: how a file becomes rows and a row a question. ``names_scenarios``: rows may name one;
    else the file is one scenario.
    """

    what: str
    rows: Callable[[Path], Iterator[tuple[str, Row]]]
    question: Callable[[Row], Question]
    names_scenarios: bool = False


def jsonl_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Rows with their ``file:line``. Lines end at the newline character alone: texts may hold U+2028.

    Raises:
        SeatrialError: not UTF-8, or a line that is not a JSON object.
    """
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line.decode("utf-8"))
        except (UnicodeDecodeError, ValueError, RecursionError) as e:
            raise SeatrialError(f"{where}: expected a JSON object in UTF-8: {e}; mend or remove that line") from e
        if not isinstance(row, dict):
            raise SeatrialError(f"{where}: found {type(row).__name__}, expected a JSON object a line")
        yield where, row


def need(row: Row, *names: str) -> Any:
    """The first of these fields that is there.

    Raises:
        Unsuitable: none of them is.
    """
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise Unsuitable(f"has none of {', '.join(names)}")


def need_text(row: Row, *names: str) -> str:
    value = need(row, *names)
    if not isinstance(value, str) or not value.strip():
        raise Unsuitable(f"{' / '.join(names)} is not a text")
    return value


def key_of(row: Row, *names: str) -> str | None:
    """The row's own name, from several fields where one alone repeats; None where it has none."""
    parts = [str(row[n]) for n in names if isinstance(row.get(n), str | int) and not isinstance(row.get(n), bool)]
    return "-".join(parts) or None
