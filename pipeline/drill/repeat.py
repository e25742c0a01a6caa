"""Comparisons whose right answer is known, measured one after the other and put on their records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.ab.compare import compare_builds
from pipeline.ab.rounds import THROUGHPUT, base_first
from pipeline.ab.sides import Project, side_of
from pipeline.drill import aa, power
from pipeline.drill.comparisons import Comparison, Planted, add, read
from pipeline.errors import SeatrialError
from pipeline.files import write_json
from pipeline.params import AbParams, Params
from pipeline.provenance import Machine, digest_of
from pipeline.stage import Stage, stage

SEAMS = "pipeline.drill.seams"


def repeat(
    params: Params, times: int, minutes: float | None, tier: str | None, planted: Sequence[Planted | None], out: Path
) -> None:
    """``times`` of each of ``planted``, in turn; each has its line on a record as soon as it has ended.

    Args:
        minutes: budget of each; None: the policy's.
        planted: into the candidate; None: nothing, which makes an A/A.
    """
    policy = params.ab if minutes is None else params.ab.model_copy(update={"budget_minutes": minutes})
    project = Project.here(params, tier)
    artifact = str(Path("artifacts") / project.tier)
    with stage("drill", measuring=True, note=False) as s:
        for number in range(times * len(planted)):
            what = planted[number % len(planted)]
            record, kind = (aa.RECORD, "aa") if what is None else (power.RECORD, "power")
            done = len(read(record))
            base = side_of(artifact, project)
            candidate = base if what is None else side_of(seam_of(what), project)
            seed = params.load.seed + 1000 * done  # other traffic in each comparison
            label = f"{what or 'A/A'}, {number + 1} of {times * len(planted)}"
            value = compare_builds(base, candidate, policy, seed, out / kind / "rounds", Stage("drill", label))
            write_json(out / kind / f"{done + 1:04d}.json", value)
            if not value["looks"]["taken"] and value["broken_off"] is None:  # it could not have held
                s.say(f"{label}: not counted: {value['reason']}")
                continue
            add(of(value, what), record)
            s.say(f"{label}: {value['verdict']} after {value['minutes']:.1f} minutes")


def of(value: dict[str, Any], planted: Planted | None = None) -> Comparison:
    """From the content of ab.json.

    Raises:
        SeatrialError: the sides differ in what they should not, or it broke off by no fault of the candidate's.
    """
    if value["broken_off"] is not None and value["verdict"] != "hold":  # counted, it would make false holds look rarer
        raise SeatrialError(f"not counted: {value['reason']}")
    if value["what_differs"] != ([] if planted is None else ["engine"]):
        differ = ", ".join(value["what_differs"]) or "nothing"
        expected = "nothing, for it is an A/A" if planted is None else "engine, by what was planted"
        raise SeatrialError(f"not counted: the sides differ in {differ}, expected: {expected}")
    blocking = [f"{stage}/{figure}" for stage, figures in value["policy"]["blocking"].items() for figure in figures]
    pairs = _whole(value["rounds"])
    known = [value["resolves"][n] for n in blocking if n in value["resolves"]]
    widest = max(known, key=lambda r: r["half_width_percent"], default=None)
    return Comparison(
        as_of=value["as_of"],
        planted=planted,
        verdict=value["verdict"],
        reason=value["reason"],
        engine=value["base"]["engine"]["digest"],
        settings=AbParams.model_validate(value["policy"]),
        policy=digest_of(value["policy"] | {"traffic": value["traffic_digest"]}),
        machine_class=Machine.model_validate(value["machine"]).machine_class,
        minutes=value["minutes"],
        rounds=len(value["rounds"]),
        half_width_percent=None if widest is None else round(widest["half_width_percent"], 3),
        standard_error_percent=None if widest is None else round(widest["standard_error_percent"], 3),
        resolves_percent={} if widest is None else _rounded(widest["resolves_percent_after_minutes"]),
        base_first=[base_first(number) for number in pairs],
        worse={name: _worse(list(pairs.values()), *name.split("/")) for name in blocking},
    )


def _rounded(after: dict[str, float | None]) -> dict[str, float | None]:
    return {minutes: None if v is None else round(v, 2) for minutes, v in after.items()}


def _whole(rounds: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By the number of the pair its rounds by side, of pairs neither of whose rounds is void."""
    pairs: dict[int, dict[str, Any]] = {}
    for r in rounds:
        if r["void"] is None:
            pairs.setdefault(r["pair"], {})[r["side"]] = r
    return {number: p for number, p in sorted(pairs.items()) if len(p) == 2}


def _worse(pairs: Sequence[dict[str, Any]], stage: str, figure: str) -> list[float]:
    values = [[p[side]["stages"].get(stage, {}).get(figure) for side in ("base", "candidate")] for p in pairs]
    if any(not isinstance(v, float) or v <= 0 for pair in values for v in pair):
        return []
    sign = -1 if figure == THROUGHPUT else 1
    return [round(sign * math.log(b / a), 6) for a, b in values]


def seam_of(what: Planted) -> str:
    return f"seam:{SEAMS}:{what.part.capitalize()}Slower{what.percent:g}"


def planted_of(text: str) -> Planted:
    """From ``prefill:10``.

    Raises:
        SeatrialError: it is something else.
    """
    part, _, percent = text.partition(":")
    if part not in ("prefill", "decode") or not percent.isdecimal() or int(percent) == 0:
        raise SeatrialError(f"--slower is {text!r}, expected prefill:PERCENT or decode:PERCENT, for instance decode:10")
    return Planted(part="prefill" if part == "prefill" else "decode", percent=int(percent))
