"""The advice of ``seatrial advise`` on what this run measured, each sentence with the files that its figures are of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from engine.ledger import ModelShape, kv_bytes_per_token
from pipeline.advise.facts import Facts, TierFacts, narrow_kv, outcomes_of, refuse_different_items
from pipeline.advise.judge import LOSS_POINTS, Load, advise
from pipeline.errors import SeatrialError
from pipeline.fidelity.records import RECORDS
from pipeline.report.fidelity import Fidelity
from pipeline.report.inputs import RunData, TierData
from pipeline.report.records import FILES, Record, record_at


@dataclass(frozen=True)
class Told:
    text: str
    sources: list[Record]


@dataclass(frozen=True)
class Panel:
    """``reason``: why there is no advice."""

    told: list[Told]
    load: Load
    reason: str = ""


def advice_of(run: RunData, fidelity: Fidelity) -> Panel:
    """For the most that the engine is configured to take. Nothing raises: what cannot be read becomes a reason."""
    engine = run.params.engine
    load = Load(engine.max_num_seqs, engine.max_model_len, LOSS_POINTS)
    try:
        found = advise(_facts(run, fidelity), load)
    except SeatrialError as e:
        return Panel([], load, str(e))
    except (KeyError, TypeError, ValueError) as e:
        return Panel([], load, f"results of the tiers cannot be read ({type(e).__name__}: {e}); run their stages again")
    return Panel([Told(a.text, [r for s in dict.fromkeys(a.sources) if (r := record_at(run, s))]) for a in found], load)


def _facts(run: RunData, fidelity: Fidelity) -> Facts:
    """
    Raises:
        SeatrialError: no plan of the reference, or tiers that were asked different items.
        KeyError, TypeError, ValueError: a file that is not what its stage writes.
    """
    reference = run.tiers.get(run.reference)
    if reference is None or reference.plan is None:
        why = f"{run.reference} is no tier of this run" if reference is None else reference.why("plan")
        raise SeatrialError(f"the reference has no memory ledger: {why}")
    try:
        shape = ModelShape.model_validate(reference.plan.get("shape"))
    except ValidationError as e:
        raise SeatrialError(f"the plan of {run.reference} has no shape of a model; run its stage plan again") from e
    kv_dtype = str(reference.plan["kv_dtype"])
    facts = Facts(
        _tier(run, reference, fidelity),
        [_tier(run, t, fidelity) for t in run.tiers.values() if t is not reference and t.plan is not None],
        kv_dtype,
        kv_bytes_per_token(shape, kv_dtype),
        narrow_kv(shape),
    )
    refuse_different_items(facts)
    return facts


def _tier(run: RunData, tier: TierData, fidelity: Fidelity) -> TierFacts:
    folder = run.folders.get(tier.name, Path("results") / tier.name)
    return TierFacts(
        tier.name,
        int((tier.plan or {})["ledger"]["weights_bytes"]),
        folder / FILES["plan"],
        None if tier.items is None else outcomes_of(tier.items),
        folder / FILES["items"],
        fidelity.kl_of(tier.name),
        RECORDS / f"{tier.name}.json",
    )
