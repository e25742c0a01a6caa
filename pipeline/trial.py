"""``make trial``: from the source of the model to a verdict, through ``dvc repro``.

Around DVC this does what DVC cannot: it writes the machine's fingerprint (a dependency of measuring stages), drops
the locks of dead processes, ties DVC's life to its own, and turns the verdict into the exit code (a stage of DVC that
exits non-zero loses its outputs, so the gate itself never does).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from engine.artifact import sha256_file
from pipeline.errors import SeatrialError
from pipeline.files import write_json
from pipeline.gate.inputs import REVIEW
from pipeline.gate.policy import read_policy
from pipeline.gate.verdict import VERDICT, verdict_exit_code
from pipeline.params import load_params
from pipeline.processes import die_with_parent
from pipeline.project.code import write_code
from pipeline.provenance import this_machine
from pipeline.stage import FAILED, run_main, say

MACHINE = Path(".seatrial/machine.json")
RWLOCK = Path(".dvc/tmp/rwlock")
SCORECARD = Path("reports/scorecard.html")


def write_machine() -> None:
    """The fingerprint, rewritten only when it differs, so that an unchanged machine changes nothing."""
    now = this_machine().model_dump()
    try:
        if json.loads(MACHINE.read_text(encoding="utf-8")) == now:
            return
    except (OSError, json.JSONDecodeError):
        pass
    write_json(MACHINE, now)


def drop_dead_locks(path: Path = RWLOCK) -> int:
    """Removes entries of dead processes from DVC's ``rwlock``; returns how many. A file that is not JSON goes whole.

    The file maps ``read`` to path -> list of holders and ``write`` to path -> holder; a holder has ``pid`` and ``cmd``.
    """
    if not path.is_file():
        return 0
    try:
        locks = json.loads(path.read_text(encoding="utf-8"))
        readers = {k: [r for r in v if _runs(r["pid"])] for k, v in locks.get("read", {}).items()}
        writers = {k: w for k, w in locks.get("write", {}).items() if _runs(w["pid"])}
        before = sum(map(len, locks.get("read", {}).values())) + len(locks.get("write", {}))
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError):
        path.unlink()
        return 1
    dropped = before - sum(map(len, readers.values())) - len(writers)
    if dropped:
        write_json(path, {"read": {k: v for k, v in readers.items() if v}, "write": writers})
    return dropped


def _runs(pid: int) -> bool:
    """Whether ``pid`` is a living DVC: after a restart the number may belong to something else."""
    import psutil

    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any("dvc" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def repro(arguments: list[str]) -> int:
    """Runs ``dvc repro`` as a child that does not outlive this process; its exit code."""
    env = {**os.environ, "DVC_NO_ANALYTICS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"}
    return subprocess.run(
        [sys.executable, "-m", "dvc", "repro", *arguments], env=env, preexec_fn=die_with_parent
    ).returncode


def changed_unseen(verdict: Path = VERDICT, review: Path = REVIEW) -> str | None:
    """What a verdict rests on and DVC cannot see, since it need not be there, and its graph takes only what must be:
    people's ratings that came, changed or went since, and stages that had not ended well then. None: neither.
    """
    try:
        inputs = json.loads(verdict.read_text(encoding="utf-8"))["inputs"]
        then, failed = inputs.get(review.as_posix()), [name for name in inputs if Path(name).parent == FAILED]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # `verdict_exit_code` says what is wrong with it
    if then != (sha256_file(review) if review.is_file() else None):
        return "people's ratings have changed since the verdict"
    return f"{Path(failed[0]).stem} had not ended well when it was judged" if failed else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="seatrial trial", description="Runs the whole graph and prints the verdict.")
    parser.add_argument("targets", nargs="*", help="stages of dvc.yaml; none: all")
    parser.add_argument("--pull", action="store_true", help="take from DVC's default remote what it has; run the rest")
    args, unknown = parser.parse_known_args()
    if unknown:  # argparse would end with 2, which says "undecided"
        raise SeatrialError(f"unknown option {unknown[0]}; `seatrial trial --help` lists what there is")
    targets = args.targets
    die_with_parent(signal.SIGTERM)
    params = load_params()
    read_policy(params.gate, params.measured)
    write_machine()
    write_code()
    if dropped := drop_dead_locks():
        say(f"dropped {dropped} lock(s) of dead processes")
    if not targets:  # DVC runs again, or finds to be up to date, whatever failed before
        shutil.rmtree(FAILED, ignore_errors=True)
    code = repro([*(["--pull"] if args.pull else []), *targets])
    if not code and not targets and (why := changed_unseen()):
        say(f"{why}: judging again")
        code = repro(["--force", "--single-item", "gate"]) or repro([])
    if code:
        earlier = [str(p) for p in (VERDICT, SCORECARD) if p.is_file()]
        raise SeatrialError(
            f"dvc repro ended with exit code {code}: the message of the failed stage stands above. Stages that had "
            "finished are kept; run the same command again once the cause is mended"
            + (f". What is in {' and '.join(earlier)} is of an earlier trial" if earlier else "")
        )
    if targets:
        return
    verdict, text = verdict_exit_code(VERDICT)
    print(text)
    print(f"\nscorecard: {SCORECARD.resolve()}")
    raise SystemExit(verdict)


if __name__ == "__main__":
    run_main(main)
