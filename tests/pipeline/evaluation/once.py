"""What check after check computes alike of one set is computed once: fifty spoilt copies differ in an item or two.

Nothing is left out: a rule is run on every input that it has not seen, and what it said of one is what it says again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.evaluation import expectations, leaks, personal
from pipeline.evaluation.expectations import Suite
from pipeline.evaluation.leaks import Overlap, Text

Rows = list[dict[str, Any]]
COLUMNS = ("column", "column_A", "column_B")  # of an expectation's arguments those that name what it looks at
OTHERS = {"min_value", "max_value", "regex", "value_set"}  # those that name no column


def computed_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leaks, "minhash", cache(leaks.minhash))
    patch.setattr(personal, "find", cache(personal.find))
    patch.setattr(expectations, "_run", _expectations_once(expectations._run))
    for name in ("exact", "ngrams", "near_duplicates"):
        patch.setattr(leaks, name, _texts_once(getattr(leaks, name)))


def _texts_once(real: Callable[..., list[Overlap]]) -> Callable[..., list[Overlap]]:
    known: dict[Any, list[Overlap]] = {}

    def once(items: Iterable[Text], others: Iterable[Text], *more: Any) -> list[Overlap]:
        key = (tuple(items), tuple(others), more)
        if key not in known:
            known[key] = real(*key[:2], *more)
        return known[key]

    return once


def _expectations_once(real: Callable[..., Rows]) -> Callable[..., Rows]:
    """Each expectation by the columns that it looks at and the ids that its examples name."""
    known: dict[str, dict[str, Any]] = {}

    def once(path: Path, suite: Suite, frames: dict[str, Rows], parameters: dict[str, Any]) -> Rows:
        def key_of(x: Any) -> str:
            named = {str(x.kwargs[k]) for k in COLUMNS if k in x.kwargs}
            known_arguments = x.kwargs.keys() <= {*COLUMNS, *OTHERS}
            rows = [
                {k: v for k, v in r.items() if k in named | {"id"} or not known_arguments} for r in frames[x.meta.frame]
            ]
            return json.dumps([x.model_dump(), parameters, rows], sort_keys=True)

        keys = [key_of(x) for x in suite.expectations]
        new = [x for x, key in zip(suite.expectations, keys, strict=True) if key not in known]
        if new:
            found = real(path, suite.model_copy(update={"expectations": new}), frames, parameters)
            known.update(zip([k for k in keys if k not in known], found, strict=True))
        return [known[k] for k in keys]

    return once
