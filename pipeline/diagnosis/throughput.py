"""Throughput: how full the batch was, how much of the token budget was used, and what kept more from running."""

from __future__ import annotations

import polars as pl

from pipeline.diagnosis.causes import Cause, Finding
from pipeline.diagnosis.inputs import Run
from pipeline.diagnosis.told import restarted, throughput_causes

WORSE = 0.95  # of the other run's rate
OFTEN = 0.1  # of the steps
FULL = 0.95  # of the pool or of the batch
LEAKED = 0.02  # of the pool, in use while nothing runs


def throughput(run: Run, against: Run | None) -> Finding:
    """Occupancy, budget use, KV limit, admission, over all stages."""
    symptom = "throughput"
    rate = ((run.load or {}).get("overall") or {}).get("output_tokens_per_s")
    if rate is None:
        return Finding(symptom, "not measured", "no rate")
    other = None if against is None else ((against.load or {}).get("overall") or {}).get("output_tokens_per_s")
    text = f"{rate:.1f} output tokens a second" + (f"; {against.name}: {other:.1f}" if other and against else "")
    state = "measured" if not other else "worse" if rate < WORSE * other else "as before"
    if run.steps is None or not run.steps.height:
        causes, told = throughput_causes(run)
        found = (*_failing(run, against), *causes)
        return Finding(symptom, state, f"{text}; the engine's step log was not kept with this run; {told}", found)
    steps, total = run.steps, _blocks(run)
    slots = int(run.settings.get("max_num_seqs") or 0)
    budget = int(run.settings.get("max_num_batched_tokens") or 0)
    text += f"; {float(steps['running'].mean() or 0):.1f} requests ran in a step"  # type: ignore[arg-type]
    if slots:
        text += f" of at most {slots}"
    if budget:
        tokens = (steps["prefill_tokens"] + steps["decode_requests"]).mean()
        text += f", {float(tokens or 0) / budget:.0%} of the token budget was used"  # type: ignore[arg-type]
    return Finding(symptom, state, text, _causes(run, against, steps, total, slots))


def _blocks(run: Run) -> int:
    derived = ((run.server or {}).get("info") or {}).get("derived") or {}
    return int((derived.get("ledger") or {}).get("num_blocks") or 0)


def _causes(run: Run, against: Run | None, steps: pl.DataFrame, total: int, slots: int) -> tuple[Cause, ...]:
    """In the order in which one hides the next: what fails, what leaks, what is full, what is let in."""
    found = [*_failing(run, against)]
    leak = leaked_blocks(steps)
    if total and leak > LEAKED * total:
        found.append(Cause("leak", 1.0, f"{leak} of {total} blocks stayed in use when nothing ran"))
    waiting = steps.filter(pl.col("waiting") > 0)
    share = waiting.height / steps.height
    used = float(steps["blocks_used"].max() or 0) / total if total else 0.0  # type: ignore[arg-type]
    if share >= OFTEN:
        pressed = waiting.filter((pl.col("blocks_used") >= FULL * total) | (pl.col("preempted") > 0)) if total else None
        full = waiting.filter(pl.col("running") >= slots) if slots else None
        told = f"requests waited in {share:.0%} of the steps"
        if pressed is not None and pressed.height > waiting.height / 2:
            found.append(Cause("kv_limit", share, f"{told}, with the KV pool {used:.0%} full"))
        elif full is not None and full.height > waiting.height / 2:
            found.append(Cause("batch_full", share, f"{told}, with all {slots} places taken"))
        else:
            mean = float(waiting["running"].mean() or 0)  # type: ignore[arg-type]
            found.append(Cause("admission", share, f"{told}, while {mean:.1f} of {slots} places were taken"))
    elif not found:
        found.append(Cause("offered_load", 1 - share, f"requests waited in {share:.0%} of the steps"))
    return tuple(found)


def leaked_blocks(steps: pl.DataFrame) -> int:
    """Blocks in use after the last step that left nothing running."""
    idle = steps.filter((pl.col("running") == 0) & (pl.col("waiting") == 0))
    return int(idle["blocks_used"][-1]) if idle.height else 0


def _failing(run: Run, against: Run | None) -> tuple[Cause, ...]:
    """A server that began anew; requests that failed, and answers that end early and say they are whole; more of them
    than in the other run.
    """
    if run.records is None:
        return ()
    found = [*restarted(run)]
    rows = run.records.filter(pl.col("phase") == "measured")
    then = None if against is None or against.records is None else against.records.filter(pl.col("phase") == "measured")

    def share(r: pl.DataFrame | None, what: pl.Expr) -> float:
        return 0.0 if r is None or not r.height else r.filter(what).height / r.height

    failed = ~pl.col("status").is_in(["ok", "abandoned"])  # a user who leaves is the profile's doing
    if (mine := share(rows, failed)) > share(then, failed):
        reason = rows.filter(failed)["reason"].drop_nulls().mode()
        said = f": {reason[0]}" if len(reason) else ""
        found.append(Cause("failing", mine, f"{mine:.1%} of {rows.height} requests failed{said}"))
    short = (pl.col("status") == "ok") & (pl.col("finish_reason") == "length")
    short &= pl.col("output_tokens") < pl.col("max_tokens")
    if (mine := share(rows, short)) > share(then, short):
        found.append(Cause("cut_short", mine, f"{mine:.1%} of {rows.height} answers have fewer tokens than asked for"))
    return tuple(found)
