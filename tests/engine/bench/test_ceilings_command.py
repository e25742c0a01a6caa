"""``ceilings``: one line of JSON that others can read."""

from __future__ import annotations

import json

import pytest

from engine.bench import __main__ as bench
from engine.bench import ceilings_command
from engine.bench.engines.ceilings import Ceilings


class Fixed:
    names = {"float32": "fma"}  # noqa: RUF012

    def measure(self) -> Ceilings:
        return Ceilings(20.5, {"float32": 200.0})


def test_one_line_with_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ceilings_command, "meter", lambda threads, device: (Fixed(), ""))
    assert bench.main(["ceilings"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["read_gb_per_s"] == 20.5
    assert value["gops"] == {"float32": 200.0}
    assert value["threads"] >= 1


def test_a_machine_that_cannot_be_measured_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ceilings_command, "meter", lambda threads, device: (None, "no compiler"))
    assert bench.main(["ceilings"]) == 3
    assert capsys.readouterr().err == "error: no compiler\n"
