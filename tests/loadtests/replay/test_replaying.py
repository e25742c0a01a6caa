"""A replay on its way to a server: what was recorded of it is what the trace says, and is itself a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.client import Endpoint
from loadtests.driver import Driver
from loadtests.output import read_run, write_run
from loadtests.schedule import due_times
from loadtests.traffic import prompt_of
from loadtests.workload import Profile, StageSpec
from tests.loadtests.mock_server import mock_server
from tests.loadtests.replay.traces import BLOCK, mooncake

ROWS = [(0.1 * i, BLOCK * (1 + i % 3), 2 + i % 4, [0, 1 + i % 2, 3 + i % 5][: 1 + i % 3]) for i in range(12)]


def profile(folder: Path, file: str, **arrivals: object) -> Profile:
    replay = {"kind": "replay", "file": file, "rate_factor": 2, "context_tokens": 4096} | arrivals
    value = {
        "name": "again", "kind": "custom", "drain_s": 240, "output": {"fixed_by": "ignore_eos"},
        "stages": [{"name": "s", "warmup_s": 0.2, "duration_s": 0.3, "arrivals": replay}],
    }  # fmt: skip
    return Profile.model_validate(value, context={"folder": folder})


def test_a_trace_is_sent_as_it_was_recorded_and_its_records_are_a_trace(tmp_path: Path) -> None:
    mooncake(tmp_path / "m.jsonl", ROWS)
    again = profile(tmp_path, "m.jsonl", length_factor=0.05, output_factor=1)
    spec = again.stages[0]
    with mock_server() as server:
        driver = Driver(again, Endpoint(server.url), "mock", 1)
        driver.start()
        assert driver.done.wait(240)
        bodies = [seen.body for seen in server.seen]
    write_run(tmp_path / "run", driver.rows(), driver.info())
    records, info = read_run(tmp_path / "run")

    planned = list(due_times(spec, 1))
    start_s = driver.stages[0].start_s
    assert [due - start_s for due in records["due_s"]] == pytest.approx([at_s for _, at_s in planned])
    assert len(planned) == 10  # half a second, twice as fast, of requests 0.1 s apart
    assert set(records["status"]) == {"ok"}
    assert records["output_tokens"].to_list() == [o for _, _, o, _ in ROWS[:10]]
    wanted = [[{"role": r, "content": t} for r, t in prompt_of(spec, 1, i).messages] for i, _ in planned]
    assert sorted(map(str, wanted)) == sorted(str(b["messages"]) for b in bodies)
    assert info.stages[0]["replay"]["requests"] == 10
    assert info.stages[0]["replay"]["length_factor"] == 26 / BLOCK

    once_more: StageSpec = profile(tmp_path / "run", "records.parquet", length_factor=1, rate_factor=1).stages[0]
    assert once_more.replayed is not None
    assert [r.output_tokens for r in once_more.replayed.requests] == records["output_tokens"].to_list()
    assert [r.due_s for r in once_more.replayed.requests] == pytest.approx(
        [due - records["due_s"][0] for due in records["due_s"]]
    )
