"""Runs planted faults one after the other and tells what became of each."""

from __future__ import annotations

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


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "as_of": utc_now(),
        "planted": len(results),
        "caught": sum(r.seen.caught for r in results),
        "named": sum(r.seen.named for r in results),
        "faults": [
            {
                "id": r.fault.id,
                "part": r.fault.part,
                "what": r.fault.what,
                "seconds": round(r.seconds, 1),
                **asdict(r.seen),
            }
            for r in results
        ],
    }


def markdown(results: Sequence[Result]) -> str:
    """One row a fault, those that were missed first."""
    caught, named = (sum(getattr(r.seen, k) for r in results) for k in ("caught", "named"))
    lines = [
        f"{caught} of {len(results)} planted faults caught, {named} named.",
        "",
        "| fault | planted into | caught | named | by | time |",
        "| --- | --- | --- | --- | --- | ---: |",
    ]
    for r in sorted(results, key=lambda r: (r.seen.caught, r.seen.named)):
        yes = ["yes" if v else "NO" for v in (r.seen.caught, r.seen.named)]
        lines.append(f"| {r.fault.what} | {r.fault.part} | {yes[0]} | {yes[1]} | {r.seen.by} | {_time(r.seconds)} |")
    return "\n".join(lines) + "\n"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
