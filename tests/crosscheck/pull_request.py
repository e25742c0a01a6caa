"""The check of a pull request end to end: the workflow's own commands on a clean clone of what is committed here.

    python -m tests.crosscheck.pull_request --model artifacts/base [--slower 15] [--whole] [--keep DIR]

The default branch is judged first, as the nightly workflow does it. Then each of these pull requests is made and
checked by the commands behind ``run:`` in .github/workflows/pull-request.yml, and its comment printed as it would be
posted:

words    a docstring in other words: nothing is measured, the verdict of the base is repeated
same     other code that does the same: must not be red
slower   a prompt takes ``--slower`` percent longer: must be red, with the prompt's computation as the cause

Without ``--whole`` the trial is a short one of two tiers that decides nothing; with it, the whole set and the `ci`
profile. The A/B is the same in both, at most ``--budget-minutes``. It measures: nothing else may run on the machine.
It ends with 0 if every branch came out as it must, 1 if one did not, 3 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import SeatrialError
from pipeline.processes import die_with_parent
from pipeline.stage import run_main, say

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = Path(".github/workflows/pull-request.yml")
SLOWER = """

def _slower(execute):
    import time

    def run(self, batch):
        began = time.monotonic()
        rows = execute(self, batch)
        tokens = [len(entry.token_ids) for entry in batch]
        prefill = sum(n for n in tokens if n > 1) / max(1, sum(tokens))
        time.sleep(FACTOR * prefill * (time.monotonic() - began))
        return rows

    return run


ModelRunner.execute = _slower(ModelRunner.execute)
"""


@dataclass(frozen=True)
class Branch:
    """A pull request. ``edit`` makes it in a work tree; ``code``: exit code of its check; ``said``: what its comment
    must say.
    """

    name: str
    edit: Callable[[Path], None]
    code: int
    said: tuple[str, ...]


def branches(slower_percent: float) -> list[Branch]:
    reused, cause = "(reused)", "**Cause**: the prompt's own computation"
    return [
        Branch(
            "words", in_other_words, 0, (reused, "no code is altered (engine/scheduler.py)", "nothing was measured")
        ),
        Branch("same", with_a_function_that_nothing_calls, 0, ("they differ in engine", "altered: engine/runner.py")),
        Branch(
            "slower", lambda root: slow_prefill(root, slower_percent), 1, ("Seatrial: HOLD", "TTFT of prefill", cause)
        ),
    ]


def in_other_words(root: Path) -> None:
    path = root / "engine/scheduler.py"
    source = path.read_text(encoding="utf-8")
    start = source.index('"""') + 3
    path.write_text(f"{source[:start]}In other words: {source[start:]}", encoding="utf-8")


def with_a_function_that_nothing_calls(root: Path) -> None:
    _append(root / "engine/runner.py", "\n\ndef _nothing_calls_this() -> int:\n    return 1\n")


def slow_prefill(root: Path, percent: float) -> None:
    """Every step takes longer by so many percent of the share of its tokens that are prefill."""
    _append(root / "engine/runner.py", SLOWER.replace("FACTOR", f"{percent / 100:g}"))


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def commands_of(workflow: Path, job: str = "trial") -> list[str]:
    """What stands behind ``run:``, but for the set-up of the environment, which is borrowed."""
    steps = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"][job]["steps"]
    return [s["run"] for s in steps if "run" in s and "setup.sh" not in s["run"]]


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=seatrial", "-c", "user.email=seatrial@example.org"]
    done = subprocess.run(["git", *who, *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise SeatrialError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def commit(root: Path, words: str) -> str:
    git(root, "add", "--update")  # not what a trial leaves beside the code: dvc.lock is not kept
    git(root, "commit", "--quiet", "--message", words)
    return git(root, "rev-parse", "HEAD")


def borrow_environment(root: Path) -> None:
    """``.venv`` of the clone: this environment's programs, so that the workflow's commands run as they stand."""
    programs = root / ".venv/bin"
    programs.mkdir(parents=True)
    for name, module in (("python", []), ("seatrial", ["-m", "pipeline.cli"])):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *module])} "$@"\n', encoding="utf-8")
        path.chmod(0o755)


