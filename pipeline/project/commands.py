"""``seatrial init``, ``doctor`` and ``completion``."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

PROGRAM = "seatrial"
VARIABLE = "_SEATRIAL_COMPLETE"


def answer_the_shell() -> None:
    """Where a shell asks what could follow, Typer must know the shells; else that only costs time."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]  # a name that it imports

        completion_init()


def init(
    folder: Annotated[Path, typer.Argument(help="Where to; it is made if need be.")] = Path(),
    model: Annotated[
        str | None,
        typer.Option(help="A model directory, a GGUF file, hf:ORG/NAME@REVISION; default: SmolLM2-135M-Instruct."),
    ] = None,
    evalset: Annotated[str, typer.Option(help="Name of the regression set.")] = "own",
    week: Annotated[str | None, typer.Option(help="ISO week of the first items; default: this one.")] = None,
) -> None:
    """Write a working project for a model of one's own: settings, graph, regression set, workflow, README."""
    from pipeline.project.init import init as write

    now = datetime.now(UTC).strftime("%G-W%V")
    for path in write(folder, model, evalset, week or now):
        print(path)
    there = "" if folder.resolve() == Path.cwd() else f"cd {folder}; "
    print(
        f"\nNext: {there}seatrial doctor; seatrial trial, which measures your model with the few examples of "
        f"evalsets/{evalset}.\nYour own questions take their place by\n\n"
        f"    seatrial evalset import --format own FILE --out evalsets/{evalset} --week {week or now}\n\n"
        "README.md there says what FILE holds, and more."
    )


def doctor(as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False) -> None:
    """Is this machine fit for a trial: what is missing, what will be slow. Exit code 1 if something prevents one."""
    from pipeline.project import doctor as ward

    findings = ward.examine()
    print(json.dumps(ward.as_json(findings), indent=2) if as_json else "\n".join(ward.lines(findings)))
    raise typer.Exit(ward.exit_code(findings))


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Of which shell.")]) -> None:
    """Print the script that completes commands and options, for the shell's start-up file: eval "$(...)"."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # a name that it imports

    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))
