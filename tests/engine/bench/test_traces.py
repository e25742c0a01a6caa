"""The readers on files as they are published, and on files that are not what they should be."""

from __future__ import annotations

import gzip
import hashlib
import json
import statistics
from pathlib import Path

import pytest

from engine.bench.errors import BenchError
from engine.bench.traces import DEFAULT_PROMPT, Lengths, draw_trace, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9,396,109\n"
PAIRS = "num_prefill_tokens,num_decode_tokens\n74,918\n290,905\n"
MOONCAKE = [
    {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]},
    {"timestamp": 27, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]},
]


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("conv.csv", AZURE, [(374, 44), (396, 109)]),
        ("crlf.csv", AZURE.replace("\n", "\r\n"), [(374, 44), (396, 109)]),
        ("bom.csv", "\ufeff" + PAIRS, [(74, 918), (290, 905)]),
        ("lengths.csv", PAIRS, [(74, 918), (290, 905)]),
        ("more.csv", "id, num_decode_tokens, num_prefill_tokens\nx,3,7\n", [(7, 3)]),
        ("floats.csv", "num_prefill_tokens,num_decode_tokens\n74.0,918\n", [(74, 918)]),
        ("m.jsonl", "\n".join(map(json.dumps, MOONCAKE)), [(6758, 500), (7322, 490)]),
        ("m.jsonl.gz", "\n".join(map(json.dumps, MOONCAKE)) + "\n", [(6758, 500), (7322, 490)]),
    ],
)
def test_known_forms(name: str, text: str, rows: list[tuple[int, int]], tmp_path: Path) -> None:
    path = write(tmp_path / name, text)
    trace = read_trace(path)
    assert trace.rows == [Lengths(*r) for r in rows]
    assert (trace.name, trace.skipped) == (name, 0)
    assert trace.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_rows_without_a_prompt_or_an_output_are_counted_and_left_out(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.csv", PAIRS + "5,0\n0,5\n"))
    assert (len(trace.rows), trace.skipped) == (2, 2)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "a,b\n1,2\n", r"t\.csv has the columns a, b; expected a CSV with the columns ContextTokens"),
        ("t.csv", "", r"has the columns \(none\)"),
        ("t.csv", PAIRS + "x,5\n", r"t\.csv, line 4: found 'x', expected a whole number of tokens"),
        ("t.csv", PAIRS + "1.5,5\n", r"line 4: found '1\.5'"),
        ("t.csv", PAIRS + "-1,5\n", r"line 4: found '-1'"),
        ("t.csv", PAIRS + "7\n", r"line 4: found None"),
        ("t.csv", PAIRS + "inf,7\n", r"line 4: found 'inf'"),
        ("t.csv", PAIRS.splitlines()[0] + "\n0,0\n", r"no row with a prompt and an output \(1 with 0 tokens\)"),
        ("t.jsonl", '{"input_length": 5}\n', r"line 1 has the keys input_length; expected"),
        ("t.jsonl", '{"input_length": 5, "output_length": 1}\n{"inp\n', r"line 2 is not JSON"),
        ("t.jsonl", '{"input_length": 5, "output_length": 1}\n[1]\n', r"line 2 has the keys list"),
        ("t.jsonl", '{"input_length": true, "output_length": 1}\n', r"line 1: found True"),
    ],
)
def test_other_files_are_refused_by_what_was_found(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=message):
        read_trace(write(tmp_path / name, text))


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"nowhere\.csv not found; expected a CSV"):
        read_trace(tmp_path / "nowhere.csv")
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8b broken")
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("bad.gz", "bad.csv"):
        with pytest.raises(BenchError, match="cannot be read as text"):
            read_trace(tmp_path / name)


def test_drawn_lengths_are_seeded_and_as_stated() -> None:
    one, again, other = draw_trace(1), draw_trace(1), draw_trace(2)
    assert one == again
    assert one.digest != other.digest
    prompts = [r.prompt for r in one.rows]
    assert 0.9 < statistics.median(prompts) / DEFAULT_PROMPT[0] < 1.1
    assert 1200 < statistics.quantiles(prompts, n=20)[-1] < 1800  # P95, stated as 1,500
