"""The stage itself: a server, its figures before and after, Locust in between, ``load.json`` from the raw records."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import polars as pl

from engine.artifact import Named
from loadtests.output import read_run
from loadtests.records import RunInfo
from loadtests.turns import Place
from loadtests.workload import Profile, ProfileError, load_profile, profile_path, workload_digest
from pipeline.errors import SeatrialError
from pipeline.files import atomic_dir, write_json
from pipeline.load.analysis.findings import StageWindow, findings
from pipeline.load.analysis.truncation import truncation
from pipeline.load.child import run_locust
from pipeline.load.figures import definitions
from pipeline.load.idle import PROMPTS, sent_again
from pipeline.load.metrics import Sampler, read_metrics, samples_frame
from pipeline.load.restarts import told
from pipeline.load.summary import summarise
from pipeline.provenance import Header, this_machine, utc_now
from pipeline.stage import Stage
from pipeline.targets.capabilities import PREFIX
from pipeline.targets.target import LOGS, Target


def engine_logs(tier: str) -> Path:
    """Where the engine writes its own logs while it is measured; ``engine_log.keep`` brings them to the records."""
    return LOGS / f"load-{tier}.engine"


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
    s: Stage,
    target: Target,
    profile_name: str,
    seed: int,
    final: Path,
    log: Path,
    workers: int = 1,
    await_at: tuple[str, int] | None = None,
    place: Place | None = None,
    again: int = PROMPTS,
) -> dict[str, Any]:
    """Runs the profile against ``target`` and writes the five files of ``final`` in one step; returns ``load.json``.

    ``workers``: load clients that share the profile between them; ``await_at``: where to wait for them, if they are
    others' processes. ``place``: where the client is given its turns, if it takes turns with that of another server.
    ``again``: so many prompts are sent once more to the idle server, to see answers that load cut short.

    Raises:
        SeatrialError: the server died, Locust failed, or the records are not what was asked for.
    """
    profile = read_profile(profile_name)
    with atomic_dir(final) as out:
        before = _figures(target)
        began_at = utc_now()
        s.say(f"profile {profile.name}, {len(profile.stages)} stages, about {profile.planned_s:.0f} s")
        if await_at is not None:
            s.say(f"waiting for {workers} workers at {await_at[0]}:{await_at[1]}")
        for spec in profile.stages:
            for line in spec.replayed.scaling.lines() if spec.replayed else ():
                s.say(f"{spec.name}: {line}")
        sampling = Sampler(target.base_url, target.pid, target.key.headers)
        with s.progress(round(profile.planned_s), "seconds") as bar, sampling as sampler:
            run_locust(
                profile,
                profile_path(profile_name).resolve(),
                base_url=target.base_url,
                model=target.model_name,
                seed=seed,
                out=out.resolve(),
                log=log,
                workers=workers,
                await_at=await_at,
                key=target.key,
                place=place,
                check=target.check_alive,
                tick=lambda elapsed_s: bar.advance(max(int(elapsed_s) - bar.done, 0)),
            )
        target.check_alive()
        after = _figures(target)
        try:
            records, run = read_run(out)
        except (OSError, ValueError, pl.exceptions.PolarsError) as e:
            raise SeatrialError(f"Locust ended well but left no readable records in {out}: {e}; see {log}") from e
        digest = workload_digest(profile, seed, None if place is None else place.turn_s)
        if run.workload_digest != digest:
            raise SeatrialError(f"{profile_path(profile_name)} changed while it was being run; run the stage again")
        pairs = sent_again(records, profile, target, seed=seed, count=again)
        header = _header(target, f"{profile.name} (seed {seed})", digest, began_at, after["info"])
        samples = samples_frame(sampler.rows, run.started_at)
        lengths = None if profile.output.fixed_by != "ignore_eos" else target.lacking("ignore_eos")
        load = load_json(records, run, profile, header, fixed_output=_fixed(profile) and lengths is None) | {
            "capabilities": None if target.capabilities is None else target.capabilities.json(),
            "not_comparable": not_comparable(target, lengths),
            "findings": [
                f.json()
                for f in findings(records, _windows(run), samples, (before["metrics"], after["metrics"]), run.client)
            ],
            "truncation": truncation(
                records, pairs, fixed_output=_fixed(profile) and lengths is None, deterministic=target.bundled
            ),
            "server_metrics": told(
                sampler.scrapes,
                datetime.fromisoformat(run.started_at).timestamp(),
                {w.name: (w.from_s, w.to_s) for w in _windows(run)},
                records,
            ),
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
        StageWindow(x["name"], _measured_from_s(x), x["end_s"], closed=x.get("users") is not None) for x in run.stages
    ]


def _measured_from_s(stage: dict[str, Any]) -> float:
    first = next((t["start_s"] for t in stage.get("turns") or [] if t["measured"]), None)
    return float(stage["start_s"] + stage["warmup_s"] if first is None else first)


def _own_s(run: RunInfo) -> dict[str, float]:
    """Of the stages that were sent in turns: how long the measured ones were together, each to its last answer."""
    return {
        x["name"]: sum(t["end_s"] - t["start_s"] for t in x["turns"] if t["measured"])
        for x in run.stages
        if x.get("turns")
    }


def _fixed(profile: Profile) -> bool:
    return profile.output.fixed_by == "ignore_eos"


def not_comparable(target: Target, lengths: str | None) -> dict[str, str]:
    """By capability that the server lacks: which figures are not those of a server that has it, and why.

    Args:
        lengths: why the profile's fixed lengths are not kept, if they are not.
    """
    out = {} if lengths is None else {"ignore_eos": f"throughput, E2E and answers' lengths: {lengths}"}
    if target.bundled:
        return out
    out["engine_logs"] = f"queue time: {PREFIX}: a foreign server keeps its request log to itself"
    if (why := target.lacking("metrics")) is not None:
        out["metrics"] = f"requests running and waiting, KV blocks, preemptions: {why}"
    if (why := target.lacking("running_usage")) is not None:
        out["running_usage"] = (
            "gaps between tokens that came in one chunk: counted by chunks and the final usage, where a chunk of text "
            f"without a count holds one token: {why}"
        )
    return out


def load_json(
    records: pl.DataFrame, run: RunInfo, profile: Profile, header: Header, *, fixed_output: bool | None = None
) -> dict[str, Any]:
    """``load.json`` from the raw records.

    Args:
        fixed_output: whether the server went on to the length that was asked for; None: as the profile wanted.
    """
    windows, own_s = {w.name: (w.from_s, w.to_s) for w in _windows(run)}, _own_s(run)
    goodput = profile.goodput.model_dump() if profile.goodput else None
    fixed = _fixed(profile) if fixed_output is None else fixed_output

    def figures(names: list[str]) -> dict[str, Any]:
        mine = {n: windows[n] for n in names}
        return summarise(records, mine, fixed_output=fixed, goodput=goodput, own_s=own_s)

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


def _figures(target: Target) -> dict[str, Any]:
    """``/info`` and ``/metrics``. A foreign server may have neither: null.

    Raises:
        SeatrialError: the bundled engine has no ``/info``, or is gone.
    """
    target.check_alive()
    with httpx.Client(headers=target.key.headers) as http:
        try:
            answer = http.get(f"{target.base_url}/info", timeout=30)
            info = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError) as e:
            target.check_alive()
            if target.bundled:
                raise SeatrialError(f"{target.base_url}/info: {e}") from e
            info = None
        found = {"info": info if isinstance(info, dict) else None, "metrics": read_metrics(http, target.base_url)}
        return dict(target.key.scrub(found))


def _header(target: Target, workload: str, digest: str, measured_at: str, info: dict[str, Any] | None) -> Header:
    model, engine, quantisation = target.identities
    return Header(
        model=model,
        engine=engine,
        quantisation=quantisation,
        workload=Named(name=workload, digest=digest),
        machine=this_machine(),
        measured_at=measured_at,
        engine_requested=target.engine_requested,
        engine_derived={**target.engine_derived, **dict((info or {}).get("derived") or {})},
    )
