"""The release in service, asked what the set has become: what the gate compares with once the set has changed.

After a rotation, or any other new content, the scores in a release's record are of other items. Its build is booted
from that record (engine, settings and artifact as they were released), asked the present items and judged by the
present graders into ``results/in-service/eval``. The gate takes that for the release's scores as long as it is of this
build and of the run's content; what moved between the two contents is the set's doing, the rest is the candidate's.
"""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.errors import SeatrialError
from pipeline.evaluation import results
from pipeline.evaluation.items import EVALSETS, load_evalset
from pipeline.evaluation.run import select
from pipeline.params import Params
from pipeline.provenance import this_machine, utc_now
from pipeline.stage import Stage

LOG = Path(".seatrial/logs/rescore.log")


def rescore(params: Params, s: Stage) -> Path:
    """Writes ``results/in-service/eval``; its path.

    Raises:
        SeatrialError: nothing was released, what was released is not here any more, or its server does not answer.
        ArtifactError: its artifact is not what the manifest says.
    """
    from pipeline.ab.quality import judged_answers
    from pipeline.ab.sides import Project, side_of
    from pipeline.gate.inputs import IN_SERVICE
    from pipeline.release.interrupted import baseline

    release = baseline()
    if release is None:
        raise SeatrialError("nothing has been released, so there is no release to score again")
    evaluation, folder = params.evaluation, EVALSETS / params.evaluation.evalset
    evalset = load_evalset(folder)
    items = select(evalset.items, evaluation.items)
    side = side_of(f"release:{release.name}", Project.here(params, release.tier))
    model, wanted = side.identities[0], release.evaluation.model
    if model.digest != wanted.digest:
        raise SeatrialError(f"{release.name} was released with {wanted.name}, but its artifact here is of {model.name}")
    workload = results.workload_identity(evalset, folder, items, evaluation.items)
    began_at, began = utc_now(), time.monotonic()
    LOG.parent.mkdir(parents=True, exist_ok=True)
    judged = judged_answers(side, items, evaluation.concurrency, LOG, s)
    # The side was held against the record: it is that build, on this content and machine.
    head = release.evaluation.model_copy(
        update={"workload": workload, "machine": this_machine(), "measured_at": began_at, "engine_derived": {}}
    )
    rows = [results.row(j) for j in judged]
    graded = [r for r in rows if not results.for_people(r)]
    unjudged = [r for r in rows if results.for_people(r)]
    outcome = results.summary(
        evalset, graded, head, wall_s=time.monotonic() - began, reused=0, partial=evaluation.items is not None,
        left_to_people=len(unjudged),
    )  # fmt: skip
    written = results.write(IN_SERVICE, outcome, graded, unjudged)
    s.say(f"{release.name}: {outcome['correct']:.0f} of {outcome['n']} right on {workload.name} -> {written}")
    return written
