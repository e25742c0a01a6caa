"""A clean run ships; each planted fault is held or left undecided, and the rule that saw it is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import SeatrialError
from pipeline.files import write_json
from pipeline.gate.__main__ import judge
from pipeline.gate.verdict import VERDICT, verdict_exit_code
from pipeline.params import load_params
from pipeline.release.record import current_release, promote
from tests.pipeline.gate.factory import Row, header, items, make_run, records, write_items, write_load

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _judge(now: datetime = NOW) -> dict[str, Any]:
    value = judge(load_params(), now)
    write_json(VERDICT, value)
    return value


def _rule(value: dict[str, Any], rule: str, tier: str = "int8") -> dict[str, Any]:
    return next(r for r in value["tiers"][tier]["rules"] if r["id"] == rule)


def _change(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    raw = yaml.safe_load((root / "params.yaml").read_text())
    change(raw)
    (root / "params.yaml").write_text(yaml.safe_dump(raw))


def test_a_clean_run_ships_twice(run: Path) -> None:
    for _ in range(2):
        value = _judge()
        assert value["verdict"] == "ship", value["reason"]
        assert {t: v["verdict"] for t, v in value["tiers"].items()} == {"bf16": "ship", "int8": "ship", "int4": "ship"}
        assert len(value["attempts"]) == 1  # the same measurements judged again are one attempt
    baseline = _rule(value, "accuracy-baseline")
    assert (baseline["outcome"], baseline["detail"]) == (
        "not_applicable", "no baseline yet: nothing has been released",
    )  # fmt: skip
    assert [r["suspect"] for r in value["diagnosis"]] == ["none"] * 4
    assert verdict_exit_code(VERDICT)[0] == 0


def _slow(factor: float, part: str) -> Callable[[Row], None]:
    def change(row: Row) -> None:
        first, due = row["token_times_s"][0], row["due_s"]
        if part == "ttft":
            shift = (first - due) * (factor - 1)
            row["token_times_s"] = [t + shift for t in row["token_times_s"]]
        else:
            row["token_times_s"] = [first + (t - first) * factor for t in row["token_times_s"]]
        row["end_s"] = row["token_times_s"][-1]

    return change


def _fails_one_in_ten(row: Row) -> None:
    if row["seed"] % 10 == 0:
        row |= {"status": "timeout", "reason": "no answer", "first_token_s": None, "token_times_s": [], "end_s": None}


def _load(**kwargs: Any) -> Callable[[Path], None]:
    return lambda root: write_load(root, "int8", records(1, **kwargs))


def _longer(row: Row) -> None:
    row["output_tokens"] //= 2


def _loses_a_pinned_case(row: Row) -> None:
    if row["id"] == "sums-00":
        row["correct"], row["score"] = False, 0.0


def _another_engine(root: Path) -> None:
    write_load(root, "int8", records(1), header=header("int8", "ci-load", engine="e!2"))


def _two_things_changed(root: Path) -> None:
    write_items(root, "int8", items("int8"), header=header("int8", "core-v1", engine="e!2"))
    write_load(root, "int8", records(1), header=header("int8", "ci-load", engine="e!2"))


def _leak(root: Path) -> None:
    path = root / "reports/evalset.json"
    report = json.loads(path.read_text())
    report["checks"][0] |= {"success": False, "examples": ["facts-03"]}
    path.write_text(json.dumps(report))


def _items(**kwargs: Any) -> Callable[[Path], None]:
    changes = {k: kwargs.pop(k) for k in ("header", "partial") if k in kwargs}
    return lambda root: write_items(root, "int8", items("int8", **kwargs), **changes)


def _run_info(**changes: Any) -> Callable[[Path], None]:
    return lambda root: write_load(root, "int8", records(1), **changes)


def _damage(name: str, content: bytes | None = None) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / name
        path.unlink() if content is None else path.write_bytes(content)

    return change


def _one_item_fewer(root: Path) -> None:
    write_items(root, "int8", items("int8")[1:])


def _results_of_another_tier(root: Path) -> None:
    write_items(root, "int8", items("int8"), header=header("int4", "core-v1"))
    write_load(root, "int8", records(1), header=header("int4", "ci-load"))


_VOID = {"void": True, "void_reason": "lag 40 ms"}
_EVAL, _RECORDS = "results/int8/eval/eval.json", "results/int8/load/records.parquet"

# fault: (how it is planted, the rule that must see it, the outcome, words in what it says)
PLANTED: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "slow prefill": (_load(change=_slow(30, "ttft")), "ttft-p95/short_burst", "fail", "limit 3000"),
    "slow decode": (_load(change=_slow(40, "itl")), "itl-p95/short_burst", "fail", "limit 600"),
    "failing requests": (_load(change=_fails_one_in_ten), "errors", "fail", "45 of 450 requests failed (45 timeout)"),
    "too few requests": (_load(requests=30), "ttft-p95/short_burst", "undecided", "more requests of this kind"),
    "no measured request": (_load(requests=0), "ttft-p95/short_burst", "undecided", "no measured requests"),
    "a worse model": (_items(flips=(40, 2)), "accuracy", "fail", "40 items lost and 2 gained"),
    "a slightly worse model": (_items(flips=(17, 8)), "accuracy", "undecided", "more items like these"),
    "a pinned case lost": (_items(spoil=_loses_a_pinned_case), "pinned", "fail", "lost: sums-00 (passes in bf16)"),
    "shorter answers": (_items(spoil=_longer), "answer-length", "fail", "tokens against"),
    "a leaked item": (_leak, "evalset", "fail", "facts-03"),
    "another evalset": (_items(header=header("int8", "core-v2")), "accuracy", "undecided", "not the same items"),
    "an item left out": (_one_item_fewer, "accuracy", "undecided", "asked of one tier only"),
    "two builds": (_another_engine, "provenance", "fail", "not one build"),
    "two changes at once": (_two_things_changed, "provenance", "undecided", "confounded: engine, quantisation"),
    "results of another tier": (_results_of_another_tier, "provenance", "fail", "holds results of int4"),
    "no header": (_items(header={}), "provenance", "fail", "incomplete"),
    "a part of the set": (_items(partial=True), "provenance", "undecided", "only a part"),
    "a void run": (_run_info(client=_VOID), "load-client", "undecided", "lag 40 ms"),
    "a smoke profile": (_run_info(profile="smoke"), "load-client", "undecided", "decides nothing"),
    "no evaluation": (_damage("results/int8/eval/items.jsonl"), "accuracy", "undecided", "is missing"),
    "no load test": (_damage(_RECORDS), "errors", "undecided", "is missing"),
    "a torn file": (_damage(_RECORDS, b"PAR1"), "errors", "undecided", "cannot be read"),
    "no check of the set": (_damage("reports/evalset.json"), "evalset", "undecided", "is missing"),
    "a figure that is none": (_damage(_EVAL, b'{"accuracy": no}'), "provenance", "undecided", "cannot be read"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_caught_and_named(run: Path, fault: str) -> None:
    plant, rule, outcome, words = PLANTED[fault]
    plant(run)
    value = _judge()
    judged = _rule(value, rule)
    assert judged["outcome"] == outcome, judged
    assert words in f"{judged['detail']}; {judged['would_decide']}; limit {judged['limit'] or 0:g}"
    verdict = {"fail": "hold", "undecided": "undecided"}[outcome]
    assert value["verdict"] == verdict, value["reason"]
    of_all_tiers = fault in {"a leaked item", "no check of the set"}
    assert value["tiers"]["bf16"]["verdict"] == (verdict if of_all_tiers else "ship")
    code, text = verdict_exit_code(VERDICT)
    assert code == {"hold": 1, "undecided": 2}[verdict]
    assert text.startswith(verdict.upper())


def test_a_full_pool_is_told_from_slow_prefill(run: Path) -> None:
    import polars as pl

    write_load(run, "int8", records(1, change=_slow(30, "ttft")))
    assert _judge()["diagnosis"][0]["suspect"].startswith("prefill itself")
    path = run / "results/int8/load/samples.parquet"
    samples = pl.read_parquet(path)
    samples.with_columns(requests_waiting=pl.lit(5)).write_parquet(path)
    assert _judge()["diagnosis"][0]["suspect"].startswith("prefill scheduling")
    samples.with_columns(requests_waiting=pl.lit(5), kv_blocks_used=pl.lit(399)).write_parquet(path)
    assert _judge()["diagnosis"][0]["suspect"].startswith("memory")


def test_a_failed_request_is_in_the_tail_even_when_the_others_are_fast(run: Path) -> None:
    write_load(run, "int8", records(1, change=_fails_one_in_ten))
    ttft = _rule(_judge(), "ttft-p95/short_burst")
    assert ttft["value"] is None  # the P95 is infinite: not a number, and not 0
    assert ttft["outcome"] in {"fail", "undecided"}


WAIVER = {"rule": "pinned", "tier": "int8", "reason": "known, being mended", "owner": "release team"}
WAIVER |= {"expires": "2027-01-01"}


def _waive(expires: str) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["gate"].update(waivers=[WAIVER | {"expires": expires}])


def test_a_waiver_lets_through_until_it_expires(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_items(run, "int8", items("int8", spoil=_loses_a_pinned_case))
    _change(run, _waive("2099-01-01"))
    value = _judge()
    assert value["verdict"] == "ship"
    assert "1 waived (pinned)" in value["reason"]
    assert _rule(value, "pinned")["outcome"] == "fail"
    assert verdict_exit_code(VERDICT)[0] == 0
    _change(run, _waive("2026-11-30"))
    value = _judge()
    assert value["verdict"] == "hold"
    assert "its waiver expired on 2026-11-30" in _rule(value, "pinned")["detail"]


def test_a_waiver_that_lapses_after_the_verdict_takes_it_back(run: Path) -> None:
    write_items(run, "int8", items("int8", spoil=_loses_a_pinned_case))
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date()
    _change(run, _waive(yesterday.isoformat()))
    assert _judge(datetime.now(UTC) - timedelta(days=10))["verdict"] == "ship"
    code, text = verdict_exit_code(VERDICT)
    assert code == 1
    assert text.startswith("HOLD: the waiver of pinned for int8 by release team expired")


def test_running_again_until_green_is_visible(run: Path) -> None:
    write_load(run, "int8", records(1, change=_slow(30, "ttft")))
    assert _judge()["verdict"] == "hold"
    again = header("int8", "ci-load") | {"measured_at": "2026-12-01T11:00:00Z"}
    write_load(run, "int8", records(1), header=again)
    value = _judge()
    assert [a["verdict"] for a in value["attempts"]] == ["hold", "ship"]
    assert "attempt 2 at this build: hold, ship" in verdict_exit_code(VERDICT)[1]


def test_a_stale_or_broken_verdict_is_undecided(run: Path) -> None:
    _judge()
    write_load(run, "int8", records(9))
    code, text = verdict_exit_code(VERDICT)
    assert code == 2
    assert "is stale: results/int8/load/" in text
    VERDICT.write_text("{")
    assert verdict_exit_code(VERDICT)[0] == 2
    VERDICT.write_text('{"verdict": "green"}')
    assert verdict_exit_code(VERDICT)[0] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.update(policy="strict"), "gate.policy is 'strict'; gate.policies has pull_request, release"),
        (lambda g: g["policies"]["pull_request"]["rules"].append({"id": "x", "kind": "vibes"}),
         "rule 'x' has the unknown kind 'vibes'; known: latency_limit"),
        (lambda g: g["policies"]["pull_request"]["rules"][0].update(limit=3), "limit: Extra inputs are not permitted"),
        (lambda g: g["policies"]["pull_request"]["rules"].append(dict(g["policies"]["pull_request"]["rules"][0])),
         "the id 'ttft-p95' is used twice"),
        (lambda g: g.update(waivers=[WAIVER | {"rule": "no"}]), "no rule 'no' in policy pull_request"),
        (lambda g: g.update(waivers=[WAIVER | {"expires": "soon"}]), "gate.waivers.0.expires: Input"),
    ],
)  # fmt: skip
def test_a_policy_with_a_mistake_is_refused_by_name(
    run: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    _change(run, lambda raw: change(raw["gate"]))
    with pytest.raises(SeatrialError) as e:
        _judge()
    assert "params.yaml" in str(e.value)
    assert message in str(e.value)


def test_a_release_becomes_the_baseline(run: Path) -> None:
    _judge()
    kwargs = {"verdict": VERDICT, "results": run / "results"}
    promote("2026.12", "release team", **kwargs)
    with pytest.raises(SeatrialError, match="exists already"):
        promote("2026.12", "release team", **kwargs)
    with pytest.raises(SeatrialError, match="cannot name a release"):
        promote("../x", "release team", **kwargs)
    release = current_release()
    assert release is not None
    assert (release.tier, len(release.scores)) == ("int8", 240)
    value = _judge()
    assert value["baseline"]["name"] == "2026.12"
    assert _rule(value, "accuracy-baseline")["outcome"] == "pass"
    latency = _rule(value, "ttft-p95-baseline/short_burst")
    assert (latency["outcome"], latency["value"]) == ("undecided", 0.0)
    assert "interleaved rounds" in latency["would_decide"]

    write_items(run, "int8", items("int8", flips=(40, 0)))
    write_items(run, "bf16", items("bf16", flips=(40, 0)))  # the reference drifts along: only the baseline sees it
    value = _judge()
    assert _rule(value, "accuracy")["outcome"] == "pass"
    assert _rule(value, "accuracy-baseline")["outcome"] == "fail"
    assert value["verdict"] == "hold"
    with pytest.raises(SeatrialError, match="the verdict on int8 is hold"):
        promote("2026.13", "release team", **kwargs)

    (run / "releases" / "broken.json").write_text("{}")
    with pytest.raises(SeatrialError, match=r"broken\.json is not a release record"):
        _judge()
