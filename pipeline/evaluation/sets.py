"""Evalsets as files: import one, compare two, record a content as a version, rotate production requests.

seatrial evalset import --format own FILE --out evalsets/NAME --week 2026-W49
seatrial evalset diff HEAD:evalsets/core evalsets/core
seatrial evalset record evalsets/core --size major --week 2026-W49 --what "Two documents more"
seatrial evalset rotate --week 2026-W49 --requests LOG
seatrial evalset rescore
seatrial evalset attribute BASELINE_OLD BASELINE_NEW CANDIDATE_NEW
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.errors import SeatrialError
from pipeline.evaluation import attribution, importers, rotation, versions
from pipeline.evaluation.items import EVALSETS, is_week
from pipeline.evaluation.requests import read_log
from pipeline.params import PARAMS, load_params
from pipeline.stage import run_main, say, stage


def _import(given: argparse.Namespace) -> None:
    result = importers.import_set(given.format, given.file, given.out, given.week)
    for line in result.lines():
        say(f"{given.file}: {line}")
    print(f"{given.out}: {len(result.items)} items, version 1.0.0")
    print(_next(given.out))


def _next(folder: Path) -> str:
    """What is still to be done before a trial asks the set, by what params.yaml names.

    Raises:
        SeatrialError: params.yaml does not parse.
    """
    name, settings = folder.name, []
    if folder.resolve().parent != EVALSETS.resolve() or not PARAMS.is_file():
        return "A trial asks the set that `evaluation.evalset` of params.yaml names, one of the folders below evalsets/"
    from pipeline.gate.policy import read_policy

    params = load_params()
    if params.evaluation.evalset != name:
        settings.append(f"evaluation.evalset: {name}")
    rules = read_policy(params.gate, params.measured).rules
    others = [r.id for r in rules if getattr(r, "evalset", None) not in (None, f"{name}-v1")]
    if others:
        settings.append(f"evalset: {name}-v1 in the rules {', '.join(others)} (a margin is chosen for a set)")
    return (
        "Next: " + (f"set in {PARAMS} {' and '.join(settings)}; then " if settings else "") + "seatrial check-evalsets"
    )


def _diff(given: argparse.Namespace) -> None:
    with versions.opened(given.before) as a, versions.opened(given.after) as b:
        print("\n".join(versions.diff(a.items, b.items).lines()))
        print(f"{a.manifest.name} {a.manifest.version} -> {b.manifest.name} {b.manifest.version}")


def _record(given: argparse.Namespace) -> None:
    manifest = versions.read_manifest(given.folder)
    if manifest is None:
        raise SeatrialError(f"{given.folder / 'manifest.yaml'} not found; expected the folder of an evalset")
    version = versions.next_version(str(manifest["version"]), given.size)
    versions.record(given.folder, version, given.week, given.what)
    print(f"{given.folder}: recorded version {version}")


def _rotate(given: argparse.Namespace) -> None:
    requests, other = read_log(given.requests)
    if other:
        say(f"{given.requests}: {other} lines are no requests in text")
    print("\n".join(rotation.rotate(given.folder, given.week, requests, given.seed).lines()))


def _rescore(given: argparse.Namespace) -> None:
    from pipeline.evaluation.rescore import rescore

    with stage("rescore", measuring=True, note=False) as s:
        rescore(load_params(), s)


def _attribute(given: argparse.Namespace) -> None:
    folders = (given.baseline_old, given.baseline_new, given.candidate_new)
    print("\n".join(attribution.attribute(*map(attribution.scores_of, folders)).lines()))


def _week(text: str) -> str:
    if not is_week(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an ISO week such as 2026-W49")
    return text


def main(argv: Sequence[str] | None = None) -> None:
    """
    Raises:
        SeatrialError: see the functions behind the subcommands.
    """
    parser = argparse.ArgumentParser(
        "seatrial evalset", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    c = command("import", _import, "A file of a public form becomes an evalset of its own.")
    c.add_argument("--format", required=True, choices=importers.FORMS, help=_forms())
    c.add_argument("file", type=Path)
    c.add_argument("--out", type=Path, required=True, help="folder to make; its name is that of the set")
    c.add_argument("--week", type=_week, required=True, help="ISO week in which the items come in")
    c = command("diff", _diff, "Items in, out and changed between two contents, and the size of the version due.")
    c.add_argument("before", help="a folder, or REVISION:FOLDER of the git repository")
    c.add_argument("after")
    c = command("record", _record, "The present items become a version, with an entry in the changelog.")
    c.add_argument("folder", type=Path)
    c.add_argument("--size", required=True, choices=("major", "minor", "patch"), help="`diff` says which is due")
    c.add_argument("--week", type=_week, required=True, help="ISO week of the version")
    c.add_argument("--what", required=True, help="what changed, in a sentence")
    c = command("rotate", _rotate, "This week's production requests come in, the oldest week goes out.")
    c.add_argument("--week", type=_week, required=True, help="ISO week of the requests")
    c.add_argument(
        "--requests", type=Path, required=True,
        help="JSONL of requests with `messages` or `prompt`, or a folder of such files, as --prompt-log writes it",
    )  # fmt: skip
    c.add_argument("--folder", type=Path, default=EVALSETS / "core", help="the set; default evalsets/core")
    c.add_argument("--seed", type=int, default=0, help="another draw of the same log")
    command("rescore", _rescore, "The release in service answers the present items, for the gate to compare with.")
    c = command("attribute", _attribute, "A change of accuracy, split into what the set and what the model did.")
    for name, text in (("baseline_old", "the baseline on the old content"), ("baseline_new", "on the new content"),
                       ("candidate_new", "the candidate on the new content")):  # fmt: skip
        c.add_argument(name, type=Path, help=f"results/TIER/eval of {text}")
    given = parser.parse_args(argv)
    given.run(given)


def _forms() -> str:
    return "; ".join(f"{name}: {form.what}" for name, form in importers.FORMS.items())


if __name__ == "__main__":
    run_main(main)
