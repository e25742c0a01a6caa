"""``seatrial plan``: the memory ledger; ``seatrial plan scale``: what spreading over several devices would bring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pipeline.errors import SeatrialError
from pipeline.plan.scale.command import published, scale

Json = Annotated[bool, typer.Option("--json", help="The same as JSON.")]

app = typer.Typer(invoke_without_command=True)
app.command()(scale)
app.command()(published)


def _given(ctx: typer.Context) -> list[str]:
    """Names of the options that were written on the command line."""
    sources = [(p, ctx.get_parameter_source(p.name or "")) for p in ctx.command.params]
    return [p.opts[0] for p, source in sources if source is not None and source.name == "COMMANDLINE"]


@app.callback()
def plan(
    ctx: typer.Context,
    artifact: Annotated[
        Path | None, typer.Option(help="A model directory; its engine settings from params.yaml.")
    ] = None,
    measure: Annotated[
        bool, typer.Option(help="Also boot the engine on --artifact, run its largest steps, and compare.")
    ] = False,
    layers: Annotated[int | None, typer.Option(min=1)] = None,
    hidden: Annotated[int | None, typer.Option(min=1)] = None,
    params: Annotated[float | None, typer.Option(min=1, help="Number of weights, for instance 7e9.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Default: hidden / 128.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Default: heads (no grouped queries).")] = None,
    intermediate: Annotated[int | None, typer.Option(min=1, help="Default: 8/3 of hidden.")] = None,
    vocab: Annotated[int, typer.Option(min=1)] = 32000,
    weight_bits: Annotated[float, typer.Option(min=1, max=32, help="Bits a weight, scales included.")] = 16,
    kv_dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16; int8, fp8, int4 with scales.")] = "float16",
    max_model_len: Annotated[int, typer.Option(min=2)] = 2048,
    memory_gib: Annotated[
        float | None, typer.Option("--memory", min=0.001, help="GiB; then also: how many requests fit.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1)] = 256,
    as_json: Json = False,
) -> None:
    """The memory ledger of an artifact, or of plain numbers; `plan scale`: several devices instead of one."""
    given = _given(ctx)
    if ctx.invoked_subcommand is not None:
        if given:
            raise SeatrialError(
                f"{given[0]} stands before `{ctx.invoked_subcommand}`, which would not see it; expected the options of "
                f"`{ctx.invoked_subcommand}` behind its name: `seatrial plan {ctx.invoked_subcommand} --help`"
            )
        return
    from pipeline.params import load_params
    from pipeline.plan import memory as planning

    if artifact is not None:
        other = next((name for name in given if name not in ("--artifact", "--measure", "--json")), None)
        if other is not None:
            raise SeatrialError(
                f"{other} belongs to a plan from numbers; with --artifact the sizes are the model's and the settings "
                "those of `engine` in params.yaml"
            )
        config = load_params().engine
        shape, ledger, compute, kv = planning.plan_of_directory(artifact, config)
        rows = planning.rows_of(shape, ledger.weights_bytes, kv, ledger)
        tables: list[tuple[str, Sequence[tuple[str, ...]]]] = [(f"{artifact} (computes in {compute})", rows)]
        if measure:
            from pipeline.measure import compared, measure_directory

            tables.append(("planned and measured, in bytes", compared(ledger, measure_directory(artifact, config))))
        planning.tell(tables, ledger, as_json=as_json)
        return
    if measure:
        raise SeatrialError("--measure boots an engine: give it --artifact DIR")
    if layers is None or hidden is None or params is None:
        raise SeatrialError(
            "give --artifact DIR, or all of --layers, --hidden and --params (for instance 32, 4096, 7e9)"
        )
    shape, weights, numbers = planning.plan_numbers(
        layers=layers,
        hidden=hidden,
        params=params,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=intermediate,
        vocab=vocab,
        weight_bits=weight_bits,
        kv_dtype=kv_dtype,
        max_model_len=max_model_len,
        memory_bytes=None if memory_gib is None else round(memory_gib * 1024**3),
        max_num_seqs=max_num_seqs,
    )
    title = f"{params:.3g} weights at {weight_bits:g} bits, {layers} layers, {hidden} wide, {shape.kv_heads} KV heads"
    planning.tell([(title, planning.rows_of(shape, weights, kv_dtype, numbers))], numbers, as_json=as_json)
