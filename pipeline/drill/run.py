"""Runs planted faults one after the other and tells what became of each."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.artifact import ArtifactError
from pipeline.drill.fault import Fault, Seen
from pipeline.errors import SeatrialError
from pipeline.provenance import utc_now

Row = dict[str, Any]
_COLUMNS = {"id", "part", "what", "as_of", "seconds", "caught", "named", "by", "said"}


@dataclass(frozen=True)
class Result:
    fault: Fault
    seen: Seen
    seconds: float


def drill(
    faults: Sequence[Fault], folder: Path, tell: Callable[[Result], None], clock: Callable[[], float] = time.monotonic
) -> list[Result]:
    """Each in an empty folder of its own. A fault that cannot be planted is not caught, and says why."""
    results = []
    for fault in faults:
        root = (folder / fault.id).absolute()
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        began = clock()
        try:
            seen = fault.run(root)
        except (SeatrialError, ArtifactError) as e:
            seen = Seen(False, False, "not run", str(e))
        results.append(Result(fault, seen, clock() - began))
        tell(results[-1])
    return results


def row_of(r: Result) -> Row:
    """As drill.json holds it. ``as_of``: when it ended, since a table may be made in pieces."""
    fault = {"id": r.fault.id, "part": r.fault.part, "what": r.fault.what}
    return fault | {"as_of": utc_now(), "seconds": round(r.seconds, 1)} | asdict(r.seen)


def rows_in(path: Path) -> list[Row]:
    """Those of an earlier drill; none where there was none.

    Raises:
        SeatrialError: it is something else.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["faults"]
        if any(missing := _COLUMNS - row.keys() for row in rows):
            raise ValueError(f"a row without {', '.join(sorted(missing))}")
    except FileNotFoundError:
        return []
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise SeatrialError(f"{path} holds no table of faults ({e}); delete it, or leave --keep out") from e
    return list(rows)


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "as_of": utc_now(),
        "planted": len(rows),
        "caught": sum(r["caught"] for r in rows),
        "named": sum(r["named"] for r in rows),
        "faults": list(rows),
    }


def markdown(rows: Sequence[Row]) -> str:
    """One row a fault, those that were missed first."""
    caught, named = (sum(r[k] for r in rows) for k in ("caught", "named"))
    lines = [
        f"{caught} of {len(rows)} planted faults caught, {named} named.",
        "",
        "| fault | planted into | caught | named | by | time |",
        "| --- | --- | --- | --- | --- | ---: |",
    ]
    for r in sorted(rows, key=lambda r: (r["caught"], r["named"])):
        yes = ["yes" if v else "NO" for v in (r["caught"], r["named"])]
        lines.append(f"| {r['what']} | {r['part']} | {yes[0]} | {yes[1]} | {r['by']} | {_time(r['seconds'])} |")
    return "\n".join(lines) + "\n"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
