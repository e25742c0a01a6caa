"""Prompt and output lengths from a recorded trace, or drawn from distributions where there is none.

Three forms are read, told apart by their columns:

    CSV    TIMESTAMP,ContextTokens,GeneratedTokens     Azure LLM inference traces (Patel et al., Splitwise, ISCA 2024)
    CSV    num_prefill_tokens,num_decode_tokens        length pairs without arrival times
    JSONL  input_length, output_length (also .gz)      Mooncake traces (Qin et al., FAST 2025)
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.bench.errors import BenchError

CSV_COLUMNS = (("ContextTokens", "GeneratedTokens"), ("num_prefill_tokens", "num_decode_tokens"))
JSON_KEYS = ("input_length", "output_length")
EXPECTED = (
    "a CSV with the columns " + " or ".join(",".join(pair) for pair in CSV_COLUMNS) + f", or JSONL(.gz) with the keys "
    f"{','.join(JSON_KEYS)}"
)

# Without a trace: log-normal lengths, a shape that request traces have (many short, few very long). Medians and the
# ratio P95 / median = exp(1.645 sigma) are round numbers near those of chat traces once these are scaled to a context
# of 2,048 tokens: prompts 300 with a P95 of 1,500, outputs 100 with a P95 of 400.
DEFAULT_ROWS = 2000
DEFAULT_PROMPT = (300.0, math.log(1500 / 300) / 1.645)  # median, sigma of the logarithm
DEFAULT_OUTPUT = (100.0, math.log(400 / 100) / 1.645)


class Lengths(NamedTuple):
    """Tokens of one request."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True)
class Trace:
    """Lengths in order of arrival. ``digest`` is the sha256 of the file, or of the lengths where they were drawn.

    ``skipped``: rows without a prompt or without an output, which no engine can be asked for.
    """

    name: str
    digest: str
    rows: list[Lengths]
    skipped: int = 0


def read_trace(path: Path) -> Trace:
    """Reads a trace of any of the three forms.

    Raises:
        BenchError: no such file, none of the known columns, a value that is not a length, or no row at all.
    """
    if not path.is_file():
        raise BenchError(f"{path} not found; expected {EXPECTED}")
    data = path.read_bytes()
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as e:
        raise BenchError(f"{path} cannot be read as text ({e}); expected {EXPECTED}") from e
    pairs = _json_pairs(path, text) if text.lstrip()[:1] == "{" else _csv_pairs(path, text)
    rows, skipped = list[Lengths](), 0
    for line, prompt, output in pairs:
        found = Lengths(_tokens(path, line, prompt), _tokens(path, line, output))
        if min(found) < 1:
            skipped += 1
        else:
            rows.append(found)
    if not rows:
        raise BenchError(
            f"{path} has no row with a prompt and an output ({skipped} with 0 tokens); expected {EXPECTED}"
        )
    return Trace(path.name, hashlib.sha256(data).hexdigest(), rows, skipped)


def draw_trace(seed: int) -> Trace:
    """Log-normal lengths of the stated parameters; the same for the same seed."""
    rng = random.Random(f"lengths/{seed}")
    (prompt, prompt_sigma), (output, output_sigma) = DEFAULT_PROMPT, DEFAULT_OUTPUT
    rows = [
        Lengths(
            max(1, round(rng.lognormvariate(math.log(prompt), prompt_sigma))),
            max(1, round(rng.lognormvariate(math.log(output), output_sigma))),
        )
        for _ in range(DEFAULT_ROWS)
    ]
    name = (
        f"log-normal, seed {seed}: prompt median {prompt:g} sigma {prompt_sigma:.2f}, "
        f"output median {output:g} sigma {output_sigma:.2f}"
    )
    return Trace(name, hashlib.sha256(repr([tuple(r) for r in rows]).encode()).hexdigest(), rows)


def _csv_pairs(path: Path, text: str) -> Iterator[tuple[int, object, object]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = [c.strip() for c in reader.fieldnames or []]
    reader.fieldnames = columns
    pair = next((p for p in CSV_COLUMNS if set(p) <= set(columns)), None)
    if pair is None:
        raise BenchError(f"{path} has the columns {', '.join(columns)[:200] or '(none)'}; expected {EXPECTED}")
    for row in reader:
        yield reader.line_num, row[pair[0]], row[pair[1]]


def _json_pairs(path: Path, text: str) -> Iterator[tuple[int, object, object]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            raise BenchError(f"{path}, line {number} is not JSON ({e}); expected {EXPECTED}") from e
        if not isinstance(row, dict) or not set(JSON_KEYS) <= row.keys():
            found = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise BenchError(f"{path}, line {number} has the keys {found[:200]}; expected {EXPECTED}")
        yield number, row[JSON_KEYS[0]], row[JSON_KEYS[1]]


def _tokens(path: Path, line: int, value: object) -> int:
    try:
        number = float(str(value))
        tokens = int(number)
    except (ValueError, OverflowError):
        number, tokens = 0.5, 0
    if tokens != number or tokens < 0:
        raise BenchError(f"{path}, line {line}: found {value!r}, expected a whole number of tokens, 0 or more")
    return tokens
