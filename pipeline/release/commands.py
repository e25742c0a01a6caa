"""``seatrial release``: propose, promote, list, show, diff, rollback, undo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Releases: reviewed records, tags, model cards; the gate's baseline.")
Json = Annotated[bool, typer.Option("--json", help="The same as JSON.")]
Sign = Annotated[bool, typer.Option("--sign", help="Sign the tags by what git is set to use (gpg.format=ssh).")]
Name = Annotated[str, typer.Argument(help="A version such as 1.4.0.")]


def _artifact() -> str:
    from pipeline.params import load_params

    return load_params().release.artifact


@app.command()
def propose(
    name: Name,
    owner: Annotated[str | None, typer.Option(help="Who answers for it; default: git's user.")] = None,
    ratings: Annotated[
        Path | None, typer.Option(help="People's ratings of this candidate: reports/review.json.")
    ] = None,
) -> None:
    """Write releases/proposed/NAME.json for review. Needs a verdict of ship."""
    from pipeline.release.flow import propose as write

    path = write(name, owner, artifact=_artifact(), ratings=ratings)
    print(f"{path}: commit it and have it reviewed, then `seatrial release promote {name}`")


@app.command()
def promote(name: Name, sign: Sign = False) -> None:
    """Release a committed proposal: record, model card, one commit, two tags. It is the next baseline."""
    from pipeline.release.flow import promote as release

    done = release(name, artifact=_artifact(), sign=sign)
    print(
        f"{done.path}{' (finished)' if done.finished else ''}: tagged {' and '.join(done.tags)}; "
        "git push --follow-tags sends it"
    )


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Releases and rollbacks, the newest first; the one in service is marked."""
    from pipeline.release.interrupted import interrupted
    from pipeline.release.show import history, proposals

    rows, begun = history(artifact=_artifact()), interrupted()
    if as_json:
        left_over = [{"event": x.event, "name": x.name, "record": x.record.as_posix(), "words": x.words} for x in begun]
        value = {"schema_version": 1, "events": rows, "proposed": proposals(), "interrupted": left_over}
        print(json.dumps(value, indent=2))
        return
    for x in begun:
        print(f"! {x.words}")
    for r in rows:
        mark = "*" if r["current"] else " "
        what = r["tier"] if r["event"] == "release" else f"rolled back: {r['why']}"
        waived = f", {r['waivers']} waived" if r["waivers"] else ""
        left = "" if r["tagged"] else f" (no tag here: interrupted, then {r['finish']} finishes it, or not fetched)"
        print(f"{mark} {r['sequence']:3} {r['name']:12} {r['at']}  {what}{waived}; {r['by']}{left}")
    if not rows:
        print("nothing has been released yet")
    if names := proposals():
        print(f"proposed: {', '.join(names)}")


@app.command()
def show(
    name: Name,
    require_signature: Annotated[bool, typer.Option(help="Fail unless the tag's signature holds.")] = False,
    as_json: Json = False,
) -> None:
    """What a release is, and whether its record, tag, signature and files still are what went out."""
    from pipeline.release.show import check, state_of

    state = state_of(name, artifact=_artifact())
    if as_json:
        print(json.dumps(state.as_json(), indent=2))
    else:
        r = state.release
        where = " (in service)" if state.current else "" if state.complete else " (not finished)"
        print(f"{r.name}{where}: {r.tier} of {r.evaluation.model.name}")
        print(f"{r.reason}\nowner {r.owner}; promoted {r.promoted_at} by {r.promoted_by}; policy {r.policy}")
        for w in r.waivers:
            print(f"waived: {w['rule']} until {w['expires']} by {w['owner']}: {w['reason']}")
        print(f"tag {state.tag}: {state.signature_said}")
        print(f"artifact: {state.artifact_here}; records: {state.records_here}")
    check(state, require_signature=require_signature)


@app.command()
def diff(before: Name, after: Name, as_json: Json = False) -> None:
    """What changed from one release to another, and what users meet differently."""
    from pipeline.release.compare import compare
    from pipeline.release.show import read_release

    found = compare(read_release(before), read_release(after))
    print(json.dumps(found.as_json(), indent=2) if as_json else "\n".join(found.lines()))


@app.command()
def rollback(
    name: Name,
    reason: Annotated[str, typer.Option(help="What users met with the release that is left.")],
    sign: Sign = False,
    as_json: Json = False,
) -> None:
    """Put an earlier release into service again, and say what that changes for users."""
    from pipeline.release.compare import compare
    from pipeline.release.flow import rollback as back
    from pipeline.release.record import Rollback, read_record
    from pipeline.release.show import read_release

    done = back(name, reason, artifact=_artifact(), sign=sign)
    found = compare(read_release(read_record(done.path, Rollback).left), read_release(name))
    if as_json:
        print(json.dumps({"schema_version": 1, "tags": done.tags, "changes": found.as_json()}, indent=2))
        return
    print("\n".join(found.lines()))
    print(f"{done.path}: {name} is in service again, tagged {' and '.join(done.tags)}; push with --follow-tags")


@app.command()
def undo() -> None:
    """Take back what a promotion or rollback left that was interrupted before its commit; nothing else."""
    from pipeline.release.interrupted import undo as take_back

    found = take_back()
    for x in found:
        print(f"taken back: the {x.event} {'of' if x.event == 'promotion' else 'to'} {x.name}")
    if not found:
        print("nothing is left of an interrupted promotion or rollback")
