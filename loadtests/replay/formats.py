"""Recorded traces, read into one form. Told apart by their columns:

    CSV      TIMESTAMP,ContextTokens,GeneratedTokens    Azure LLM inference traces (Patel et al., Splitwise, ISCA 2024)
    JSONL    timestamp,input_length,output_length,hash_ids   Mooncake traces (Qin et al., FAST 2025); timestamp in ms,
             hash_ids one a block of 512 tokens, each standing for its block and all before it
    parquet  requests-NNNNN.parquet, the bundled engine's request log (``--log-dir``), all segments that a pattern names
    parquet  records.parquet of an earlier load test

CSV and JSONL may be gzipped.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

EXPECTED = (
    "a CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens (Azure), JSONL with the keys "
    "timestamp,input_length,output_length and hash_ids (Mooncake), the engine's requests-*.parquet, or the "
    "records.parquet of a load test"
)
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE = ("timestamp", "input_length", "output_length")
_ENGINE = ("received_at", "choice", "prompt_tokens", "output_tokens")
_RECORDS = ("due_s", "prompt_tokens", "output_tokens")


class Row(NamedTuple):
    """One recorded request. ``blocks`` are its prompt's block hashes, none where the trace has none."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """A trace: rows in order of time, the first at 0 s. ``unusable`` counts rows that cannot be sent, by reason."""

    form: str
    rows: list[Row]
    unusable: dict[str, int]


def read_trace(name: str, parts: list[bytes]) -> Recorded:
    """The trace in the bytes of one file, or of the segments of one log.

    Raises:
        ValueError: none of the known forms, a value that is not what it should be (with its line), or no usable row.
    """
    if parts and all(p[:4] == b"PAR1" for p in parts):
        form, found = _parquet(name, parts)
    elif len(parts) == 1:
        form, found = _text(name, parts[0])
    else:
        raise ValueError(f"{name} names {len(parts)} files; only the segments of a request log are read together")
    rows, unusable = list[Row](), Counter[str]()
    for row in found:
        if isinstance(row, str):
            unusable[row] += 1
        else:
            rows.append(row)
    if not rows:
        why = ", ".join(f"{n} {reason}" for reason, n in unusable.items()) or "it is empty"
        raise ValueError(f"{name} has no request that could be sent: {why}")
    rows.sort(key=lambda r: r.at_s)
    first = rows[0].at_s
    return Recorded(form, [r._replace(at_s=r.at_s - first) for r in rows], dict(unusable))


def _text(name: str, data: bytes) -> tuple[str, Iterable[Row | str]]:
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as e:
        raise ValueError(f"{name} cannot be read as text ({e}); expected {EXPECTED}") from e
    if text.lstrip()[:1] == "{":
        return "mooncake", _mooncake(name, text)
    return "azure", _azure(name, text)


def _azure(name: str, text: str) -> Iterator[Row | str]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = [c.strip() for c in reader.fieldnames or []]
    reader.fieldnames = columns
    if not set(_AZURE) <= set(columns):
        hint = "; without times, its columns can be lengths of kind empirical" if len(columns) > 1 else ""
        raise ValueError(f"{name} has the columns {', '.join(columns)[:200] or '(none)'}; expected {EXPECTED}{hint}")
    for row in reader:
        where = f"{name}, line {reader.line_num}"
        yield _row(where, _moment(where, row["TIMESTAMP"]), row["ContextTokens"], row["GeneratedTokens"])


def _mooncake(name: str, text: str) -> Iterator[Row | str]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            raise ValueError(f"{where} is not JSON ({e}); expected {EXPECTED}") from e
        if not isinstance(row, dict) or not set(_MOONCAKE) <= row.keys():
            found = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise ValueError(f"{where} has the keys {found[:200]}; expected {EXPECTED}")
        blocks = row.get("hash_ids", [])
        if not isinstance(blocks, list) or not all(type(b) is int for b in blocks):
            raise ValueError(f"{where}: hash_ids is {str(blocks)[:60]}; expected a list of whole numbers")
        yield _row(where, _number(where, "timestamp", row["timestamp"]) / 1000, row["input_length"],
                   row["output_length"], tuple(blocks))  # fmt: skip


def _parquet(name: str, parts: list[bytes]) -> tuple[str, Iterable[Row | str]]:
    import polars as pl

    try:
        tables = [pl.read_parquet(io.BytesIO(p)) for p in parts]
    except (pl.exceptions.PolarsError, OSError) as e:
        raise ValueError(f"{name} is not readable parquet: {e}") from e
    for columns, form, read in ((_ENGINE, "engine", _engine), (_RECORDS, "records", _records)):
        if all(set(columns) <= set(t.columns) for t in tables):
            rows = [row for t in tables for row in t.select(columns).iter_rows(named=True)]
            return form, read(name, rows)
    raise ValueError(f"{name} has the columns {', '.join(tables[0].columns)[:200]}; expected {EXPECTED}")


def _engine(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Row | str]:
    """A row a choice: of a request with several, the first stands for all."""
    for number, row in enumerate(rows, 1):
        if row["choice"] is None:
            yield "refused, or ended before it had an answer: its output length is not known"
        elif row["choice"] > 0:
            yield "further choices of a request (n > 1)"
        else:
            at: datetime = row["received_at"]
            at_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
            yield _row(f"{name}, row {number}", at_s, row["prompt_tokens"], row["output_tokens"])


def _records(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Row | str]:
    for number, row in enumerate(rows, 1):
        if row["prompt_tokens"] is None or row["output_tokens"] is None:
            yield "failed: its lengths are not known"
        else:
            yield _row(f"{name}, row {number}", row["due_s"], row["prompt_tokens"], row["output_tokens"])


def _row(where: str, at_s: float, prompt: object, output: object, blocks: tuple[int, ...] = ()) -> Row | str:
    """The row, or why it cannot be sent."""
    lengths = [_number(where, key, value) for key, value in (("prompt length", prompt), ("output length", output))]
    if any(n != int(n) or n < 0 for n in lengths):
        raise ValueError(f"{where}: lengths are {lengths}; expected whole numbers of tokens, 0 or more")
    if min(lengths) < 1:
        return "without a prompt or without an output"
    return Row(at_s, int(lengths[0]), int(lengths[1]), blocks)


def _number(where: str, key: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = float("nan")
    if not abs(number) < 1e15:
        raise ValueError(f"{where}: {key} is {str(value)[:40]!r}; expected a number")
    return number


def _moment(where: str, value: str | None) -> float:
    """UTC unless it says otherwise, as seconds."""
    try:
        at = datetime.fromisoformat((value or "").strip())
    except ValueError as e:
        raise ValueError(f"{where}: TIMESTAMP is {value!r}; expected like 2023-11-16 18:15:46.6805900") from e
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
