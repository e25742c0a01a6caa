"""The calibration text and how it becomes tokens."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from engine.artifact import sha256_file
from pipeline.errors import SeatrialError
from pipeline.quantize.calibrate import (
    calibration_file,
    calibration_identity,
    calibration_sequences,
    read_entries,
)
from tests.tiny import make_tiny_artifact


def test_v1_is_varied_and_has_no_doubles() -> None:
    entries = read_entries(calibration_file("v1"))
    assert 60 <= len(entries) <= 120
    assert len({e["id"] for e in entries}) == len(entries)
    assert len({str(e.get("text") or e["messages"]) for e in entries}) == len(entries)
    kinds = collections.Counter(e["kind"] for e in entries)
    assert {"instruct", "chat", "dialogue", "code", "arithmetic", "narrative", "technical", "list"} <= set(kinds)
    assert all(set(m) == {"role", "content"} for e in entries for m in e.get("messages", []))


def test_its_identity_is_the_digest_of_the_file() -> None:
    assert calibration_identity("v1").digest == sha256_file(calibration_file("v1"))
    with pytest.raises(SeatrialError, match=r"unknown calibration text 'v9'; calibration/ has v1"):
        calibration_identity("v9")
    with pytest.raises(SeatrialError, match=r"unknown calibration text '\.\./v1'"):
        calibration_file("../v1")


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", r"x\.jsonl:2: not JSON"), ("[]", r":2: expected an object"), ('{"id": "a"}', r":2: expected an object")],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "ok", "text": "fine"}\n' + line + "\n")
    with pytest.raises(SeatrialError, match=message):
        read_entries(path)


def test_sequences_are_the_entries_end_to_end(tmp_path: Path) -> None:
    model = make_tiny_artifact(tmp_path)
    sequences = calibration_sequences("v1", model, 1200, 512)
    assert [len(s) for s in sequences] == [512, 512, 176]
    ids = [int(i) for s in sequences for i in s]
    first = read_entries(calibration_file("v1"))[0]["text"].encode()
    assert bytes(ids[: len(first)]) == first
    assert ids[len(first)] == 258  # <|im_end|>
    assert bytes(i for i in ids[len(first) + 1 :] if i < 256).startswith(b"user\nMy sourdough")
    assert [len(s) for s in calibration_sequences("v1", model, 100, 64)] == [64, 36]
    with pytest.raises(SeatrialError, match=r"calibration_tokens is 900000, but calibration text v1 has \d+ tokens"):
        calibration_sequences("v1", model, 900_000, 512)


@pytest.mark.slow
def test_v1_is_long_enough_for_the_default_model(real_model_dir: Path) -> None:
    assert sum(map(len, calibration_sequences("v1", real_model_dir, 10_240, 8192))) == 10_240


def test_every_sequence_opens_as_the_tokenizer_opens_a_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    model = make_tiny_artifact(tmp_path)
    plain = [int(i) for s in calibration_sequences("v1", model, 150, 64) for i in s]
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing("<|im_start|> $0", special_tokens=[("<|im_start|>", 257)])
    tokenizer.save(str(model / "tokenizer.json"))
    opened = calibration_sequences("v1", model, 150, 64)
    assert [len(s) for s in opened] == [64, 64, 25]
    assert all(int(s[0]) == 257 for s in opened)
    assert [int(i) for s in opened for i in s[1:]] == plain
