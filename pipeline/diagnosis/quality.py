"""Quality: the tier, or the engine where that is the same; a context cut, a template, answers that do not stop."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pipeline.diagnosis.causes import SHOWN, Cause, Finding
from pipeline.diagnosis.inputs import Run
from pipeline.gate.statistics.paired import mcnemar

LOSS = 0.01  # of the items: fewer lost on balance is no loss
OTHER_PROMPTS = 0.1  # of the items whose prompts have other lengths
ENDLESS = 0.03  # more answers at their limit than before
GOES_ON = 0.5  # of them begin with the answer that ended
SURE = 0.05  # p-value of the loss outside long documents
LONG_TIMES = 2.0  # the loss in long documents against that in the rest
Items = dict[str, dict[str, Any]]


def quality(run: Run, against: Run | None) -> Finding:
    """By the same items in both runs, in the order in which one would explain the next."""
    symptom = "quality"
    if run.items is None:
        return Finding(symptom, "not measured", "no answers to the regression set")
    mine = {i["id"]: i for i in run.items}
    accuracy = sum(i["score"] for i in run.items) / max(1, len(mine))
    if against is None or against.items is None:
        return Finding(symptom, "measured", f"accuracy {accuracy:.1%}; give --against to hold it against another run")
    theirs = {i["id"]: i for i in against.items}
    both = sorted(mine.keys() & theirs.keys())
    if not both:
        return Finding(symptom, "not measured", f"{run.name} and {against.name} were asked no item in common")
    lost = sum(theirs[k]["score"] - mine[k]["score"] for k in both) / len(both)
    figure = f"accuracy {accuracy:.1%}, {-100 * lost:+.1f} points against {against.name} on {len(both)} items"
    causes = [c for c in (_template(mine, theirs, both), _endless(mine, theirs, both)) if c is not None]
    if lost < LOSS and not causes:
        return Finding(symptom, "as before", figure)
    if lost >= LOSS:
        same = run.quantisation is not None and run.quantisation == against.quantisation
        causes += _where(mine, theirs, both, "engine" if same else "tier")
    return Finding(symptom, "worse" if lost >= LOSS else "as before", figure, tuple(causes[:SHOWN]))


def _template(mine: Items, theirs: Items, both: list[str]) -> Cause | None:
    """A greedy prompt has as many tokens as before, unless template, BOS or tokenizer changed."""
    known = [k for k in both if mine[k].get("prompt_tokens") and theirs[k].get("prompt_tokens")]
    by = [mine[k]["prompt_tokens"] - theirs[k]["prompt_tokens"] for k in known]
    changed = [d for d in by if d]
    if not known or len(changed) < OTHER_PROMPTS * len(known):
        return None
    same = len(set(changed)) == 1
    how = f"by {changed[0]:+d} token{'s' if abs(changed[0]) > 1 else ''} each" if same else f"by {min(by)} to {max(by)}"
    return Cause(
        "template", len(changed) / len(known), f"{len(changed)} of {len(known)} prompts differ in length, {how}"
    )


def _endless(mine: Items, theirs: Items, both: list[str]) -> Cause | None:
    """Answers that used to end run to their limit, and say what they said until then: where most say something else, a
    model that is lost never ends, and that is no fault of stop handling.
    """
    generated = [k for k in both if mine[k]["kind"] != "choice"]
    now, then = (sum(x[k]["finish_reason"] == "length" for k in generated) for x in (mine, theirs))
    if not generated or (now - then) < ENDLESS * len(generated):
        return None
    grown = [k for k in generated if mine[k]["finish_reason"] == "length" != theirs[k]["finish_reason"]]
    texts = [(a, b) for k in grown if (a := mine[k].get("answer")) and (b := theirs[k].get("answer"))]
    if sum(a.startswith(b.strip()) for a, b in texts) < GOES_ON * len(texts):
        return None
    figure = f"{then} -> {now} of {len(generated)} answers end at their limit"
    return Cause("stop_handling", (now - then) / len(generated), figure)


def _where(mine: Items, theirs: Items, both: list[str], throughout: str) -> list[Cause]:
    """Whether the loss is in long documents, or throughout: then it is the fault of ``throughout``. An engine that
    errs on short prompts too, or a tier that surely does, is at fault before any cut of the context is.
    """
    losses: dict[str, list[float]] = defaultdict(list)
    for k in both:
        losses[mine[k]["kind"]].append(theirs[k]["score"] - mine[k]["score"])
    means = {kind: sum(v) / len(v) for kind, v in losses.items()}
    told = ", ".join(f"{kind} {-100 * m:+.1f}" for kind, m in sorted(means.items(), key=lambda x: -x[1])[:SHOWN])
    rest = [v for kind, values in losses.items() if kind != "long_context" for v in values]
    elsewhere = sum(rest) / len(rest) if rest else 0.0
    long = means.get("long_context", 0.0)
    if long > 0 and long > LONG_TIMES * max(elsewhere, LOSS):
        surely = throughout == "engine" or mcnemar(sum(v > 0 for v in rest), sum(v < 0 for v in rest)) < SURE
        codes = [throughout, "context"] if elsewhere >= LOSS and surely else ["context"]
        return [Cause(code, 1.0, f"points by kind: {told}") for code in codes]
    return [Cause(throughout, 1.0, f"points by kind: {told}")]
