"""``math.last_number``: is the last number in the text the right one?

Read as numbers: ``1,234.5`` (thousands separators), ``-5`` and ``−5`` (a minus directly before a digit and not after a
digit, letter or closing bracket, where it is a subtraction), ``3/4`` and ``\\frac{3}{4}``, ``1 3/4``, ``.5``, ``2e3``.
Currency signs, units, "=", percent signs, bold marks and a full stop at the end are passed over. A digit that is part
of a name (``x2``, ``H2O``) is no number.
"""

from __future__ import annotations

import math
import re

from pydantic import Field

from pipeline.evaluation.graders.base import Answer, Grade, GraderParams, GraderSpec, need_generation
from pipeline.evaluation.items import Item

_FRAC = re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    rf"""(?<![\w.])                                 # not inside a name or a number
    (?P<sign>(?<![\w)\]}}%])[-−])?\$?               # a sign, unless it subtracts
    (?:(?P<whole>\d+)[ ]+(?=\d+\s*/\s*\d))?         # 1 of 1 3/4
    (?P<number>{_UNSIGNED})
    (?:[eE](?P<exponent>[-+]?\d{{1,3}})\b)?
    (?:\s*/\s*(?P<divisor>\d+)(?![\d.]*/))?
    """,
    re.VERBOSE,
)


class Params(GraderParams):
    tolerance: float = Field(1e-6, ge=0, allow_inf_nan=False, description="greatest absolute difference that is right")


def last_number(text: str) -> tuple[str, float] | None:
    """The last number as written, and its value; None where there is none."""
    text = _FRAC.sub(r" \1/\2 ", text)
    found = None
    for m in _NUMBER.finditer(text):
        # Read by float as a whole: beyond its range is infinity, which is no number here, and no error.
        value = float(f"{m['number'].replace(',', '')}e{m['exponent'] or 0}")
        if m["divisor"]:
            divisor = float(m["divisor"])
            if text[: m.start()].endswith("/"):  # the third of a date such as 2024/12/31, not a fraction
                value = divisor
            elif divisor == 0:
                continue
            else:
                value /= divisor
        if m["whole"]:
            value += float(m["whole"])
        if math.isfinite(value):
            found = m.group().strip(), -value if m["sign"] else value
    return found


def check(item: Item, params: Params) -> None:
    need_generation(item)
    if isinstance(item.reference, bool) or not isinstance(item.reference, int | float):
        raise ValueError(f"reference is {item.reference!r}; expected a number")
    if not math.isfinite(item.reference):
        raise ValueError(f"reference is {item.reference!r}; expected a finite number")


def grade(item: Item, params: Params, answer: Answer) -> Grade:
    found = last_number(answer.text)
    if found is None:
        return Grade(False, "there is no number in the answer", "", detail={"value": None})
    written, value = found
    right = abs(value - item.reference) <= params.tolerance
    return Grade(
        right, None if right else f"the last number is {written}, the right one {item.reference}", written,
        detail={"value": value},
    )  # fmt: skip


SPEC = GraderSpec("math.last_number", "1", Params, grade, check)
