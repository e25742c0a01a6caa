"""How figures are written: units, sensible rounding, and "not measured" in the place of what is absent."""

from __future__ import annotations

import math
from typing import Any

ABSENT = "not measured"
_MINUS = "−"


def is_number(value: Any) -> bool:
    """A finite number (bool is not one)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: Any, digits: int = 3) -> str:
    """``digits`` significant digits, thousands in groups, never in exponent form: 0.00321, 12.3, 1,250."""
    if not is_number(value):
        return ABSENT
    if value == 0:
        return "0"
    if isinstance(value, int):
        text = f"{value:,}"
    else:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{min(places, 6)}f}"
    return text.replace("-", _MINUS)


def count(value: Any) -> str:
    """A number of things: 26.0 and 26 -> 26; a sum of partial scores keeps its fraction."""
    return number(int(value) if is_number(value) and value == int(value) else value)


def milliseconds(value: Any) -> str:
    """0.42, 8.31, 42.0, 420, 12,345."""
    return number(float(value)) if is_number(value) else ABSENT


def sentence(text: str) -> str:
    """With a capital, unless it begins with a path."""
    first = text.partition(" ")[0]
    return text if "/" in first else text[:1].upper() + text[1:]


def share(value: Any, places: int = 1) -> str:
    """0.873 -> 87.3 %."""
    return f"{100 * value:.{places}f} %".replace("-", _MINUS) if is_number(value) else ABSENT


def points(value: Any) -> str:
    """A difference of two shares in percentage points, always with a sign: 0.012 -> +1.2 points."""
    if not is_number(value):
        return ABSENT
    text = f"{100 * value:+.1f}"
    return ("0.0" if float(text) == 0 else text.replace("-", _MINUS)) + " points"


def mebibytes(value: Any) -> str:
    """Bytes in MiB, the unit in the heading: 134,515,008 -> 128.3."""
    return f"{value / 1024**2:,.1f}" if is_number(value) else ABSENT


def with_bytes(value: Any) -> str:
    """Bytes with the unit that fits: 92,160 -> 90.0 KiB."""
    if not is_number(value):
        return ABSENT
    size, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"


def seconds(value: Any) -> str:
    """A duration: 0.4 s, 12 s, 3 min 20 s, 1 h 05 min."""
    if not is_number(value):
        return ABSENT
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def moment(value: Any) -> str:
    """RFC 3339 in UTC, for reading: 2026-03-01T10:20:30Z -> 2026-03-01 10:20 UTC."""
    text = str(value or "")
    return f"{text[:10]} {text[11:16]} UTC" if len(text) >= 16 and text.endswith("Z") else text or "time unknown"


def with_unit(value: Any, unit: str | None) -> str:
    """A figure in the unit that its rule names."""
    if value is None:
        return ABSENT
    if not is_number(value):
        return str(value)
    unit = unit or ""
    if unit in {"share", "ratio"} or unit.endswith(("_share", "_ratio")):
        return share(value)
    if unit in {"points", "percentage points"}:
        return f"{value:+.1f} points".replace("-", _MINUS)
    if unit in {"cases", "checks", "items", "requests"}:
        return f"{count(value)} {unit[:-1] if value == 1 else unit}"
    if unit in {"%", "percent"}:
        return f"{number(float(value))} %"
    if unit == "bytes":
        return with_bytes(value)
    return f"{number(value)} {unit.replace('tokens/s', 'tok/s')}".strip()
