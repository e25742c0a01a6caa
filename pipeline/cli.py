"""The ``seatrial`` command. Stages run as ``python -m pipeline.X`` and take the same options here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from pipeline.load import commands as load_commands
from pipeline.plan import commands as plan_commands
from pipeline.project import commands as project_commands
from pipeline.release import commands as release_commands

app = typer.Typer(
    name="seatrial",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Regression-gated evaluation and release pipeline for language-model inference: ship, hold or undecided.",
    epilog="Exit codes of `seatrial trial` and `seatrial verdict`: 0 ship, 1 hold, 2 undecided, 3 something is wrong.",
)

Json = Annotated[bool, typer.Option("--json", help="The same as JSON.")]

_STAGES = {
    "trial": ("pipeline.trial", "Run the whole graph (as `make trial`) and print the verdict."),
    "fetch": ("pipeline.fetch", "Stage: source of the model -> artifacts/base."),
    "quantize": ("pipeline.quantize", "Stage: artifacts/base -> artifacts/TIER."),
    "check-evalsets": ("pipeline.evaluation.check", "Stage: schema, composition, leaks and age of the regression set."),
    "evalset": ("pipeline.evaluation.sets", "Import, compare, version and rotate regression sets."),
    "review": ("pipeline.evaluation.review", "Answers for people to rate: draw them blinded, read ratings back."),
    "evaluate": ("pipeline.evaluation", "Stage: the regression set against a booted or running server."),
    "loadtest": ("pipeline.load", "Stage: staged load through Locust against a booted or running server."),
    "fidelity": ("pipeline.fidelity", "How far tiers are from the reference: perplexity, KL, top-1 agreement."),
    "advise": ("pipeline.advise", "Which tier, and when not to quantise; each sentence with its figures."),
    "ab": ("pipeline.ab", "Two builds in interleaved rounds on this machine: ship, hold or undecided."),
    "diagnose": ("pipeline.diagnosis", "Why a run is slow or wrong, from the engine's own logs, in a fixed order."),
    "drill": ("pipeline.drill", "Plant faults one at a time: was each caught, was it named, by what, in what time."),
    "gate": ("pipeline.gate", "Stage: judge all tiers, write reports/verdict.json."),
    "scorecard": ("pipeline.report", "Stage: write reports/scorecard.html, metrics and plots."),
}


def _module(module: str, arguments: list[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def _stage_command(module: str) -> Callable[[typer.Context], None]:
    def run(ctx: typer.Context) -> None:
        _module(module, ctx.args)

    return run


for _name, (_target, _help) in _STAGES.items():
    app.command(
        _name,
        help=_help + f" Options: `seatrial {_name} --help`.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(_stage_command(_target))


app.add_typer(load_commands.app, name="load")
app.add_typer(plan_commands.app, name="plan")
app.add_typer(release_commands.app, name="release")
app.command()(project_commands.init)
app.command()(project_commands.doctor)
app.command()(project_commands.completion)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Further options go to the server as they are, for instance --log-dir, --prompt-log, --api-key-file, "
    "--reference-dir, --grace-s, --seam: python -m engine.server --help.",
)
def serve(
    ctx: typer.Context,
    artifact: Annotated[Path, typer.Option(help="A model directory with seatrial.json, for instance artifacts/int8.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8000,
    name: Annotated[str | None, typer.Option(help="Model name in the API; default: the folder's name.")] = None,
    isa: Annotated[
        str | None, typer.Option(help="Instructions that the kernels may use: auto, avx512, avx2 or baseline.")
    ] = None,
) -> None:
    """Serve an artifact over the OpenAI-compatible API, with the `engine` settings of params.yaml if there is one."""
    from engine.config import EngineConfig
    from pipeline.params import PARAMS, load_params

    config = load_params().engine if PARAMS.is_file() else EngineConfig()
    settings = config.model_dump() | ({} if isa is None else {"isa": isa})
    served = ["--artifact", str(artifact), "--host", host, "--port", str(port)]
    served += ["--served-model-name", name or artifact.resolve().name, "--config-json", json.dumps(settings)]
    _module("engine.server", [*served, *ctx.args])


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def bench(ctx: typer.Context) -> None:
    """Benchmarks of the engine with the `engine` settings of params.yaml if there is one: `bench policies --help`."""
    from pipeline.params import PARAMS, load_params

    given = any(a == "--config-json" or a.startswith("--config-json=") for a in ctx.args)
    if ctx.args[1:] and not given and PARAMS.is_file():
        _module("engine.bench", [*ctx.args, "--config-json", load_params().engine.model_dump_json()])
    _module("engine.bench", ctx.args)


class _Answer(SystemExit):
    """The exit code of a verdict, which no mistake in the options may look like."""


@app.command()
def verdict(
    file: Annotated[Path, typer.Option(help="The verdict to read.")] = Path("reports/verdict.json"),
    as_json: Json = False,
) -> None:
    """Print the verdict; the exit code is 0 ship, 1 hold, 2 undecided."""
    from pipeline.gate.verdict import EXIT_CODES, verdict_exit_code

    code, text = verdict_exit_code(file)
    if as_json:  # what holds today, which a stale file does not
        word = next(w for w, c in EXIT_CODES.items() if c == code)
        print(json.dumps({"schema_version": 1, "verdict": word, "exit_code": code, "text": text}, indent=2))
    else:
        print(text)
    raise _Answer(code)


policies = typer.Typer(no_args_is_help=True, help="The gate's policies (`gate` in params.yaml).")
app.add_typer(policies, name="policy")


@policies.command("explain")
def explain_policy(
    name: Annotated[str | None, typer.Option("--policy", help="Default: the one that gate.policy names.")] = None,
) -> None:
    """What each rule can detect at the sample sizes at hand, and what it would take to detect less."""
    from pipeline.gate.explain import explain, explain_ab, sizes_at_hand
    from pipeline.gate.policy import read_policy
    from pipeline.params import load_params

    params = load_params()
    gate = params.gate if name is None else params.gate | {"policy": name}
    print(
        explain(read_policy(gate, params.measured), sizes_at_hand(params.evaluation.evalset, params.release.candidate))
    )
    print(f"\n{explain_ab(params.ab)}")


@app.command()
def machine(as_json: Json = False) -> None:
    """Write what stages depend on beside files, the machine's fingerprint and the code's digests (.seatrial/*.json)."""
    from pipeline.project.code import write_code
    from pipeline.provenance import this_machine
    from pipeline.trial import write_machine

    write_machine()
    write_code()
    print(this_machine().model_dump_json(indent=2) if as_json else this_machine().machine_class)


def main() -> NoReturn:
    from pipeline.stage import run_main

    run_main(_run)


def _run() -> None:
    try:
        project_commands.answer_the_shell()
        app(prog_name=project_commands.PROGRAM)  # also where it was started as a module: completion asks by this name
    except _Answer:
        raise
    except SystemExit as e:
        # Typer ends with 2 on a mistake in the options; here 2 says "undecided".
        raise SystemExit(3 if e.code == 2 else e.code) from None


if __name__ == "__main__":
    main()
