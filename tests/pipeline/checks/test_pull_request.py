"""From the parts of the check to one word, one comment and one exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.checks import control, pull_request
from pipeline.checks.changes import Change
from pipeline.checks.pull_request import Part, Word, comment, run_part, verdict_of
from pipeline.errors import SeatrialError

CHANGE = Change("a" * 40, "b" * 40, ["engine/core.py"], [])


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (["ship", "ship"], "ship"),
        (["ship", "undecided"], "undecided"),
        (["undecided", "hold"], "hold"),
        (["ship", "hold"], "hold"),
        (["ship"], "ship"),
        ([], "undecided"),
    ],
)
def test_a_hold_outweighs_a_doubt_and_nothing_is_no_pass(words: list[Word], verdict: str) -> None:
    assert verdict_of([Part("x", w, "") for w in words]) == verdict


def test_the_comment_says_verdict_change_and_each_part() -> None:
    parts = [Part("Trial", "ship", "all is well"), Part("A/B", "hold", "**HOLD**: prefill ttft-p95 is 1.152 times")]
    text = comment(parts, CHANGE)
    assert text.startswith("## 🔴 Seatrial: HOLD\n")
    assert "bbbbbbbbbbbb against aaaaaaaaaaaa: altered: engine/core.py." in text
    assert "### 🟢 Trial: ship\n\nall is well" in text
    assert "### 🔴 A/B: hold\n\n**HOLD**: prefill ttft-p95" in text
    assert "nothing was proved" in comment([Part("A/B", "undecided", "noise")], CHANGE)
    assert "### 🔴 Trial: hold (reused)\n" in comment([Part("Trial", "hold", "as before", reused=True)], CHANGE)


def _command(code: int, report: str | None = None) -> list[str]:
    write = "" if report is None else f"pathlib.Path('report.md').write_text({report!r})\n"
    Path("made_up.py").write_text(f"import pathlib, sys\n{write}sys.exit({code})\n")
    return ["made_up"]


def test_an_exit_code_is_a_verdict_and_the_report_explains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = Path("report.md")
    found = run_part("A/B", _command(1, "## 🔴 HOLD\n\nslower"), report)
    assert (found.word, found.text.strip()) == ("hold", "slower")
    assert run_part("A/B", _command(2), report).text == "exit code 2, no report (report.md)"  # the old one is gone
    with pytest.raises(SeatrialError, match="A/B ended with exit code 3, which is no verdict"):
        run_part("A/B", _command(3, "x"), report)


def test_a_check_that_broke_leaves_no_older_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reports/check").mkdir(parents=True)
    for name in ("comment.md", "check.json"):
        Path("reports/check", name).write_text("## 🟢 Seatrial: SHIP")
    monkeypatch.setattr("sys.argv", ["check", "--no-ab"])
    monkeypatch.setattr(pull_request, "exit_code_of", lambda command: 3)
    with pytest.raises(SeatrialError, match="exit code 3, which is no verdict"):
        pull_request.main()
    text = Path("reports/check/comment.md").read_text()
    assert text.startswith("## ⚪ Seatrial: no verdict")
    assert "Trial ended with exit code 3" in text
    assert not Path("reports/check/check.json").exists()


def test_a_planted_fault_is_red_at_the_outermost_and_a_clean_run_green() -> None:
    control.main()


def test_a_control_that_comes_out_wrong_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "check_made_up", lambda change: (0, "SHIP"))
    with pytest.raises(SeatrialError, match="a planted fault came out with exit code 0, expected 1; its comment lacks"):
        control.main()
