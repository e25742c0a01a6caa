"""The evaluate stage: the regression set against one tier, or against a server that runs already.

python -m pipeline.evaluation --tier int8
python -m pipeline.evaluation --tier int8 --target vllm
python -m pipeline.evaluation --tier mine --base-url http://127.0.0.1:8000 --model my-model
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation import outputs, results
from pipeline.evaluation.cache import open_cache
from pipeline.evaluation.items import EVALSETS, load_evalset
from pipeline.evaluation.run import answer_all, judge_all, select
from pipeline.load.metrics import Sampler
from pipeline.load.restarts import restarts
from pipeline.params import Params, load_params
from pipeline.provenance import utc_now
from pipeline.stage import Stage, run_main, stage
from pipeline.targets.choose import Choice, add_options, choose
from pipeline.targets.probe import with_capabilities
from pipeline.targets.target import LOGS


def main(argv: Sequence[str] | None = None) -> None:
    """
    Raises:
        SeatrialError: unknown tier, broken evalset, a server that does not come up, dies or answers nonsense.
    """
    args = _arguments(argv)
    params = load_params()
    choice = choose(params, args.tier, args.target, args.base_url, args.model)
    with stage("evaluate", args.tier, measuring=True) as s:
        try:
            _evaluate(s, params, choice)
        except SeatrialError as e:
            raise SeatrialError(f"{s.label}: {e}") from e


def _evaluate(s: Stage, params: Params, choice: Choice) -> None:
    evaluation = params.evaluation
    folder = EVALSETS / evaluation.evalset
    evalset = load_evalset(folder)
    items = select(evalset.items, evaluation.items)
    workload = results.workload_identity(evalset, folder, items, evaluation.items)
    began_at, began = utc_now(), time.monotonic()
    with choice.open(params.engine, LOGS / f"evaluate@{choice.tier}.log") as who:
        s.say(f"{who.base_url} answers after {time.monotonic() - began:.1f} s; {len(items)} items of {workload.name}")
        who = with_capabilities(who)
        asked = time.monotonic()
        asked_unix_s = time.time()
        with (
            open_cache(who.cache_identity) as cache,
            s.progress(len(items), "items") as bar,
            Sampler(who.base_url, None, who.key.headers) as seen,
        ):
            answered = answer_all(items, who, cache, evaluation.concurrency, bar.advance)
        wall_s = time.monotonic() - asked
    # The server has ended: its memory and its cores are free for model-written code.
    with s.progress(len(items), "grading") as bar:
        judged = judge_all(answered, bar.advance)
    reused = [a.reply.answered_at for a in answered if a.reused and a.reply]
    head = results.header(who, workload, min([began_at, *reused]))
    rows = [results.row(j) for j in judged]
    graded = [r for r in rows if not results.for_people(r)]
    unjudged = [r for r in rows if results.for_people(r)]
    outcome = results.summary(
        evalset, graded, head, wall_s=wall_s, reused=len(reused), partial=evaluation.items is not None,
        left_to_people=len(unjudged), capabilities=who.capabilities,
    )  # fmt: skip
    outcome["server"] = {"restarts": [r.json() for r in restarts(seen.scrapes, asked_unix_s)]}
    outputs.remember(outputs.of_answers(answered, f"{who.model_name} {who.model.digest[:12]}"))
    _report(s.say, outcome, results.write(choice.tier, outcome, graded, unjudged))


def _report(say: Callable[[str], None], outcome: dict[str, Any], written: Path) -> None:
    say(
        f"{outcome['correct']:.0f} of {outcome['n']} right, {outcome['errors']} errors, {outcome['cut_off']} cut off, "
        f"{outcome['usage']['answers_reused']} answers reused -> {written}"
    )
    for scenario, why in outcome["sees_little"].items():
        say(f"{scenario}: {why}")
    if outcome["left_to_people"]:
        say(f"{outcome['left_to_people']} answers are for people to judge: seatrial review sample")
    lacking = outcome["not_measurable_by"]
    for found in lacking.values():
        say(f"{found['items']} items ({', '.join(found['kinds'])}) are {found['why']}")
    if isolated := outcome["not_measurable"] - sum(found["items"] for found in lacking.values()):
        say(
            f"{isolated} items were not measurable here and count as wrong: model-written code only "
            "runs isolated. Allow user namespaces (Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0) or "
            "run as root with CAP_SYS_ADMIN"
        )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m pipeline.evaluation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--tier",
        required=True,
        help="artifacts/TIER is served, unless the target has a model of its own; results go to results/TIER/eval",
    )
    add_options(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_main(main)