def settings(raw: dict[str, Any], model: Path, budget_minutes: float, *, whole: bool) -> None:
    """Changes params.yaml's content to what the demonstration is judged by: a model that is here, and two tiers."""
    raw["model"] = {"source": f"path:{model.resolve()}", "sha256": None}
    raw["tiers"] = ["bf16", "int8"]
    raw["ab"]["budget_minutes"] = budget_minutes
    if not whole:
        raw["load"]["profile"], raw["evaluation"]["items"] = "smoke", 2
        return
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date()
    raw["gate"]["waivers"] = [
        {"rule": "pinned", "tier": "int8", "reason": "lost by the shipped model at 8 bits", "owner": "demonstration",
         "expires": tomorrow}
    ]  # fmt: skip


def run(root: Path, command: str, env: dict[str, str]) -> int:
    say(f"$ {command}")
    whole = {**os.environ, "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(root.parent / "summary.md")} | env
    return subprocess.run(["bash", "-c", command], cwd=root, env=whole, preexec_fn=die_with_parent).returncode


def posted(root: Path) -> str:
    """The comment as the workflow that may write would post it."""
    command = ["-m", "pipeline.checks.comment", "--repository", "o/r", "--head", "o:b", "--sha", "0", "--run", "1"]
    done = subprocess.run(
        [sys.executable, *command, "--dry-run", "reports/check/comment.md"], cwd=root, capture_output=True, text=True
    )
    if done.returncode:
        raise SeatrialError(f"the comment cannot be posted: {done.stderr.strip()}")
    return done.stdout


def problems(branch: Branch, code: int, comment: str) -> Iterator[str]:
    if code != branch.code:
        yield f"exit code {code}, expected {branch.code}"
    yield from (f"the comment does not say {words!r}" for words in branch.said if words not in comment)


def check(root: Path, branch: Branch, base: str) -> list[str]:
    """Makes the pull request and runs its workflow; what is not as it must be."""
    git(root, "checkout", "--quiet", "-B", branch.name, base)
    branch.edit(root)
    commit(root, f"Demonstration: {branch.name}")
    began, code = time.monotonic(), 0
    for command in commands_of(root / WORKFLOW):
        code = run(root, command, {"BASE": base})
        if code:
            break
    text = posted(root)
    found = list(problems(branch, code, text))
    ab = root / "reports/ab/ab.json"
    minutes = json.loads(ab.read_text(encoding="utf-8"))["minutes"] if ab.is_file() else 0
    print(text)
    print(
        f"{branch.name}: exit code {code}, {(time.monotonic() - began) / 60:.1f} minutes, of which the A/B {minutes}: "
        + ("as it must be" if not found else "; ".join(found)),
        flush=True,
    )
    ab.unlink(missing_ok=True)
    return found


def demonstrate(folder: Path, given: argparse.Namespace) -> bool:
    root = folder / "clone"
    git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(root))
    git(root, "checkout", "--quiet", "-B", "main")
    borrow_environment(root)
    raw = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    settings(raw, given.model, given.budget_minutes, whole=given.whole)
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    base = commit(root, "Demonstration: settings")
    nightly = next(c for c in commands_of(root / ".github/workflows/nightly.yml"))
    if run(root, nightly, {}) not in (0, 1):
        raise SeatrialError("the default branch was not judged; the message stands above")
    return not any([check(root, b, base) for b in branches(given.slower) if b.name in given.branches])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crosscheck.pull_request", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--model", type=Path, required=True, help="a model directory, for instance artifacts/base")
    parser.add_argument("--slower", type=float, default=15, help="percent (15)")
    parser.add_argument("--budget-minutes", type=float, default=9, help="of each A/B (9)")
    parser.add_argument("--whole", action="store_true", help="the whole regression set and the `ci` profile")
    names = [b.name for b in branches(15)]
    parser.add_argument("--branches", nargs="+", choices=names, default=names)
    parser.add_argument("--keep", type=Path, help="where the clone is left; default: a temporary folder")
    given = parser.parse_args(argv)
    with ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seatrial-pull-request-")))
        folder.mkdir(parents=True, exist_ok=True)
        if not demonstrate(folder, given):
            raise SystemExit(1)


if __name__ == "__main__":
    run_main(main)
