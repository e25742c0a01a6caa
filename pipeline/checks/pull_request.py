"""The check of a pull request: trial on what changed, A/B of base against head, one comment, one exit code.

    python -m pipeline.checks.pull_request --base origin/main

Exit code 0: ship, or undecided (said loudly: a doubt is no fault of the author's); 1: hold; 3: something is wrong. A
change that alters no code takes over the base's verdict and measures nothing. Leaves ``reports/check/comment.md`` and
``check.json``. In a workflow of GitHub it also writes the summary of the job and an annotation.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pipeline.checks.changes import Change, change_between
from pipeline.errors import SeatrialError
from pipeline.files import atomic_write, write_json
from pipeline.stage import run_main, say

OUT = Path("reports/check")
WORDS = {0: "ship", 1: "hold", 2: "undecided"}
SIGNS = {"ship": "🟢", "hold": "🔴", "undecided": "🟡", "reused": "🟢", "skipped": "⚪"}
Word = Literal["ship", "hold", "undecided", "reused", "skipped"]


@dataclass(frozen=True)
class Part:
    """One part of the check. ``text``: Markdown that explains it."""

    name: str
    word: Word
    text: str


def verdict_of(parts: list[Part]) -> Literal["ship", "hold", "undecided"]:
    """Any hold holds; else any doubt leaves it undecided, also that nothing at all was judged."""
    words = {p.word for p in parts}
    if "hold" in words:
        return "hold"
    return "ship" if "undecided" not in words and words - {"skipped"} else "undecided"


def comment(parts: list[Part], change: Change | None) -> str:
    """Markdown: the verdict, what was altered, each part."""
    word = verdict_of(parts)
    lines = [f"## {SIGNS[word]} Seatrial: {word.upper()}", ""]
    if word == "undecided":
        lines += ["The check is green, but nothing was proved: what would settle it stands below.", ""]
    if change is not None:
        lines += [f"{change.head[:12]} against {change.base[:12]}: {change.words()}.", ""]
    for p in parts:
        lines += [f"### {SIGNS[p.word]} {p.name}: {p.word}", "", p.text.strip(), ""]
    return "\n".join(lines)


def run_part(name: str, command: list[str], report: Path) -> Part:
    """Runs ``command``, whose exit code is a verdict and which explains it in ``report``.

    Raises:
        SeatrialError: any other exit code: something is wrong, which is no verdict.
    """
    say(f"check: {name}: {' '.join(command)}")
    report.unlink(missing_ok=True)
    code = subprocess.run([sys.executable, "-m", *command]).returncode
    if code not in WORDS:
        raise SeatrialError(f"{name} ended with exit code {code}, which is no verdict; its message stands above")
    word: Word = WORDS[code]  # type: ignore[assignment]
    text = report.read_text(encoding="utf-8") if report.is_file() else f"exit code {code}, no report ({report})"
    return Part(name, word, _without_title(text))


def _without_title(text: str) -> str:
    """Our own headings stand above; the report's first line of that kind would say it twice."""
    first, _, rest = text.lstrip().partition("\n")
    return rest if first.startswith("## ") else text


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.checks.pull_request", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--base", help="revision that the change is to go into, such as origin/main")
    parser.add_argument("--judged", action="store_true", help="take reports/verdict.json as it is, run no trial")
    parser.add_argument("--no-ab", action="store_true", help="no A/B of base against head")
    parser.add_argument("--budget-minutes", type=float, help="of the A/B; default: ab.budget_minutes")
    given = parser.parse_args()
    if given.base is None and not given.no_ab:
        raise SeatrialError("give --base REV (what the change is to go into), or --no-ab")
    change = None if given.base is None else change_between(given.base)
    word = _check(change, given)
    raise SystemExit(1 if word == "hold" else 0)


def _check(change: Change | None, given: argparse.Namespace) -> str:
    summary = Path("reports/summary.md")
    parts: list[Part] = []
    if change is not None and not change.alters_code:
        parts.append(Part("Trial and A/B", "reused", f"Reused: {change.words()}."))
    else:
        if given.judged:
            parts.append(_judged())
        else:
            parts.append(run_part("Trial", ["pipeline.trial"], summary))
        if change is not None and not given.no_ab:
            budget = [] if given.budget_minutes is None else ["--budget-minutes", str(given.budget_minutes)]
            command = ["pipeline.ab", *budget, change.base, "."]
            parts.append(run_part("A/B of base against head", command, Path("reports/ab/ab.md")))
    word = verdict_of(parts)
    text = comment(parts, change)
    atomic_write(OUT / "comment.md", text)
    found = {"schema_version": 1, "verdict": word, "parts": [asdict(p) for p in parts]}
    write_json(OUT / "check.json", found | {"change": None if change is None else asdict(change)})
    _tell_github(word, parts, text)
    print(text)
    return word


def _judged() -> Part:
    from pipeline.gate.verdict import VERDICT, verdict_exit_code

    code, text = verdict_exit_code(VERDICT)
    return Part("Trial", WORDS[code], f"```\n{text}\n```")  # type: ignore[arg-type]


def _tell_github(word: str, parts: list[Part], text: str) -> None:
    """An annotation beside the change and the job's summary, where a workflow runs this."""
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as f:
            f.write(text + "\n")
    if "GITHUB_ACTIONS" in os.environ and word != "ship":
        level = "error" if word == "hold" else "warning"
        names = ", ".join(p.name for p in parts if p.word == word)
        print(f"::{level} title=Seatrial {word}::{names}: see the summary of this run", flush=True)


if __name__ == "__main__":
    run_main(main)
