"""Releases: only what may ship is recorded, and what is recorded is what later runs are held against."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import SeatrialError
from pipeline.files import write_json
from pipeline.gate.inputs import IN_SERVICE, RESULTS
from pipeline.gate.verdict import VERDICT, verdict_exit_code
from pipeline.provenance import utc_now
from pipeline.release.record import RELEASES, Release, compose, current_release, next_sequence
from tests.pipeline.gate.conftest import clean_run, run  # noqa: F401 (fixtures)
from tests.pipeline.gate.factory import MACHINE, Row, header, items, records, write_items, write_load
from tests.pipeline.gate.helpers import (
    change_params,
    edit_json,
    items_of_int8,
    judged,
    load_of_int8,
    loses_a_pinned_case,
    rule_of,
    slow,
)

WAIVER = {"rule": "pinned", "tier": "int8", "reason": "known, being mended", "owner": "release team"}


def _promote(name: str = "2026.12", owner: str = "release team") -> Path:
    """A record as `promote` writes it, without git."""
    found = compose(name, owner, "", verdict=VERDICT, results=RESULTS, artifacts=Path("artifacts"))
    path = RELEASES / f"{name}.json"
    write_json(path, Release(**found.model_dump(), promoted_at=utc_now(), sequence=next_sequence()).model_dump())
    return path


def _waive(expires: str) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["gate"].update(waivers=[WAIVER | {"expires": expires}])


def test_a_record_is_small_and_says_what_went_out(run: Path) -> None:  # noqa: F811
    value = judged()
    path = _promote()
    assert path == RELEASES / "2026.12.json"
    assert path.stat().st_size < 40_000
    release = current_release()
    assert release is not None
    assert (release.tier, len(release.scores), sum(release.scores.values())) == ("int8", 320, 160)
    assert (release.policy, release.policy_digest) == ("pull_request", value["policy_digest"])
    assert (release.attempts, release.waivers) == (1, [])
    assert release.evaluation.quantisation.name == release.load.quantisation.name == "int8"
    assert release.latency["short_burst"]["ttft_ms"]["p95"] > 0


def test_what_may_not_ship_is_not_promoted(run: Path) -> None:  # noqa: F811
    with pytest.raises(SeatrialError, match=r"UNDECIDED: there is no reports/verdict\.json"):
        _promote()
    items_of_int8(spoil=loses_a_pinned_case)(run)
    assert judged()["verdict"] == "hold"
    with pytest.raises(SeatrialError, match=r"HOLD: int8 is held: pinned cases.*needs a waiver in params\.yaml"):
        _promote()
    load_of_int8(count=10)(run)
    items_of_int8()(run)
    assert judged()["verdict"] == "undecided"
    with pytest.raises(SeatrialError, match="UNDECIDED: int8 is undecided"):
        _promote()
    assert not list(RELEASES.glob("*.json"))


def test_results_that_changed_after_the_verdict_are_not_promoted(run: Path) -> None:  # noqa: F811
    assert judged()["verdict"] == "ship"
    items_of_int8(flips=(1, 0))(run)
    with pytest.raises(SeatrialError, match="stale: results/int8/eval/"):
        _promote()


def test_no_waiver_releases_what_was_measured_on_a_planted_engine(run: Path) -> None:  # noqa: F811
    write_load(run, "int8", records(1), header=header("int8", "ci-load") | {"engine_derived": {"seam": "drill:Slow"}})
    change_params(
        run, lambda raw: raw["gate"].update(waivers=[WAIVER | {"rule": "provenance", "expires": "2099-01-01"}])
    )
    assert judged()["verdict"] == "ship"
    with pytest.raises(SeatrialError, match="drill:Slow planted through its seam; measure it anew"):
        _promote()


@pytest.mark.parametrize(
    ("name", "owner", "words"),
    [("../x", "team", "cannot name a release"), ("", "team", "cannot name a release"), ("a", " ", "needs an owner")],
)
def test_a_release_has_a_name_and_an_owner(run: Path, name: str, owner: str, words: str) -> None:  # noqa: F811
    judged()
    with pytest.raises(SeatrialError, match=words):
        _promote(name, owner)


def test_a_waived_release_says_so_and_a_lapsed_waiver_stops_it(run: Path) -> None:  # noqa: F811
    items_of_int8(spoil=loses_a_pinned_case)(run)
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    change_params(run, _waive(yesterday))
    assert judged(datetime.now(UTC) - timedelta(days=10))["verdict"] == "ship"
    with pytest.raises(SeatrialError, match="HOLD: the waiver of pinned for int8 by release team expired"):
        _promote()
    change_params(run, _waive("2099-01-01"))
    judged()
    _promote()
    release = current_release()
    assert release is not None
    assert [(w["rule"], w["expires"]) for w in release.waivers] == [("pinned", "2099-01-01")]


def test_a_release_makes_the_verdict_stale(run: Path) -> None:  # noqa: F811
    judged()
    _promote()
    code, text = verdict_exit_code(VERDICT)
    assert (code, "releases/, have changed since" in text) == (2, True)
    judged()
    assert verdict_exit_code(VERDICT)[0] == 0


def test_the_current_release_is_the_one_promoted_last(run: Path) -> None:  # noqa: F811
    assert current_release() is None
    judged()
    first = _promote("b")
    later = json.loads(first.read_text()) | {"name": "a", "sequence": 2}
    (RELEASES / "a.json").write_text(json.dumps(later))
    release = current_release()
    assert release is not None
    assert release.name == "a"
    (RELEASES / "broken.json").write_text("{}")
    with pytest.raises(SeatrialError, match=r"broken\.json is not a release record"):
        judged()


def test_a_reference_that_drifts_along_does_not_hide_a_loss(run: Path) -> None:  # noqa: F811
    judged()
    _promote()
    assert rule_of(judged(), "accuracy-baseline")["outcome"] == "pass"
    for tier in ("int8", "bf16"):
        write_items(run, tier, items(tier, flips=(50, 0)))
    value = judged()
    assert value["baseline"]["name"] == "2026.12"
    assert rule_of(value, "accuracy")["outcome"] == "pass"
    assert rule_of(value, "accuracy-baseline")["outcome"] == "fail"
    assert value["verdict"] == "hold"
    assert "accuracy against 2026.12 is -15.6 points, limit -6 points" in value["reason"]


def test_a_pinned_case_of_the_release_must_still_pass(run: Path) -> None:  # noqa: F811
    judged()
    _promote()
    for tier in ("int8", "bf16"):
        write_items(run, tier, items(tier, spoil=loses_a_pinned_case))
    value = judged()
    for tier in ("int8", "bf16"):
        pinned = rule_of(value, "pinned", tier)
        assert (pinned["outcome"], "sums-00 (passes in 2026.12)" in pinned["detail"]) == ("fail", True)


def test_another_evalset_cannot_be_compared_with_the_release(run: Path) -> None:  # noqa: F811
    judged()
    _promote()
    for tier in ("int8", "bf16"):
        write_items(run, tier, items(tier), header=header(tier, "core-v1!2"))
    found = rule_of(judged(), "accuracy-baseline")
    assert found["outcome"] == "undecided"
    assert "an evaluation of 2026.12" in found["would_decide"]


def _harder(row: Row) -> None:
    """A new content on which every build gets one ordinary item in eight wrong that it got right before."""
    if row["origin"] == "written" and int(row["id"][-2:]) % 8 == 0:
        row |= {"correct": False, "score": 0.0}


def _worse(row: Row) -> None:
    if row["origin"] == "written" and int(row["id"][-2:]) % 8 == 4:
        row |= {"correct": False, "score": 0.0}


def _both(row: Row) -> None:
    _harder(row)
    _worse(row)


@pytest.mark.parametrize(
    ("of_release", "of_candidate", "outcome", "split"),
    [
        (_harder, _harder, "pass", "-11.2 points: -11.2 due to the set, +0.0 due to the model"),
        (lambda row: None, _worse, "fail", "-12.5 points: +0.0 due to the set, -12.5 due to the model"),
        (_harder, _both, "fail", "-23.8 points: -11.2 due to the set, -12.5 due to the model"),
    ],
)
def test_a_release_scored_on_the_new_content_tells_the_set_from_the_model(
    run: Path,  # noqa: F811
    of_release: Callable[[Row], None],
    of_candidate: Callable[[Row], None],
    outcome: str,
    split: str,
) -> None:
    judged()
    _promote()
    new = header("int8", "core-v1!2")
    for tier in ("int8", "bf16"):  # the reference drifts along, so that this rule alone can see the candidate's part
        write_items(run, tier, items(tier, spoil=of_candidate), header=header(tier, "core-v1!2"))
    write_items(run, IN_SERVICE, items("int8", spoil=of_release), header=new)
    value = judged()
    found = rule_of(value, "accuracy-baseline")
    assert (found["outcome"], value["verdict"]) == (outcome, "ship" if outcome == "pass" else "hold")
    assert "the set has changed since 2026.12, which was scored on the new content too: " in found["detail"]
    assert split in found["detail"]
    write_items(run, IN_SERVICE, items("int8", spoil=_worse), header=new)
    assert verdict_exit_code(VERDICT)[0] == 2, "stale: it rests on these scores"


def test_several_changes_at_once_are_called_confounded(run: Path) -> None:  # noqa: F811
    judged()
    _promote()
    for tier in ("int8", "bf16"):
        changed = {"engine": "e!2", "model": "m!2"}
        write_items(run, tier, items(tier), header=header(tier, "core-v1", **changed))
        write_load(run, tier, records(1), header=header(tier, "ci-load", **changed))
    assert "confounded: model, engine differ from 2026.12" in rule_of(judged(), "accuracy-baseline")["detail"]


def test_latency_is_compared_with_the_release_on_the_same_machine_and_workload_only(run: Path) -> None:  # noqa: F811
    rule = "ttft-p95-baseline"
    judged()
    _promote()
    load_of_int8(change=slow(1.5, "ttft"))(run)
    found = rule_of(judged(), f"{rule}/short_burst")
    assert (found["outcome"], round(found["value"])) == ("undecided", 50)
    assert "interleaved rounds of 2026.12" in found["would_decide"]
    elsewhere = header("int8", "ci-load") | {"machine": MACHINE.model_copy(update={"cores": 64}).model_dump()}
    load_of_int8(elsewhere)(run)
    found = rule_of(judged(), rule)
    assert (found["outcome"], "not compared across machines" in found["detail"]) == ("not_applicable", True)
    load_of_int8(header("int8", "ci-load!2"))(run)
    found = rule_of(judged(), rule)
    assert (found["outcome"], "measured under ci-load" in found["detail"]) == ("not_applicable", True)


def test_results_without_identity_are_not_recorded(run: Path) -> None:  # noqa: F811
    judged()
    edit_json("results/int8/load/load.json", lambda v: v.update(header={}))(run)

    def lift(raw: dict[str, Any]) -> None:
        rules = raw["gate"]["policies"]["pull_request"]["rules"]
        raw["gate"]["policies"]["pull_request"]["rules"] = [r for r in rules if r["kind"] != "provenance"]

    change_params(run, lift)
    assert judged()["verdict"] == "ship"
    with pytest.raises(SeatrialError, match="int8 cannot be recorded: incomplete provenance"):
        _promote()
