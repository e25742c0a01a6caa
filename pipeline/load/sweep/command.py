"""``seatrial load sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.errors import SeatrialError


def sweep(
    base_url: Annotated[str | None, typer.Option(help="A running OpenAI-compatible server.")] = None,
    model: Annotated[str | None, typer.Option(help="With --base-url: the model; default: the first it lists.")] = None,
    target: Annotated[str | None, typer.Option(help="Or an entry of `targets` in params.yaml.")] = None,
    tier: Annotated[
        str | None, typer.Option(help="Or boot artifacts/TIER; with --target, what the target serves.")
    ] = None,
    profile: Annotated[str, typer.Option(help="Whose content is sent: a name or a .yaml.")] = "ci",
    stage: Annotated[str | None, typer.Option(help="Stage of the profile; default: its first.")] = None,
    ttft_ms: Annotated[float | None, typer.Option(min=1, help="Limit on TTFT; default: the profile's goodput.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(min=1, help="Limit on TPOT; default: the profile's goodput.")] = None,
    share: Annotated[float, typer.Option(min=0.01, max=0.999, help="Of requests that must keep both.")] = 0.95,
    lowest: Annotated[float, typer.Option("--from", min=0.001, help="Requests a second to begin with.")] = 0.5,
    highest: Annotated[float, typer.Option("--to", min=0.001, help="Never more than this.")] = 256.0,
    budget_s: Annotated[float, typer.Option(min=10, help="Time for all probes together.")] = 600.0,
    requests: Annotated[int, typer.Option(min=20, help="Requests that one probe measures.")] = 100,
    probe_s: Annotated[float, typer.Option(min=2, help="The longest that one probe measures.")] = 60.0,
    tolerance: Annotated[float, typer.Option(min=0.01, help="Width of the bracket to end at, as a share.")] = 0.1,
    seed: Annotated[int | None, typer.Option(help="Default: load.seed of params.yaml, else 1.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for sweep.json and sweep.svg.")] = Path("reports/sweep"),
) -> None:
    """Find the highest rate at which a server keeps its latency targets (the goodput knee), with an interval."""
    from pipeline.load.sweep.run import Asked, run_sweep

    if (base_url is None) == (tier is None and target is None):
        raise SeatrialError(
            "give one of --base-url URL (a running server), --target NAME and --tier TIER (boots artifacts/TIER)"
        )
    if model is not None and base_url is None:
        raise SeatrialError("--model goes with --base-url; the bundled engine serves artifacts/TIER alone")
    asked = Asked(
        server=target, base_url=base_url, model=model, tier=tier, profile=profile, stage=stage, ttft_ms=ttft_ms,
        tpot_ms=tpot_ms, target=share, lowest=lowest, highest=highest, budget_s=budget_s, requests=requests,
        probe_s=probe_s, tolerance=tolerance, seed=seed, out=out,
    )  # fmt: skip
    run_sweep(asked)
