"""The published form of a verdict, what would settle one, what changed, and JUnit's view of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from pipeline.gate.model import schema
from pipeline.gate.verdict import JUNIT, VERDICT, verdict_exit_code
from tests.pipeline.gate.factory import header, items, records, write_items, write_load
from tests.pipeline.gate.helpers import (
    change_params,
    damage,
    edit_json,
    fails_one_in_ten,
    items_of_int8,
    judged,
    load_of_int8,
    loses_a_pinned_case,
    rule_of,
)

SCHEMA = Path(__file__).resolve().parents[3] / "pipeline/gate/verdict.schema.json"


def _junit() -> dict[str, ET.Element]:
    root = ET.fromstring(JUNIT.read_text(encoding="utf-8"))
    return {s.get("name", ""): s for s in root.findall("testsuite")}


def test_the_published_schema_is_that_of_the_model() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema(), "run python -m pipeline.gate.model > " + str(SCHEMA)


@pytest.mark.parametrize(
    "spoil",
    [lambda root: None, items_of_int8(spoil=loses_a_pinned_case), load_of_int8(count=10), items_of_int8(header={})],
    ids=["ship", "hold", "undecided", "no provenance"],
)
def test_every_verdict_is_of_the_published_form(run: Path, spoil: Any) -> None:
    spoil(run)
    judged()
    published = json.loads(SCHEMA.read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(published)
    value = json.loads(VERDICT.read_text())
    validator.validate(value)
    for broken in (
        value | {"verdict": "green"},
        value | {"colour": "red"},
        {k: v for k, v in value.items() if k != "as_of"},
    ):
        assert not validator.is_valid(broken)


def test_the_deciding_rule_stands_first(run: Path) -> None:
    items_of_int8(spoil=loses_a_pinned_case)(run)
    tier = judged()["tiers"]["int8"]
    assert tier["deciding"] == ["pinned"]
    first, second = [r["id"] for r in tier["rules"]][:2]
    assert (first, second.partition("/")[0]) == ("pinned", "ttft-p95")


def test_what_would_settle_a_doubt_is_said_in_minutes_and_held_against_the_budget(run: Path) -> None:
    load_of_int8(count=20)(run)
    value = judged()
    assert [s["rule"] for s in value["settle"]] == value["tiers"]["int8"]["deciding"]
    errors = next(s for s in value["settle"] if s["rule"] == "errors")
    # 60 requests are due in 3 times 3.8 s; 90 more make the 150 that the rule asks for
    assert errors["minutes"] == pytest.approx(3 * 19 * 0.2 / 60 * 90 / 60)
    assert (errors["what"], errors["within_budget"]) == ("90 more requests", True)
    assert "more minutes of measuring (within the budget of 20)" in verdict_exit_code(VERDICT)[1]
    change_params(run, lambda raw: raw["gate"]["policies"]["pull_request"].update(budget_minutes=0.1))
    assert not next(s for s in judged()["settle"] if s["rule"] == "errors")["within_budget"]
    assert "(over the budget of 0.1)" in verdict_exit_code(VERDICT)[1]


def test_too_few_requests_are_no_pass_and_no_excuse(run: Path) -> None:
    def ask(raw: dict[str, Any]) -> None:
        for rule in raw["gate"]["policies"]["pull_request"]["rules"]:
            if rule["kind"] in {"latency_limit", "error_rate"}:
                rule["min_requests"] = 1000

    change_params(run, ask)
    value = judged()
    for rule, said in (
        ("ttft-p95/short_burst", "850 more requests of this kind: the rule asks"),
        ("errors", "550 more"),
    ):
        found = rule_of(value, rule)
        assert (found["outcome"], found["would_decide"][: len(said)]) == ("undecided", said)
    load_of_int8(change=fails_one_in_ten)(run)
    assert rule_of(judged(), "errors")["outcome"] == "fail"


def test_what_changed_is_named_and_two_changes_are_confounded(run: Path) -> None:
    changed = judged()["what_changed"]
    assert (changed["changed"], changed["confounded"]) == ({"bf16": ["quantisation"]}, [])
    assert "changed against bf16: quantisation\n" in verdict_exit_code(VERDICT)[1]
    write_items(run, "int8", items("int8"), header=header("int8", "core-v1", engine="e!2"))
    write_load(run, "int8", records(1), header=header("int8", "ci-load", engine="e!2"))
    changed = judged()["what_changed"]
    assert (changed["changed"], changed["confounded"]) == ({"bf16": ["engine", "quantisation"]}, ["bf16"])
    assert "engine, quantisation (confounded: no difference can be attributed)" in verdict_exit_code(VERDICT)[1]
    damage("results/int8/eval/eval.json")(run)
    assert judged()["what_changed"] is None
    assert verdict_exit_code(VERDICT)[0] == 2


def test_junit_is_red_only_where_the_candidate_is_decided_against(run: Path) -> None:
    judged()
    suites = _junit()
    assert list(suites) == ["int8", "bf16", "int4"]
    assert all((s.get("failures"), s.get("errors")) == ("0", "0") for s in suites.values())
    write_items(run, "int4", items("int4", spoil=loses_a_pinned_case))  # another tier's failure is not the candidate's
    load_of_int8(count=20)(run)
    items_of_int8(spoil=loses_a_pinned_case)(run)
    value = judged()
    suites = _junit()
    rules = value["tiers"]["int8"]["rules"]
    counted = {o: sum(r["outcome"] == o and r["severity"] == "blocking" for r in rules) for o in ("fail", "undecided")}
    assert (suites["int8"].get("failures"), suites["int8"].get("errors")) == tuple(str(v) for v in counted.values())
    assert (suites["int4"].get("failures"), suites["int4"].get("errors")) == ("0", "0")
    case = next(c for c in suites["int4"] if c.get("name") == "pinned")
    assert str(case[0].get("message")).startswith("fail, not the candidate: pinned cases: ")
    failure = next(c for c in suites["int8"] if c.get("name") == "pinned").find("failure")
    assert failure is not None
    assert "lost: sums-00" in str(failure.get("message"))


def test_junit_shows_a_waived_failure_as_skipped(run: Path) -> None:
    waiver = {"rule": "pinned", "tier": "int8", "reason": "known, being mended", "owner": "x", "expires": "2099-01-01"}
    items_of_int8(spoil=loses_a_pinned_case)(run)
    change_params(run, lambda raw: raw["gate"].update(waivers=[waiver]))
    assert judged()["verdict"] == "ship"
    suite = _junit()["int8"]
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    case = next(c for c in suite if c.get("name") == "pinned")
    assert str(case[0].get("message")).startswith("fail, waived: ")


def test_junit_bears_any_text(run: Path) -> None:
    odd = {"success": False, "examples": ["<&>\x01"]}
    edit_json("reports/evalset.json", lambda report: report["checks"][0].update(odd))(run)
    judged()
    case = next(c for c in _junit()["int8"] if c.get("name") == "evalset")
    assert "<&>\ufffd" in str(case[0].get("message"))
