"""Small traces of all forms, written here."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from loadtests.workload import StageSpec

BLOCK = 512


def azure(path: Path, rows: list[tuple[float, int, int]]) -> Path:
    """Rows of (second, prompt, output), as the Azure traces write them."""
    lines = [f"2023-11-16 18:{int(s // 60):02d}:{s % 60:010.7f},{p},{o}" for s, p, o in rows]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    return path


def mooncake(path: Path, rows: list[tuple[float, int, int, list[int]]]) -> Path:
    """Rows of (second, prompt, output, block hashes), as the Mooncake traces write them."""
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    lines = [json.dumps(dict(zip(keys, (round(s * 1000), p, o, h), strict=True))) for s, p, o, h in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def conversations(seed: int, requests: int) -> list[tuple[float, int, int, list[int]]]:
    """A trace of conversations that grow and branch: rows as ``mooncake`` takes them, in ticks of 3 s."""
    rng, chains, new = random.Random(seed), [[0]], 1
    rows = []
    for i in range(requests):
        chain = list(rng.choice(chains))[: rng.randint(1, 6)]
        for _ in range(rng.randint(0, 4)):
            chain.append(new)
            new += 1
        chains.append(chain)
        rows.append((3.0 * (i // 4), len(chain) * BLOCK - rng.randint(0, BLOCK - 1), rng.randint(1, 900), chain))
    return rows


def replaying(file: Path, *, warmup_s: float = 0, duration_s: float = 10, **arrivals: Any) -> StageSpec:
    """A stage that replays a file, as recorded unless ``arrivals`` says otherwise."""
    as_recorded = {"kind": "replay", "file": file.name, "context_tokens": 1 << 20}
    as_recorded |= {} if "rate_per_s" in arrivals else {"rate_factor": 1}
    as_recorded |= {} if "fit_share" in arrivals else {"length_factor": 1}
    value = {"name": "s", "warmup_s": warmup_s, "duration_s": duration_s, "arrivals": as_recorded | arrivals}
    return StageSpec.model_validate(value, context={"folder": file.parent})
