"""``seatrial plan scale`` and ``seatrial plan published``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.errors import SeatrialError

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from pipeline.plan.scale.devices import Device
    from pipeline.plan.scale.model import ScaleModel

Json = Annotated[bool, typer.Option("--json", help="The same as JSON, with every figure.")]
MODEL_HELP = (
    "A directory with config.json and seatrial.json, or a preset: llama-3.2-1b, -3b, llama-3.1-8b, -70b, -405b, "
)
MODEL_HELP += "llama-2-7b, -13b, -70b. Without it: --layers, --hidden, --params."
DEVICE_HELP = (
    "this (this CPU, measured), t4, v100, a100, a100-40, h100, h100-pcie, h200, b200, l4, l40s, mi300x, or a name "
)
DEVICE_HELP += "of your own with the three figures."
LINKS_HELP = (
    "nvlink2 to nvlink5, infinity-fabric, pcie3 to pcie5, ib-hdr, ib-ndr, ethernet-1, -10, -25, -100, or a name of "
)
LINKS_HELP += "your own; WITHIN,BETWEEN with --per-host."


def scale(
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "this",
    links: Annotated[str, typer.Option(help=LINKS_HELP)] = "ethernet-10",
    devices: Annotated[int, typer.Option(min=1, max=1024, help="How many there are.")] = 2,
    per_host: Annotated[int | None, typer.Option(min=1, help="Devices of a host, where two links are given.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time, over all devices.")] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 2048,
    output: Annotated[int, typer.Option(min=1, help="Tokens that are then drawn.")] = 256,
    weight_bits: Annotated[
        float | None,
        typer.Option(min=1, max=32, help="Bits a weight, scales included; default 16. Not for a directory."),
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 (default), int8, fp8 or int4. Not for a directory.")
    ] = None,
    eight_bit: Annotated[
        bool, typer.Option("--eight-bit", help="Products of 8-bit activations (W8A8, FP8). Not for a directory.")
    ] = False,
    activation_bits: Annotated[float, typer.Option(min=1, max=32, help="Of a value on the wire.")] = 16,
    layers: Annotated[int | None, typer.Option(min=1)] = None,
    hidden: Annotated[int | None, typer.Option(min=1)] = None,
    params: Annotated[float | None, typer.Option(min=1, help="Number of weights, for instance 7e9.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Default: hidden / 128.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Default: heads.")] = None,
    intermediate: Annotated[int | None, typer.Option(min=1, help="Default: 8/3 of hidden.")] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="Default: 32000.")] = None,
    tied: Annotated[bool, typer.Option("--tied", help="The head is the embedding; with --params.")] = False,
    device_gbs: Annotated[
        float | None, typer.Option(min=0.001, help="Measured memory bandwidth, GB/s; instead of the preset's.")
    ] = None,
    device_tflops: Annotated[float | None, typer.Option(min=1e-6, help="Measured TFLOP/s of the products.")] = None,
    device_memory_gib: Annotated[float | None, typer.Option(min=0.001, help="What the engine may use, GiB.")] = None,
    link_gbs: Annotated[
        float | None, typer.Option(min=1e-6, help="Measured bus bandwidth (nccl-tests), GB/s; of the last link named.")
    ] = None,
    link_latency_us: Annotated[
        float | None, typer.Option(min=0, help="Measured time of one small message, us; of the last link named.")
    ] = None,
    all_reduce: Annotated[str, typer.Option(help="best (of ring and tree), ring, tree or star.")] = "best",
    as_json: Json = False,
) -> None:
    """Whether to spread a model over several devices: tensor, pipeline and data parallel, and where the answer flips.

    First the answer; then the table (time on the wire, of compute, of memory; TTFT, inter-token latency, throughput);
    then the flip points; then prefill on devices of its own. Assumptions and errors: pipeline/plan/README.md.
    """
    from engine.config import EngineConfig
    from pipeline.params import PARAMS, load_params
    from pipeline.plan.scale.answer import answer
    from pipeline.plan.scale.collectives import ALL_REDUCE
    from pipeline.plan.scale.devices import device_of
    from pipeline.plan.scale.disaggregate import disaggregation
    from pipeline.plan.scale.links import links_of
    from pipeline.plan.scale.parallel import splits
    from pipeline.plan.scale.predict import Setting, Workload, predict
    from pipeline.plan.scale.report import Plan, show
    from pipeline.plan.scale.report import as_json as jsonable

    if all_reduce not in ALL_REDUCE:
        raise SeatrialError(f"--all-reduce {all_reduce!r} is not known; expected one of {', '.join(ALL_REDUCE)}")
    wires = links_of(links, per_host, link_gbs, link_latency_us)
    numbers: dict[str, float | int | None] = {
        "--layers": layers, "--hidden": hidden, "--params": params, "--heads": heads, "--kv-heads": kv_heads,
        "--intermediate": intermediate, "--vocab": vocab,
    }  # fmt: skip
    given = [name for name, value in numbers.items() if value is not None] + (["--tied"] if tied else [])
    if model is not None and given:
        raise SeatrialError(f"{given[0]} describes a model by numbers, and --model {model} names one; give one of them")
    directory = Path(model) if model is not None and Path(model).is_dir() else None
    fixed = {"--weight-bits": weight_bits, "--kv-dtype": kv_dtype, "--eight-bit": eight_bit or None}
    if directory is not None and (other := next((n for n, v in fixed.items() if v is not None), None)):
        raise SeatrialError(f"{other} is what the artifact {model} decides; leave it out")
    config = load_params().engine if directory is not None and PARAMS.is_file() else EngineConfig()
    machine = device_of(device, device_gbs, device_tflops, device_memory_gib)
    if directory is not None:
        chosen = _artifact(directory, config, machine, activation_bits, context + output)
    else:
        chosen = _numbers(
            model, numbers, tied, weight_bits or 16, kv_dtype or "float16", activation_bits, eight_bit
        )  # fmt: skip
    setting = Setting(chosen, machine, Workload(context, output, concurrency), config, all_reduce)
    found = [predict(setting, split, wires) for split in splits(devices)]
    told = answer(setting, wires, found)
    best = next((p for p in found if told.best and p.split == told.best["throughput"]), None)
    apart = (
        disaggregation(setting, best.split, best.times, wires.between) if best and best.times and devices > 1 else None
    )
    plan = Plan(setting, wires, found, told, apart)
    if as_json:
        print(json.dumps(jsonable(plan), indent=2, allow_nan=False))
    else:
        show(plan)


def _artifact(
    directory: Path, config: EngineConfig, machine: Device, activation_bits: float, length: int
) -> ScaleModel:
    from engine.config import resolve_dtypes
    from pipeline.plan.scale.model import of_artifact
    from pipeline.provenance import this_machine

    on_device = config.model_copy(update={"backend": machine.backend})
    compute, kv, _reason = resolve_dtypes(on_device, this_machine().isa)
    return of_artifact(directory, on_device, compute, kv, activation_bits, length)


def _numbers(
    model: str | None,
    numbers: dict[str, float | int | None],
    tied: bool,
    weight_bits: float,
    kv_dtype: str,
    activation_bits: float,
    eight_bit: bool,
) -> ScaleModel:
    from pipeline.plan.scale.model import of_numbers, preset

    if model is not None:
        return preset(model, weight_bits, kv_dtype, activation_bits, eight_bit)
    if missing := [name for name in ("--layers", "--hidden", "--params") if numbers[name] is None]:
        raise SeatrialError(f"give --model DIR or PRESET, or all of --layers, --hidden and --params (no {missing[0]})")

    def whole(name: str) -> int | None:
        value = numbers[name]
        return None if value is None else int(value)

    return of_numbers(
        name=f"{numbers['--params']:.3g} weights at {weight_bits:g} bits", params=float(numbers["--params"] or 0),
        layers=whole("--layers") or 0, hidden=whole("--hidden") or 0, heads=whole("--heads"),
        kv_heads=whole("--kv-heads"), intermediate=whole("--intermediate"), vocab=whole("--vocab") or 32000, tied=tied,
        weight_bits=weight_bits, kv_dtype=kv_dtype, activation_bits=activation_bits, eight_bit=eight_bit,
    )  # fmt: skip


def published(as_json: Json = False) -> None:
    """The planner's predictions beside figures that others have published, each with its error."""
    from pipeline.plan.scale.published import checks, read_cases
    from pipeline.plan.scale.report import published_rows, published_summary

    cases = read_cases()
    done = checks(cases)
    if as_json:
        rows = [
            c.case.model_dump() | {"title": c.source.title, "predicted": c.predicted, "factor": c.factor} for c in done
        ]
        print(json.dumps({"schema_version": 1, "bound_factor": cases.bound_factor, "cases": rows}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("source", "setting", "figure", "measured", "predicted", "factor", "outside, because", box=None)
    for row in published_rows(done):
        table.add_row(*row)
    console = Console(highlight=False, width=None if Console().is_terminal else 200)
    console.print(published_summary(cases, done))
    console.print(table)
