"""The check of a pull request: trial on what changed, A/B of base against head, one comment, one exit code.

    python -m pipeline.checks.pull_request --base origin/main

Exit code 0: ship, or undecided (said loudly: a doubt is no fault of the author's); 1: hold; 3: something is wrong. A
change that alters no code measures nothing and repeats the base's verdict, whatever it was; where none is kept here,
it is undecided. Leaves ``reports/check/comment.md``, also where it broke off, and ``check.json``. In a workflow of
GitHub it also writes the summary of the job and an annotation.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pipeline.checks.changes import Change, change_between
from pipeline.checks.github import tell
from pipeline.checks.reuse import keep, kept_for
from pipeline.errors import SeatrialError
from pipeline.files import atomic_write, write_json
from pipeline.stage import run_main, say

OUT = Path("reports/check")
WORDS = {0: "ship", 1: "hold", 2: "undecided"}
SIGNS = {"ship": "🟢", "hold": "🔴", "undecided": "🟡"}
Word = Literal["ship", "hold", "undecided"]


@dataclass(frozen=True)
class Part:
    """One part of the check. ``text``: Markdown that explains it; ``reused``: nothing was measured for it."""

    name: str
    word: Word
    text: str
    reused: bool = False


def verdict_of(parts: list[Part]) -> Literal["ship", "hold", "undecided"]:
    """Any hold holds; else any doubt leaves it undecided, also that nothing at all was judged."""
    words = {p.word for p in parts}
    if "hold" in words:
        return "hold"
    return "ship" if words == {"ship"} else "undecided"


def comment(parts: list[Part], change: Change | None) -> str:
    """Markdown: the verdict, what was altered, each part."""
    word = verdict_of(parts)
    lines = [f"## {SIGNS[word]} Seatrial: {word.upper()}", ""]
    if word == "undecided":
        lines += ["The check is green, but nothing was proved: what would settle it stands below.", ""]
    if change is not None:
        lines += [f"{change.head[:12]} against {change.base[:12]}: {change.words()}.", ""]
    for p in parts:
        again = " (reused)" if p.reused else ""
        lines += [f"### {SIGNS[p.word]} {p.name}: {p.word}{again}", "", p.text.strip(), ""]
    return "\n".join(lines)


def broken(why: SeatrialError) -> str:
    """The comment where there is no verdict."""
    return f"## ⚪ Seatrial: no verdict\n\nThe check broke off, which says nothing of the change:\n\n```\n{why}\n```\n"


def run_part(name: str, command: list[str], report: Path) -> Part:
    """Runs ``command``, whose exit code is a verdict and which explains it in ``report``.

    Raises:
        SeatrialError: any other exit code: something is wrong, which is no verdict.
    """
    say(f"check: {name}: {' '.join(command)}")
    report.unlink(missing_ok=True)
    code = exit_code_of(command)
    if code not in WORDS:
        raise SeatrialError(f"{name} ended with exit code {code}, which is no verdict; its message stands above")
    word: Word = WORDS[code]  # type: ignore[assignment]
    text = report.read_text(encoding="utf-8") if report.is_file() else f"exit code {code}, no report ({report})"
    return Part(name, word, _without_title(text))


def exit_code_of(command: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", *command]).returncode


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
    for name in ("check.json", "comment.md"):
        (OUT / name).unlink(missing_ok=True)
    try:
        word = _check(None if given.base is None else change_between(given.base), given)
    except SeatrialError as e:
        atomic_write(OUT / "comment.md", broken(e))  # else the verdict of an earlier commit would stay on the page
        raise
    raise SystemExit(1 if word == "hold" else 0)


def _check(change: Change | None, given: argparse.Namespace) -> str:
    summary = Path("reports/summary.md")
    parts: list[Part] = []
    if change is not None and not change.alters_code:
        parts.append(_reused(change))
    else:
        if given.judged:
            parts.append(_judged())
        else:
            parts.append(run_part("Trial", ["pipeline.trial"], summary))
            keep(parts[0].text)
        if change is not None and not given.no_ab:
            budget = [] if given.budget_minutes is None else ["--budget-minutes", str(given.budget_minutes)]
            command = ["pipeline.ab", *budget, change.base, "."]
            parts.append(run_part("A/B of base against head", command, Path("reports/ab/ab.md")))
    word = verdict_of(parts)
    text = comment(parts, change)
    atomic_write(OUT / "comment.md", text)
    found = {"schema_version": 1, "verdict": word, "parts": [asdict(p) for p in parts]}
    write_json(OUT / "check.json", found | {"change": None if change is None else asdict(change)})
    tell(f"Seatrial {word}", word, ", ".join(p.name for p in parts if p.word == word), text)
    print(text)
    return word


def _reused(change: Change) -> Part:
    """The base's verdict again. That no code is altered makes a change no worse than its base, and no better."""
    name, base = "Trial and A/B", change.base[:12]
    found = kept_for(change.base)
    if found is None:
        text = (
            f"No verdict of {base} is kept here, so there is none to repeat: undecided. The nightly workflow leaves "
            "one for the default branch; here, `python -m pipeline.checks.pull_request --no-ab` on that commit does."
        )
        return Part(name, "undecided", text, reused=True)
    word: Word = WORDS[found.code]  # type: ignore[assignment]
    of = base if found.commit == change.base else f"{base}, whose code is that of {found.commit[:12]}"
    said = found.text.splitlines()[0]
    text = f"Reused: the verdict of {of}, judged {found.as_of}: **{said}**\n\n{found.summary.strip()}"
    return Part(name, word, text, reused=True)


def _judged() -> Part:
    from pipeline.gate.verdict import VERDICT, verdict_exit_code

    code, text = verdict_exit_code(VERDICT)
    return Part("Trial", WORDS[code], f"```\n{text}\n```")  # type: ignore[arg-type]


if __name__ == "__main__":
    run_main(main)
