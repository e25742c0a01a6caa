"""Stage ``gate``: judges every tier under the policy into reports/verdict.json and junit.xml. Exits 0 in any case."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from pipeline.errors import SeatrialError
from pipeline.files import atomic_write, write_json
from pipeline.gate.attempts import attempt_of, record
from pipeline.gate.context import Context
from pipeline.gate.diagnosis import diagnose
from pipeline.gate.inputs import EVALSET, IN_SERVICE, input_digests, read_json, read_review, read_tier
from pipeline.gate.judge import judge_tier, waivers_now, what_changed, what_would_settle
from pipeline.gate.junit import junit
from pipeline.gate.model import Attempt, Baseline, DiagnosisRow, Verdict
from pipeline.gate.policy import read_policy
from pipeline.gate.verdict import JUNIT, VERDICT, what_was_asked
from pipeline.params import Params, load_params
from pipeline.release.interrupted import baseline as release_in_service
from pipeline.stage import run_main, stage


def judge(params: Params, now: datetime) -> Verdict:
    """The content of verdict.json.

    Raises:
        SeatrialError: a policy or release record that does not parse, or a record that was not committed. Missing
            results are judged, not raised.
    """
    policy = read_policy(params.gate, params.measured)
    baseline = release_in_service()
    evalset, problem = None, None
    try:
        evalset = read_json(EVALSET)
    except FileNotFoundError:
        problem = f"{EVALSET} is missing"
    except (OSError, ValueError) as e:
        problem = f"{EVALSET} cannot be read: {e}"
    runs = {tier: read_tier(tier) for tier in params.measured}
    reference, candidate = runs[params.release.reference], runs[params.release.candidate]
    review, unread = read_review()
    again = None if baseline is None else read_tier(IN_SERVICE)
    contexts = {
        t: Context(run, reference, evalset, problem, baseline, policy, review, unread, again) for t, run in runs.items()
    }
    tiers = {tier: judge_tier(context, now.date()) for tier, context in contexts.items()}
    said = tiers[candidate.tier]
    as_of = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    return Verdict(
        as_of=as_of,
        verdict=said.verdict,
        reason=said.reason,
        candidate=candidate.tier,
        reference=reference.tier,
        baseline=None if baseline is None else Baseline(name=baseline.name, promoted_at=baseline.promoted_at),
        policy=policy.name,
        policy_digest=policy.digest,
        limits_for=None if policy.limits_for is None else policy.limits_for.name,
        budget_minutes=policy.budget_minutes,
        settle=what_would_settle(said, policy.budget_minutes),
        attempts=[Attempt(**a) for a in record(attempt_of(candidate, policy, said.verdict, as_of))],
        what_changed=what_changed(contexts[candidate.tier]),
        tiers=tiers,
        diagnosis=[DiagnosisRow(**r) for r in diagnose(candidate, reference, said.model_dump(mode="json"))],
        waivers=waivers_now(policy, now.date()),
        inputs=input_digests(params.measured),
        asked=what_was_asked(params),
    )


def main() -> None:
    argparse.ArgumentParser(prog="python -m pipeline.gate", description=__doc__).parse_args()
    params = load_params()
    with stage("gate") as s:
        value = judge(params, datetime.now(UTC))
        write_verdict(value)
        for tier, judged in value.tiers.items():
            s.say(f"{tier}: {judged.verdict}")
        s.say(f"verdict: {value.verdict}. {value.reason}")


def write_verdict(value: Verdict) -> None:
    """verdict.json and junit.xml.

    Raises:
        SeatrialError: a figure in it is not finite.
    """
    try:
        write_json(VERDICT, value.model_dump(mode="json"))
    except ValueError as e:
        raise SeatrialError(f"a figure of the verdict is not finite ({e}); the verdict is not written") from e
    atomic_write(JUNIT, junit(value))


if __name__ == "__main__":
    run_main(main)
