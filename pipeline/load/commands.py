"""``seatrial load``: what is asked of load profiles and their results, beside the stage ``seatrial loadtest``."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.load.sweep.command import sweep

app = typer.Typer(
    no_args_is_help=True,
    help="Load profiles: what one will send; the rate that a server bears. The stage itself is `loadtest`.",
)


@app.command()
def plan(
    profile: Annotated[str, typer.Argument(help="A name below loadtests/profiles or the path of a .yaml.")],
    seed: Annotated[int | None, typer.Option(help="Default: load.seed of params.yaml.")] = None,
    latency_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="Assumed time of an answer, for what depends on the server."),
    ] = None,
    warmup_s: Annotated[float | None, typer.Option(min=0, help="Instead of the profile's, in every stage.")] = None,
    duration_s: Annotated[float | None, typer.Option(min=1, help="Instead of the profile's, in every stage.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it, as JSON.")] = False,
) -> None:
    """What a profile will send: requests, lengths, rates, concurrency, shared prefixes, and how a trace is scaled."""
    from loadtests.plan import plan_of
    from loadtests.workload import ProfileError, load_profile
    from pipeline.errors import SeatrialError
    from pipeline.load.plan import show
    from pipeline.params import PARAMS, LoadParams, load_params

    if seed is None:
        seed = load_params().load.seed if PARAMS.is_file() else LoadParams().seed
    try:
        found = plan_of(load_profile(profile, warmup_s=warmup_s, duration_s=duration_s), seed, latency_s)
    except ProfileError as e:
        raise SeatrialError(str(e)) from e
    if as_json:
        print(found.model_dump_json(indent=2))
    else:
        show(found)


app.command()(sweep)
