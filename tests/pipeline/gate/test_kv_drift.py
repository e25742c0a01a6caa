"""The growth of the divergence with the length as a rule: only where the KV cache is narrow, and never unmeasured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.fidelity.figures import BIN_TOKENS, long_figures
from pipeline.gate.inputs import FIDELITY
from tests.pipeline.gate.helpers import change_params, edit_json, judged, rule_of

EVALUATED = "results/int8/eval/eval.json"
REFERENCE = "results/bf16/eval/eval.json"
RECORD = FIDELITY / "bf16+kv-int8.json"
LIMIT = 0.001
TOKENS = 4095


def _growing(per_1000: float) -> list[float]:
    """Divergences whose means over stretches lie on a line, but for a wave."""
    stretch = [i // BIN_TOKENS for i in range(TOKENS)]
    return [0.004 + per_1000 * s * BIN_TOKENS / 1000 + 0.0004 * (s % 2) for s in stretch]


def _measured(root: Path, kl: list[float], kv: str = "int8", **changes: Any) -> None:
    head = json.loads((root / REFERENCE).read_text())["header"]
    value = {
        "schema_version": 1, "variant": f"bf16+kv-{kv}", "tier": "bf16", "kv_dtype": kv, "header": head,
        "reference": {"engine_derived": {"kv_dtype": "bfloat16"}}, "long": long_figures(kl),
    } | changes  # fmt: skip
    path = root / FIDELITY / f"bf16+kv-{kv}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.fixture
def narrow(run: Path) -> Path:
    """A run whose candidate was served from an int8 KV cache, under a policy that blocks on it."""
    edit_json(EVALUATED, lambda v: v["header"].setdefault("engine_derived", {}).update(kv_dtype="int8"))(run)

    def block(raw: dict[str, Any]) -> None:
        rules = raw["gate"]["policies"][raw["gate"]["policy"]]["rules"]
        own = next(r for r in rules if r["id"] == "kv-drift")
        own.update(limit_nats=LIMIT, min_tokens=4096, severity="blocking")

    change_params(run, block)
    return run


def test_a_cache_of_16_bits_has_nothing_to_lose(run: Path) -> None:
    edit_json(EVALUATED, lambda v: v["header"].setdefault("engine_derived", {}).update(kv_dtype="bfloat16"))(run)
    found = rule_of(judged(), "kv-drift")
    assert (found["outcome"], found["detail"]) == (
        "not_applicable",
        "the KV cache is bfloat16: nothing is rounded in it",
    )


def test_a_narrow_cache_that_nobody_measured_is_undecided(narrow: Path) -> None:
    value = judged()
    found = rule_of(value, "kv-drift")
    assert (value["verdict"], found["outcome"]) == ("undecided", "undecided")
    assert found["would_decide"] == "seatrial fidelity --tier bf16 --kv int8 --long-tokens 4096"


@pytest.mark.parametrize(
    ("per_1000", "outcome", "verdict"),
    [(0.0, "pass", "ship"), (0.0008, "pass", "ship"), (LIMIT, "undecided", "undecided"), (0.002, "fail", "hold")],
)
def test_the_bounds_of_the_slope_decide(narrow: Path, per_1000: float, outcome: str, verdict: str) -> None:
    _measured(narrow, _growing(per_1000))
    value = judged()
    found = rule_of(value, "kv-drift")
    assert (found["outcome"], value["verdict"]) == (outcome, verdict)
    assert found["value"] == pytest.approx(per_1000, abs=5e-5)
    low, high = found["interval"]
    assert low < found["value"] < high
    assert high == pytest.approx(json.loads((narrow / RECORD).read_text())["long"]["slope"]["upper"])
    assert (found["limit"], found["n"]) == (LIMIT, TOKENS)


@pytest.mark.parametrize(
    ("kl", "changes", "words"),
    [
        (_growing(0.0)[:2000], {}, "measured on 2000 tokens; the limit is for 4096"),
        (_growing(0.0)[:300], {}, "measured on 300 tokens; the limit is for 4096"),
        (
            _growing(0.0),
            {"reference": {"engine_derived": {"kv_dtype": "int8"}}},
            "against a reference whose own KV cache is int8",
        ),
        (_growing(0.0), {"header": {"quantisation": {"digest": "0" * 64}}}, "of another artifact than the bf16"),
        (_growing(0.0), {"long": {"tokens": 4095}}, "is not what `seatrial fidelity` writes: long.kl_mean"),
        (_growing(0.0), {"kv_dtype": "bfloat16"}, "not measured on a KV cache of int8"),
    ],
)
def test_a_record_of_something_else_is_no_pass(
    narrow: Path, kl: list[float], changes: dict[str, Any], words: str
) -> None:
    _measured(narrow, kl, **changes)
    found = rule_of(judged(), "kv-drift")
    assert found["outcome"] == "undecided"
    assert words in found["detail"]


@pytest.mark.parametrize(
    ("own", "per_1000", "outcome"), [(None, 0.005, "fail"), (0.01, 0.005, "pass"), (0.01, 0.02, "fail")]
)
def test_four_bits_have_a_limit_of_their_own(narrow: Path, own: float | None, per_1000: float, outcome: str) -> None:
    edit_json(EVALUATED, lambda v: v["header"]["engine_derived"].update(kv_dtype="int4"))(narrow)
    change_params(narrow, lambda raw: _own_limit(raw, own))
    assert rule_of(judged(), "kv-drift")["would_decide"] == "seatrial fidelity --tier bf16 --kv int4 --long-tokens 4096"
    _measured(narrow, _growing(per_1000), "int4")
    found = rule_of(judged(), "kv-drift")
    assert (found["outcome"], found["limit"]) == (outcome, own or LIMIT)
    assert judged()["inputs"][(FIDELITY / "bf16+kv-int4.json").as_posix()] is not None


def _own_limit(raw: dict[str, Any], nats: float | None) -> None:
    rules = raw["gate"]["policies"][raw["gate"]["policy"]]["rules"]
    next(r for r in rules if r["id"] == "kv-drift").update(limit_nats_int4=nats)


def test_the_record_is_among_what_a_verdict_rests_on(narrow: Path) -> None:
    _measured(narrow, _growing(0.0))
    assert judged()["inputs"][RECORD.as_posix()] is not None
