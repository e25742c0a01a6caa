"""A server that begins anew in the middle of an evaluation: the answers count, and the results say what happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import stage
from pipeline.evaluation import __main__ as command
from tests.pipeline.evaluation.fake_openai import Fake, serving
from tests.pipeline.evaluation.make import read_results, some_items, write_evalset, write_params


@pytest.mark.parametrize("at", [None, "Question 3?"])
def test_another_process_in_its_place_is_seen(at: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stage, "_MEASURING_LOCK", tmp_path / "lock")
    write_params(tmp_path)
    write_evalset(tmp_path, some_items())
    fake = Fake()
    fake.started_unix_s, fake.restarts_at = 1000.0, at
    with serving(fake):
        command.main(["--tier", "mine", "--base-url", fake.base_url])
    evaluation, _ = read_results(tmp_path, "mine")
    found = evaluation["server"]["restarts"]
    if at is None:
        assert found == []
        return
    (restart,) = found
    assert restart["figure"] == "process_start_time_seconds 1000.00 -> 2000.00"
    assert restart["words"].startswith("the server began anew in the middle, ")
