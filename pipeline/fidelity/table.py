"""Records of fidelity side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.fidelity.graded import graded

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
    "accuracy",
    "lost, gained",
)


def markdown(records: Sequence[dict[str, Any]], root: Path = Path()) -> str:
    """A table in Markdown: divergences in nats a token; accuracy and flips where ``root/results`` has them.

    Raises:
        SeatrialError: results that cannot be read.
    """
    lines = [f"| {' | '.join(HEADS)} |", f"| --- |{' ---: |' * (len(HEADS) - 1)}"]
    for record in records:
        held_out, prompts = record["parts"]["held_out"], record["parts"].get("prompts")
        slope, same = record["long"]["slope"], record["greedy"]["identical_share"]
        judged = graded(record, root)
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
            "" if judged is None else f"{judged.accuracy:.2%}",
            "" if judged is None or judged.lost is None else f"-{judged.lost}, +{judged.gained}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
