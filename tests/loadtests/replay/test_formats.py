from __future__ import annotations

import gzip
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from engine.server.records import RequestRow
from loadtests.records import SCHEMA
from loadtests.replay.formats import Row, read_trace
from tests.loadtests.replay.traces import azure, mooncake

BEGAN = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)


def parquet(frame: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.write_parquet(out)
    return out.getvalue()


def request_log(*rows: dict[str, Any]) -> bytes:
    """A segment of the engine's request log, in the columns that the engine writes."""
    empty = dict.fromkeys(RequestRow._fields)
    return parquet(
        pl.DataFrame([empty | {"choice": 0, "output_tokens": 5} | r for r in rows], infer_schema_length=None)
    )


def test_azure(tmp_path: Path) -> None:
    path = azure(tmp_path / "a.csv", [(46.680590, 374, 44), (50.9951690, 396, 109), (51, 7, 0)])
    found = read_trace(path.name, [path.read_bytes()])
    assert found.form == "azure"
    assert [(r.prompt_tokens, r.output_tokens) for r in found.rows] == [(374, 44), (396, 109)]
    assert [r.at_s for r in found.rows] == pytest.approx([0, 4.314579], abs=2e-6)
    assert found.unusable == {"without a prompt or without an output": 1}


def test_azure_of_2024_has_times_with_a_zone() -> None:
    rows = "2024-05-10 00:00:00.5+00:00,5,6\r\n2024-05-10 02:00:01+02:00,7,8\r\n"
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + rows
    assert read_trace("b.csv", [text.encode()]).rows == [Row(0, 5, 6), Row(0.5, 7, 8)]


def test_mooncake_zipped_and_out_of_order(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "m.jsonl", [(6, 600, 9, [1, 2]), (3, 512, 8, [1])])
    found = read_trace("m.jsonl.gz", [gzip.compress(path.read_bytes())])
    assert (found.form, found.rows) == ("mooncake", [Row(0, 512, 8, (1,)), Row(3, 600, 9, (1, 2))])


def test_the_engines_request_log_in_segments() -> None:
    first = request_log(
        {"received_at": BEGAN + timedelta(seconds=2), "prompt_tokens": 20, "output_tokens": 9},
        {"received_at": BEGAN + timedelta(seconds=2), "prompt_tokens": 20, "output_tokens": 7, "choice": 1},
    )
    second = request_log(
        {"received_at": BEGAN, "prompt_tokens": 30},
        {"received_at": BEGAN, "prompt_tokens": 99, "choice": None, "output_tokens": 0, "http_status": 429},
    )
    found = read_trace("requests-*.parquet", [first, second])
    assert (found.form, found.rows) == ("engine", [Row(0, 30, 5), Row(2, 20, 9)])
    assert sorted(found.unusable.values()) == [1, 1]
    assert any("refused" in reason for reason in found.unusable)


def test_the_records_of_a_load_test() -> None:
    rows = [
        {"due_s": 1.5, "prompt_tokens": 20, "output_tokens": 4},
        {"due_s": 1.0, "prompt_tokens": 10, "output_tokens": 3},
        {"due_s": 2.0, "status": "refused"},
    ]
    frame = pl.DataFrame([dict.fromkeys(SCHEMA) | r for r in rows], schema=SCHEMA)
    found = read_trace("records.parquet", [parquet(frame)])
    assert (found.form, found.rows) == ("records", [Row(0, 10, 3), Row(0.5, 20, 4)])
    assert found.unusable == {"failed: its lengths are not known": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"has the columns \(none\); expected a CSV with the columns TIMESTAMP"),
        (b"num_prefill_tokens,num_decode_tokens\n1,2\n", "without times, its columns can be lengths of kind empirical"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request that could be sent: it is empty"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "line 2: TIMESTAMP is 'noon'"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,x,2\n", "line 2: prompt length is 'x'"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,1.5,2\n", "expected whole numbers of tokens"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,1\n", "output length is 'None'"),
        (b"{1}\n", "line 1 is not JSON"),
        (b'{"timestamp": 1, "input": 2}\n', "line 1 has the keys timestamp, input; expected"),
        (b'{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": ["a"]}\n', "expected a list of whole"),
        (b'{"timestamp": null, "input_length": 2, "output_length": 3}\n', "timestamp is 'None'; expected a number"),
        (b"\x1f\x8bnot gzip", "cannot be read as text"),
        (b"PAR1 not parquet", "is not readable parquet"),
        (parquet(pl.DataFrame({"a": [1]})), "has the columns a; expected a CSV with"),
    ],
)
def test_what_is_no_trace(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_trace("t", [data])


def test_only_segments_are_read_together() -> None:
    with pytest.raises(ValueError, match="names 2 files; only the segments of a request log"):
        read_trace("*.csv", [b"a", b"b"])
