"""Comparisons whose right answer is known, measured one after the other and put on their records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.ab.compare import compare_builds
from pipeline.ab.sides import Project, side_of
from pipeline.drill import aa, power
from pipeline.drill.comparisons import Planted, add, of, read
from pipeline.errors import SeatrialError
from pipeline.files import write_json
from pipeline.params import Params
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
            try:
                if not value["looks"]["taken"] and value["broken_off"] is None:  # it could not have held
                    raise SeatrialError(f"not counted: {value['reason']}")
                add(of(value, what), record)
                s.say(f"{label}: {value['verdict']} after {value['minutes']:.1f} minutes")
            except SeatrialError as e:
                s.say(f"{label}: {e}")


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
