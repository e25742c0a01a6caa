from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.diagnosis.inputs import read_run_folder
from pipeline.errors import SeatrialError


def test_answers_are_read_line_by_line(tmp_path: Path) -> None:
    items = tmp_path / "eval" / "items.jsonl"
    items.parent.mkdir()
    items.write_text('{"id": "a", "answer": "one\u2028two"}\n{"id": "b"}\n', encoding="utf-8")
    run = read_run_folder(str(tmp_path))
    assert run.items is not None
    assert [i["id"] for i in run.items] == ["a", "b"]
    items.write_text('{"id": "a"', encoding="utf-8")
    with pytest.raises(SeatrialError, match=r"items\.jsonl has a line that is not JSON"):
        read_run_folder(str(tmp_path))


def test_a_folder_without_a_run_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match=r"holds neither load\.json nor eval/items\.jsonl"):
        read_run_folder(str(tmp_path))
