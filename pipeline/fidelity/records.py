"""Records of fidelity, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError

RECORDS = Path("reports/fidelity")


def read_records(folder: Path = RECORDS) -> list[dict[str, Any]]:
    """All records, the largest weights first.

    Raises:
        SeatrialError: there are none, one cannot be read, or they are of different workloads or references.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            found.append((record["header"]["workload"], record["reference"]["quantisation"]["digest"], record))
        except (ValueError, KeyError, TypeError) as e:
            raise SeatrialError(f"{path} is not a record of fidelity ({type(e).__name__}: {e}); remove it") from e
    if not found:
        raise SeatrialError(f"{folder} has no record; run `seatrial fidelity` first")
    first = found[0]
    for workload, reference, record in found[1:]:
        if (workload, reference) != first[:2]:
            raise SeatrialError(
                f"{record['variant']} was measured on {workload['name']} against reference {reference[:8]}, "
                f"{first[2]['variant']} on {first[0]['name']} against {first[1][:8]}; measure them in one run"
            )
    return sorted((r for _, _, r in found), key=lambda r: (-r["weight_bytes"], r["variant"]))
