"""Faults of records and of what was measured how: the gate itself must see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.drill.fault import Fault, Part, Seen
from pipeline.drill.trial import (
    CANDIDATE,
    EVALSET_NAME,
    MACHINE,
    NOW,
    Row,
    answers,
    header,
    judged,
    requests,
    working_in,
    write_answers,
    write_load,
    write_trial,
)
from pipeline.files import write_json
from pipeline.gate.__main__ import judge
from pipeline.gate.inputs import EVALSET, RESULTS
from pipeline.gate.verdict import VERDICT, verdict_exit_code
from pipeline.params import load_params

Plant = Callable[[Path], None]
LOAD = RESULTS / CANDIDATE / "load"


def by_gate(plant: Plant, rule: str, words: str) -> Callable[[Path], Seen]:
    """Caught if the verdict is not ship; named if the rule that must see it does not pass and says ``words``."""

    def run(root: Path) -> Seen:
        value = judged(root, plant)
        rules = [r for r in value["tiers"][CANDIDATE]["rules"] if r["id"].partition("/")[0] == rule]
        seen = [r for r in rules if r["outcome"] in {"fail", "undecided"}]
        said = next((r["detail"] for r in seen if words in r["detail"]), seen[0]["detail"] if seen else value["reason"])
        outcome = f"{rule}: {seen[0]['outcome']}" if seen else f"verdict {value['verdict']}"
        return Seen(value["verdict"] != "ship", any(words in r["detail"] for r in seen), outcome, said)

    return run


def _requests(change: Callable[[Row], Any], **of_load: Any) -> Plant:
    return lambda root: write_load(root, CANDIDATE, requests(1, change=change), **of_load)


def _load_json(**changes: Any) -> Plant:
    return lambda root: write_load(root, CANDIDATE, requests(1), **changes)


def _answers(change: Callable[[Row], Any], **of_eval: Any) -> Plant:
    def plant(root: Path) -> None:
        rows = answers()
        for row in rows:
            change(row)
        write_answers(root, CANDIDATE, rows, **of_eval)

    return plant


def _nothing(row: Row) -> None:
    pass


def _slow(factor: float) -> Callable[[Row], None]:
    def change(row: Row) -> None:
        shift = (row["token_times_s"][0] - row["due_s"]) * (factor - 1)
        row["token_times_s"] = [t + shift for t in row["token_times_s"]]
        row["first_token_s"], row["end_s"] = row["token_times_s"][0], row["token_times_s"][-1]

    return change


def _fails(row: Row) -> None:
    if row["seed"] % 10 == 0:
        row |= {"status": "timeout", "reason": "no answer", "first_token_s": None, "token_times_s": [], "end_s": None}


def _cut(row: Row) -> None:
    if row["seed"] % 8 == 0:
        row["output_tokens"], row["token_times_s"] = 4, row["token_times_s"][:4]


def _loses_a_pinned_case(row: Row) -> None:
    if row["id"] == "sums-000":
        row["correct"], row["score"] = False, 0.0


def _worse(row: Row) -> None:
    if row["origin"] == "written" and int(row["id"][-3:]) % 8 == 0:
        row["correct"], row["score"] = False, 0.0


def _endless(row: Row) -> None:
    if row["kind"] != "choice" and int(row["id"][-3:]) % 3 == 0:
        row["finish_reason"] = "length"


def _drops_failures(root: Path) -> None:
    """The failed requests leave the records, and load.json still counts them."""
    rows = requests(1, change=_fails)
    write_load(root, CANDIDATE, rows)
    load = json.loads((root / LOAD / "load.json").read_text())
    write_load(root, CANDIDATE, [r for r in rows if r["status"] == "ok"])
    write_json(root / LOAD / "load.json", load)


def _leaves_an_item_out(root: Path) -> None:
    write_answers(root, CANDIDATE, [r for r in answers() if r["id"] != "facts-002"])


def _leak(root: Path) -> None:
    value = json.loads((root / EVALSET).read_text())
    value["checks"][0] |= {"success": False, "examples": ["facts-003"]}
    write_json(root / EVALSET, value | {"success": False})


def _two_changes(root: Path) -> None:
    write_answers(root, CANDIDATE, answers(), header=header(CANDIDATE, EVALSET_NAME, engine="drill!2"))
    write_load(root, CANDIDATE, requests(1), header=header(CANDIDATE, "ci-load", engine="drill!2"))


def masked(root: Path) -> Seen:
    """A load test fails after a verdict of ship was written, and whoever called it says success: the exit code of the
    old verdict must not be 0."""
    write_trial(root)
    with working_in(root):
        value = judge(load_params(), NOW).model_dump(mode="json")
        write_json(VERDICT, value)
        shipped, _ = verdict_exit_code()
        (root / LOAD / "records.parquet").unlink()
        code, said = verdict_exit_code()
    first = said.splitlines()[0]
    return Seen(
        shipped == 0 and code != 0, "stale" in first and "records.parquet" in first, f"verdict: exit {code}", first
    )


def _another_machine(root: Path) -> Seen:
    """A release's latency of another machine is no limit for this one's."""
    from pipeline.gate.context import Context
    from pipeline.gate.inputs import read_tier
    from pipeline.gate.policy import LatencyBaseline, read_policy
    from pipeline.gate.rules import JUDGES
    from pipeline.provenance import Header
    from pipeline.release.record import Release

    write_trial(root)
    other = header(CANDIDATE, "ci-load", MACHINE.model_copy(update={"cpu": "Another", "cores": 64}))
    with working_in(root):
        params = load_params()
        run, policy = read_tier(CANDIDATE), read_policy(params.gate, params.tiers)
        assert run.load is not None
        release = Release(
            name="drill", tier=CANDIDATE, owner="drill", promoted_at="2026-11-01T00:00:00Z", policy=policy.name,
            policy_digest=policy.digest, waivers=[], attempts=1, verdict_as_of="2026-11-01T00:00:00Z",
            evaluation=Header.model_validate(header(CANDIDATE, EVALSET_NAME)), load=Header.model_validate(other),
            latency=run.load["stages"], scores={},
        )  # fmt: skip
        context = Context(run, run, None, None, release, policy)
        found = [
            r for rule in policy.rules if isinstance(rule, LatencyBaseline) for r in JUDGES[rule.kind](rule, context)
        ]
    caught = bool(found) and all(r.outcome != "pass" and r.value is None for r in found)
    said = found[0].detail if found else "no rule compares latency with a release"
    return Seen(caught, "latency is not compared across machines" in said, found[0].id if found else "-", said)


def _of(part: Part, id: str, what: str, plant: Plant, rule: str, words: str) -> Fault:
    return Fault(id, part, what, by_gate(plant, rule, words))


SEAM = {"engine_derived": {"seam": "pipeline.drill.seams:DecodeThrice"}}
VOID = {"client": {"void": True, "void_reason": "lag P99 40 ms"}}
FAULTS = [
    _of(
        "traffic", "slow-first-token", "every first token thirty times later", _requests(_slow(30)), "ttft-p95", "limit"
    ),
    _of("traffic", "failing-requests", "one request in ten never answered", _requests(_fails), "errors", "45 of 450"),
    _of(
        "traffic", "truncation-recorded", "one answer in eight cut short", _requests(_cut), "truncation", "fewer tokens"
    ),
    _of(
        "traffic",
        "client-lag",
        "the load client too busy to keep its schedule",
        _load_json(**VOID),
        "load-client",
        "lag",
    ),
    _of(
        "records",
        "too-few-samples",
        "ten requests a stage",
        lambda root: write_load(root, CANDIDATE, requests(1, 10)),
        "ttft-p95",
        "independent ones",
    ),
    _of(
        "records",
        "dropped-failures",
        "failed requests left out of the records",
        _drops_failures,
        "errors",
        "load.json counts",
    ),
    _of(
        "records",
        "provenance-mismatch",
        "quality of one engine, latency of another",
        _load_json(header=header(CANDIDATE, "ci-load", engine="drill!2")),
        "provenance",
        "not one build",
    ),
    _of("records", "confounded", "engine and tier changed at once", _two_changes, "provenance", "confounded"),
    _of(
        "records",
        "planted-engine",
        "records of an engine with a seam",
        _load_json(header=header(CANDIDATE, "ci-load") | SEAM),
        "provenance",
        "never to be released",
    ),
    Fault("another-machine", "records", "the baseline's latency is of another machine", _another_machine),
    Fault("masked-failure", "records", "a failing stage reported as success", masked),
    _of(
        "records", "worse-answers", "one right answer in eight turned wrong", _answers(_worse), "accuracy", "items lost"
    ),
    _of(
        "records",
        "pinned-case-lost",
        "one pinned case fails, the average hardly moves",
        _answers(_loses_a_pinned_case),
        "pinned",
        "lost: sums-000",
    ),
    _of(
        "records",
        "answers-without-end",
        "a third of the answers run to their limit",
        _answers(_endless),
        "cut-off",
        "lost",
    ),
    _of("records", "item-left-out", "an item is not asked", _leaves_an_item_out, "accuracy", "asked of one tier only"),
    _of(
        "records",
        "partial-set",
        "only a part of the set was run",
        _answers(_nothing, partial=True),
        "provenance",
        "a part",
    ),
    _of("records", "leak-reported", "the set's report says that an item leaked", _leak, "evalset", "facts-003"),
]
