"""A planted fault, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Part = Literal["records", "evalset", "artifact", "traffic", "engine"]


@dataclass(frozen=True)
class Seen:
    """``caught``: whatever must catch it did. ``by``: the rule, check or stage that did, or that should have.
    ``named``: what it says names the cause. ``said``: its words."""

    caught: bool
    named: bool
    by: str
    said: str


@dataclass(frozen=True)
class Fault:
    """``short``: takes seconds and no model, so it runs in CI. ``run`` plants it in an empty folder of its own, runs
    what must catch it, and says what that saw."""

    id: str
    part: Part
    what: str
    run: Callable[[Path], Seen]
    short: bool = True
