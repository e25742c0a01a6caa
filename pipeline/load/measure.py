"""The stage itself: a server, its figures before and after, Locust in between, ``load.json`` from the raw records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import polars as pl

from engine.artifact import Named, verify
from engine.config import EngineConfig
from loadtests.output import read_run
from loadtests.records import RunInfo
from loadtests.workload import Profile, ProfileError, load_profile, profile_path, workload_digest
from pipeline.errors import SeatrialError
from pipeline.files import atomic_dir, write_json
from pipeline.load.analysis.findings import StageWindow, findings
from pipeline.load.analysis.truncation import Pair, truncation
from pipeline.load.child import run_locust
from pipeline.load.engine_log import fresh
from pipeline.load.figures import definitions
from pipeline.load.idle import sent_again
from pipeline.load.metrics import GAUGES, Sampler, read_metrics
from pipeline.load.summary import summarise
from pipeline.provenance import (
    Header,
    engine_identity,
    model_identity,
    quantisation_identity,
    this_machine,
    utc_now,
)
from pipeline.serving import Server, bundled_server
from pipeline.stage import Stage

LOGS = Path(".seatrial/logs")
SAMPLE_SCHEMA = {
    "t_s": pl.Float64,
    "requests_running": pl.Int64,
    "requests_waiting": pl.Int64,
    "kv_blocks_used": pl.Int64,
    "kv_blocks_total": pl.Int64,
    "rss_bytes": pl.Int64,
    "preemptions_total": pl.Int64,
}


@dataclass(frozen=True)
class Target:
    """What is measured. ``server`` is None for one that somebody else runs."""

    base_url: str
    model: str
    server: Server | None
    requested: dict[str, Any]
    identities: tuple[Named, Named, Named]  # model, engine, quantisation

    def check(self) -> None:
        if self.server is not None:
            self.server.check()


def engine_logs(tier: str) -> Path:
    """Where the engine writes its own logs while it is measured; ``engine_log.keep`` brings them to the records."""
    return LOGS / f"load-{tier}.engine"


@contextmanager
def bundled(tier: str, config: EngineConfig) -> Iterator[Target]:
    """``artifacts/TIER`` on the bundled engine.

    Raises:
        ArtifactError: the artifact is not what its manifest says.
        SeatrialError: the server does not come up.
    """
    artifact = Path("artifacts") / tier
    manifest = verify(artifact)
    identities = (model_identity(manifest), engine_identity(config), quantisation_identity(manifest))
    log, logs = LOGS / f"load-{tier}.server.log", fresh(engine_logs(tier))
    with bundled_server(artifact, config, log, model=tier, options=("--log-dir", str(logs))) as server:
        yield Target(server.base_url, server.model, server, config.model_dump(mode="json"), identities)


@contextmanager
def foreign(base_url: str, model: str | None) -> Iterator[Target]:
    """A running OpenAI-compatible server, under the same unverified identity that an evaluation of it carries.

    Raises:
        SeatrialError: it does not answer, or does not list the model.
    """
    from pipeline.evaluation import target

    with target.foreign(base_url, model) as who:
        identities = (who.model, who.engine, who.quantisation)
        yield Target(who.base_url, who.model_name, None, who.engine_requested, identities)


def read_profile(name: str) -> Profile:
    """
    Raises:
        SeatrialError: there is no such profile, or it is not valid.
    """
    try:
        return load_profile(name)
    except ProfileError as e:
        raise SeatrialError(str(e)) from e


def measure(
    s: Stage, target: Target, profile_name: str, seed: int, final: Path, log: Path, workers: int = 1
) -> dict[str, Any]:
    """Runs the profile against ``target`` and writes the five files of ``final`` in one step; returns ``load.json``.

    ``workers``: load clients that share the profile between them.

    Raises:
        SeatrialError: the server died, Locust failed, or the records are not what was asked for.
    """
    profile = read_profile(profile_name)
    with atomic_dir(final) as out:
        before = _figures(target)
        began_at = utc_now()
        s.say(f"profile {profile.name}, {len(profile.stages)} stages, about {profile.planned_s:.0f} s")
        for spec in profile.stages:
            for line in spec.replayed.scaling.lines() if spec.replayed else ():
                s.say(f"{spec.name}: {line}")
        with s.progress(round(profile.planned_s), "seconds") as bar, Sampler(target.base_url, _pid(target)) as sampler:
            run_locust(
                profile,
                profile_path(profile_name).resolve(),
                base_url=target.base_url,
                model=target.model,
                seed=seed,
                out=out.resolve(),
                log=log,
                workers=workers,
                check=target.check,
                tick=lambda elapsed_s: bar.advance(max(int(elapsed_s) - bar.done, 0)),
            )
        target.check()
        after = _figures(target)
        try:
            records, run = read_run(out)
        except (OSError, ValueError, pl.exceptions.PolarsError) as e:
            raise SeatrialError(f"Locust ended well but left no readable records in {out}: {e}; see {log}") from e
        if run.workload_digest != workload_digest(profile, seed):
            raise SeatrialError(f"{profile_path(profile_name)} changed while it was being run; run the stage again")
        pairs = sent_again(records, profile, base_url=target.base_url, model=target.model, seed=seed)
        header = _header(target, profile, seed, began_at, after["info"])
        samples = _samples(sampler.rows, run)
        load = load_json(records, run, profile, header) | {
            "findings": [
                f.json()
                for f in findings(records, _windows(run), samples, (before["metrics"], after["metrics"]), run.client)
            ],
            "truncation": _truncation(records, profile, pairs, target),
        }
        write_json(out / "load.json", load)
        write_json(
            out / "server.json",
            {
                "schema_version": 1,
                "info": before["info"],
                "info_after": after["info"],
                "metrics_before": before["metrics"],
                "metrics_after": after["metrics"],
            },
        )
        samples.write_parquet(out / "samples.parquet")
    return load


def _windows(run: RunInfo) -> list[StageWindow]:
    return [
        StageWindow(x["name"], x["start_s"] + x["warmup_s"], x["end_s"], closed=x.get("users") is not None)
        for x in run.stages
    ]


def _truncation(records: pl.DataFrame, profile: Profile, pairs: list[Pair], target: Target) -> dict[str, Any]:
    """The bundled engine promises the same bytes whatever else it does; of another server nothing is known."""
    fixed = profile.output.fixed_by == "ignore_eos"
    return truncation(records, pairs, fixed_output=fixed, deterministic=target.server is not None)


def load_json(records: pl.DataFrame, run: RunInfo, profile: Profile, header: Header) -> dict[str, Any]:
    """``load.json`` from the raw records."""
    windows = {w.name: (w.from_s, w.to_s) for w in _windows(run)}
    goodput = profile.goodput.model_dump() if profile.goodput else None
    fixed = profile.output.fixed_by == "ignore_eos"

    def figures(names: list[str]) -> dict[str, Any]:
        return summarise(records, {n: windows[n] for n in names}, fixed_output=fixed, goodput=goodput)

    return {
        "schema_version": 1,
        "header": header.model_dump(mode="json"),
        "profile": profile.name,
        "started_at": run.started_at,
        "duration_s": run.duration_s,
        "client": run.client.model_dump(mode="json"),
        "stages": {name: figures([name]) for name in windows},
        "overall": figures(list(windows)),
        "definitions": definitions(),
    }


def _pid(target: Target) -> int | None:
    return target.server.process.pid if target.server else None


def _figures(target: Target) -> dict[str, Any]:
    """``/info`` and ``/metrics``. A foreign server may have neither: null."""
    with httpx.Client() as http:
        if target.server is not None:
            return {"info": target.server.info(), "metrics": read_metrics(http, target.base_url)}
        try:
            answer = http.get(f"{target.base_url}/info", timeout=10)
            info = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            info = None
        return {"info": info if isinstance(info, dict) else None, "metrics": read_metrics(http, target.base_url)}


def _header(target: Target, profile: Profile, seed: int, measured_at: str, info: dict[str, Any] | None) -> Header:
    model, engine, quantisation = target.identities
    return Header(
        model=model,
        engine=engine,
        quantisation=quantisation,
        workload=Named(name=f"{profile.name} (seed {seed})", digest=workload_digest(profile, seed)),
        machine=this_machine(),
        measured_at=measured_at,
        engine_requested=target.requested,
        engine_derived=dict((info or {}).get("derived") or {}),
    )


def _samples(rows: list[dict[str, Any]], run: RunInfo) -> pl.DataFrame:
    """Samples on the run's clock: ``t_s`` is negative for those taken while Locust was starting."""
    zero = datetime.fromisoformat(run.started_at).timestamp()
    columns = [*GAUGES, "rss_bytes"]
    data = [{"t_s": r["at_unix_s"] - zero, **{c: None if r[c] is None else round(r[c]) for c in columns}} for r in rows]
    return pl.DataFrame(data, schema=SAMPLE_SCHEMA)
