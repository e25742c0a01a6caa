"""What Locust is started with: alone, with workers of ours, with workers of other machines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loadtests.workload import load_profile
from pipeline.errors import SeatrialError
from pipeline.load.__main__ import main
from pipeline.load.child import commands, host_and_port, longest_s

ROOT = Path(__file__).resolve().parents[3]
RUN = ["--host", "http://server:8000"]


def value(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_one_client_needs_no_master() -> None:
    lead, workers = commands(RUN, 1, None)
    assert workers == []
    assert not {"--master", "--expect-workers"} & set(lead)
    assert value(lead, "--host") == "http://server:8000"


def test_workers_of_ours_stay_on_this_machine() -> None:
    lead, workers = commands(RUN, 3, None)
    assert len(workers) == 3
    assert value(lead, "--master-bind-host") == value(workers[0], "--master-host") == "127.0.0.1"
    assert value(lead, "--master-bind-port") == value(workers[0], "--master-port")
    assert value(lead, "--expect-workers") == "3"


def test_each_is_told_where_the_key_is_and_none_what_it_is() -> None:
    lead, workers = commands(RUN, 2, None, ["--api-key-env", "SERVER_KEY"])
    assert [value(c, "--api-key-env") for c in (lead, *workers)] == ["SERVER_KEY"] * 3


@pytest.mark.parametrize("count", [1, 2])
def test_workers_of_others_are_awaited_not_started(count: int) -> None:
    lead, workers = commands(RUN, count, ("0.0.0.0", 5557))
    assert workers == []
    assert (value(lead, "--master-bind-host"), value(lead, "--master-bind-port")) == ("0.0.0.0", "5557")
    assert value(lead, "--expect-workers") == str(count)
    ours, _ = commands(RUN, 2, None)
    assert float(value(lead, "--expect-workers-max-wait")) > float(value(ours, "--expect-workers-max-wait"))


def test_a_run_is_given_the_time_to_await_them() -> None:
    profile = load_profile("smoke")
    wait_s = float(value(commands(RUN, 2, ("0.0.0.0", 5557))[0], "--expect-workers-max-wait"))
    assert longest_s(profile, awaits=True) >= longest_s(profile) + wait_s


def test_where_to_wait() -> None:
    assert host_and_port("0.0.0.0:5557") == ("0.0.0.0", 5557)
    assert host_and_port("[::]:5557") == ("::", 5557)
    for wrong in ("5557", ":5557", "host:", "host:http", "host:0", "host:70000"):
        with pytest.raises(SeatrialError, match=r"expected HOST:PORT, such as 0\.0\.0\.0:5557"):
            host_and_port(wrong)


def test_the_bundled_engine_is_not_reached_from_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["load", "--tier", "int8", "--await-workers", "0.0.0.0:5557"])
    with pytest.raises(SeatrialError, match="--await-workers goes with --base-url"):
        main()
