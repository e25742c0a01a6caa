"""Stage ``gate``: judges every tier under the policy and writes reports/verdict.json. Exits 0 whatever the verdict."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.files import write_json
from pipeline.gate.attempts import attempt_of, record
from pipeline.gate.context import Context
from pipeline.gate.diagnosis import diagnose
from pipeline.gate.explain import explain
from pipeline.gate.inputs import EVALSET, input_digests, read_json, read_tier
from pipeline.gate.judge import judge_tier, waivers_now, what_changed
from pipeline.gate.policy import read_policy
from pipeline.gate.verdict import VERDICT, what_was_asked
from pipeline.params import Params, load_params
from pipeline.release.record import current_release
from pipeline.stage import run_main, stage


def judge(params: Params, now: datetime) -> dict[str, Any]:
    """The content of verdict.json.

    Raises:
        SeatrialError: a policy or release record that does not parse. Missing results are judged, not raised.
    """
    policy = read_policy(params.gate, params.tiers)
    baseline = current_release()
    evalset, problem = None, None
    try:
        evalset = read_json(EVALSET)
    except FileNotFoundError:
        problem = f"{EVALSET} is missing"
    except (OSError, ValueError) as e:
        problem = f"{EVALSET} cannot be read: {e}"
    runs = {tier: read_tier(tier) for tier in params.tiers}
    reference, candidate = runs[params.release.reference], runs[params.release.candidate]
    contexts = {t: Context(run, reference, evalset, problem, baseline, policy) for t, run in runs.items()}
    tiers = {tier: judge_tier(context, now.date()) for tier, context in contexts.items()}
    said = tiers[candidate.tier]
    as_of = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "schema_version": 1,
        "as_of": as_of,
        "verdict": said["verdict"],
        "reason": said["reason"],
        "candidate": candidate.tier,
        "reference": reference.tier,
        "baseline": None if baseline is None else {"name": baseline.name, "promoted_at": baseline.promoted_at},
        "policy": policy.name,
        "policy_digest": policy.digest,
        "attempts": record(attempt_of(candidate, policy, said["verdict"], as_of)),
        "what_changed": what_changed(contexts[candidate.tier]),
        "tiers": tiers,
        "diagnosis": diagnose(candidate, reference, said),
        "waivers": waivers_now(policy, now.date()),
        "inputs": input_digests(params.tiers),
        "asked": what_was_asked(params),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.gate", description=__doc__)
    parser.add_argument("--explain", action="store_true", help="say what the policy can detect, and judge nothing")
    explained = parser.parse_args().explain
    params = load_params()
    if explained:
        print(explain(read_policy(params.gate, params.tiers), params.evaluation.evalset))
        return
    with stage("gate") as s:
        value = judge(params, datetime.now(UTC))
        try:
            write_json(VERDICT, value)
        except ValueError as e:
            raise SeatrialError(f"a figure of the verdict is not finite ({e}); the verdict is not written") from e
        for tier, judged in value["tiers"].items():
            s.say(f"{tier}: {judged['verdict']}")
        s.say(f"verdict: {value['verdict']}. {value['reason']}")


if __name__ == "__main__":
    run_main(main)
