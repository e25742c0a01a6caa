"""Records of fidelity side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.fidelity.run import RECORDS

HEADS = (
    "variant",
    "weights MiB",
    "KV B/token",
    "perplexity",
    "KL mean",
    "KL P99",
    "top-1",
    "KL, prompts",
    "KL slope /1k (upper)",
    "same greedy",
)


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


def markdown(records: Sequence[dict[str, Any]]) -> str:
    """A table in Markdown: divergences in nats a token."""
    lines = [f"| {' | '.join(HEADS)} |", f"| --- |{' ---: |' * (len(HEADS) - 1)}"]
    for record in records:
        held_out, prompts = record["parts"]["held_out"], record["parts"].get("prompts")
        slope, same = record["long"]["slope"], record["greedy"]["identical_share"]
        cells = [
            record["variant"],
            f"{record['weight_bytes'] / 2**20:.1f}",
            str(record["kv_bytes_per_token"]),
            f"{held_out['perplexity']:.3f}",
            f"{held_out['kl_mean']:.5f}",
            f"{held_out['kl_p99']:.4f}",
            f"{held_out['top1_agreement']:.2%}",
            "" if prompts is None else f"{prompts['kl_mean']:.5f}",
            "" if slope is None else f"{slope['per_1000_tokens']:.5f} ({slope['upper']:.5f})",
            "" if same is None else f"{same:.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
