"""What a run may have beside its measurements: a release in service, ratings, records of the gate's errors, findings
over time; and the run's verdict turned into each of the three words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pipeline.drill import aa as identical
from pipeline.drill import power as slowed
from pipeline.drill import resampled as drawn_again
from pipeline.drill.comparisons import Comparison, Planted, add
from pipeline.files import write_json
from pipeline.params import AbParams
from tests.pipeline.report import synthetic

BASELINE = "2026.48"


def edit(path: Path, change: Any) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def release(root: Path, faster: float = 0.9, machine: dict[str, Any] | None = None) -> None:
    """The candidate's own build, of another engine and ``faster`` than this run, as the baseline of the verdict."""
    load = json.loads((root / "results/int8/load/load.json").read_text())
    evaluation = json.loads((root / "results/int8/eval/eval.json").read_text())
    items = (root / "results/int8/eval/items.jsonl").read_text().splitlines()
    for header in (load["header"], evaluation["header"]):
        header["engine"] = {"name": "bundled-0f0e0d0c", "digest": "0" * 64}
        header["machine"] |= machine or {}
    for block in load["stages"].values():
        for metric in ("ttft_ms", "itl_ms"):
            block[metric] = {q: v and v * faster for q, v in block[metric].items()}
    value = {
        "schema_version": 1,
        "name": BASELINE,
        "tier": "int8",
        "owner": "serving team",
        "promoted_at": "2026-11-25T08:00:00Z",
        "policy": "release",
        "policy_digest": "9" * 64,
        "waivers": [],
        "attempts": 1,
        "verdict_as_of": "2026-11-25T07:30:00Z",
        "evaluation": evaluation["header"],
        "load": load["header"],
        "latency": load["stages"],
        "scores": {i["id"]: float(i["score"]) for i in map(json.loads, items)},
    }
    (root / "releases").mkdir(exist_ok=True)
    write_json(root / f"releases/{BASELINE}.json", value)
    baseline = {"name": BASELINE, "promoted_at": value["promoted_at"]}
    edit(root / "reports/verdict.json", lambda v: v.update(baseline=baseline))


def ratings(root: Path) -> None:
    def criterion(**changes: Any) -> dict[str, Any]:
        return {
            "alpha": 0.81,
            "items": 30,
            "candidate_mean": 4.1,
            "baseline_mean": 4.3,
            "difference": -0.2,
            "interval": [-0.41, 0.01],
            "confidence": 0.95,
            "problem": None,
        } | changes

    value = {
        "schema_version": 1,
        "rubric": 1,
        "sample": "2026-W48",
        "candidate": "int8",
        "baseline": "bf16",
        "raters": 3,
        "criteria": {
            "clarity": criterion(),
            "faithfulness": criterion(alpha=0.41, problem="raters do not agree: alpha is 0.41, below 0.667"),
            "completeness": criterion(alpha=None, difference=None, candidate_mean=None, problem="4 items have ratings"),
        },
    }
    write_json(root / "reports/review.json", value)


def _comparison(verdict: str, planted: Planted | None = None) -> Comparison:
    return Comparison(
        as_of="2026-11-30T03:00:00Z",
        planted=planted,
        verdict=verdict,
        reason="said",
        engine="1" * 64,
        policy="2" * 64,
        machine_class=synthetic.MACHINE.machine_class,
        minutes=11.5,
        rounds=12,
        half_width_percent=2.4,
        standard_error_percent=1.1,
        resolves_percent={"5": 4.0, "10": 3.0, "20": 2.0},
        settings=AbParams(),
        base_first=[True, False],
        worse={"prefill/ttft-p50": [0.01, -0.01]},
    )


def aa(root: Path, verdicts: str = "ship " * 38 + "undecided hold") -> None:
    for word in verdicts.split():
        add(_comparison(word), root / identical.RECORD)


def power(root: Path, verdicts: str = "hold " * 19 + "undecided") -> None:
    for word in verdicts.split():
        add(_comparison(word, Planted(part="decode", percent=10)), root / slowed.RECORD)


def resampled(root: Path) -> None:
    """As if drawn from the A/A record that lies there."""
    share = drawn_again.Share(planted=None, held=0.012, shipped=0.9, held_interval=(0.0, 0.031), mean_minutes=9)
    slower = Planted(part="prefill", percent=7)
    value = drawn_again.Resampled(
        aa_sha256=drawn_again.digest_of_record(root / identical.RECORD),
        comparisons=40,
        settings=AbParams(),
        pairs=240,
        pair_s=58.0,
        draws=1000,
        shares=[share, share.model_copy(update={"planted": slower, "held": 0.345})],
    )
    write_json(root / drawn_again.RECORD, value.model_dump(mode="json"))


def drill(root: Path) -> None:
    faults = [
        ("prefill-slow", "engine", "prefill 10 % slower", True, True, "ab: prefill ttft-p50", 301.0),
        ("seed-ignored", "engine", "the sampling seed is ignored", True, False, "ab: seeds", 41.0),
        ("leaked-item", "evalset", "an item leaked into calibration", False, False, "nothing", 0.4),
    ]
    keys = ("id", "part", "what", "caught", "named", "by", "seconds")
    rows = [dict(zip(keys, f, strict=True)) | {"said": "said"} for f in faults]
    value = {"schema_version": 1, "as_of": "2026-11-29T02:00:00Z", "planted": 3, "caught": 2, "named": 1}
    write_json(root / "reports/drill/drill.json", value | {"faults": rows})


def fidelity(root: Path) -> None:
    """Records of the four tiers and of an int8 KV cache, and evaluations that say which KV cache they ran on."""
    folder = root / "reports/fidelity"
    folder.mkdir(parents=True, exist_ok=True)
    of = {"variant": "bf16", "quantisation": synthetic.header("bf16", "")["quantisation"]}
    of["engine_derived"] = {"kv_dtype": "float32"}
    kl = {"bf16": 0.0, "int8": 0.021, "int4-g64": 0.31, "awq-int4-g64": 0.19, "int8+kv-int8": 0.022}
    for variant, mean in kl.items():
        tier = variant.partition("+")[0]
        part = {
            "tokens": 2044, "perplexity": 21.0 + mean, "reference_perplexity": 21.0, "kl_mean": mean,
            "kl_p99": 8 * mean, "kl_max": 20 * mean, "top1_agreement": 1 - mean,
        }  # fmt: skip
        record = {
            "schema_version": 1,
            "variant": variant,
            "tier": tier,
            "kv_dtype": "float32" if tier == variant else "int8",
            "header": synthetic.header(tier, "held-out-v1"),
            "reference": of,
            "weight_bytes": int(synthetic.TIERS[tier][0] * 2**20),
            "kv_bytes_per_token": 46080,
            "parts": {"held_out": part},
            "greedy": {"prompts": 12, "identical_share": 1 - 2 * mean, "by_prompt_tokens": []},
        }
        write_json(folder / f"{variant}.json", record)
    for tier in synthetic.TIERS:
        where = root / f"results/{tier}/eval/eval.json"
        edit(where, lambda v: v["header"].update(engine_derived={"kv_dtype": "float32"}))


def findings(root: Path, tier: str = "int8") -> None:
    base = {"found": True, "unit": "%", "at_s": None, "period_s": None, "detectable": None, "p_value": 0.001}
    rows = [
        base
        | {
            "kind": "step",
            "stage": "short_burst",
            "metric": "TTFT P50",
            "size": 38.2,
            "at_s": 11.0,
            "words": "+38.2 % at 11.0 s into the stage",
        },
        base
        | {
            "kind": "trend",
            "stage": "mixed_random",
            "metric": "ITL P95",
            "size": 21.0,
            "words": "+21.0 % over the stage (95 %: +9.0 to +33.0 %)",
        },
        base
        | {
            "kind": "stall",
            "stage": "mixed_random",
            "metric": None,
            "size": 2.1,
            "unit": "s",
            "at_s": 24.0,
            "words": "no token for 2.10 s from 24.0 s into the stage, while requests were in flight",
        },
        base | {"kind": "memory", "stage": "long_context", "metric": None, "found": None, "words": "too few samples"},
    ]
    edit(root / f"results/{tier}/load/load.json", lambda load: load.update(findings=rows))


def verdict_as(root: Path, word: Literal["ship", "hold", "undecided"]) -> None:
    """The run's verdict turned into ``word``, as the gate would have written it."""
    late = synthetic.rules()[0] | {
        "id": "ttft-p95/short_burst",
        "title": "P95 time to first token, short_burst",
        "value": 312.4,
        "limit": 300.0,
    }
    held = late | {
        "outcome": "fail",
        "interval": [303.1, 341.0],
        "detail": "14 of 117 requests were over the limit.",
        "p_value": 0.004,
    }
    open_ = late | {
        "outcome": "undecided",
        "value": 281.0,
        "interval": [262.0, 322.5],
        "detail": "4 of 117 requests were over the limit: too few to tell.",
        "would_decide": "181 more independent requests with none over the limit",
        "minutes_needed": 6.2,
    }
    cut = synthetic.rules()[3] | {"id": "pinned", "title": "pinned cases", "unit": "cases", "value": 1, "limit": 0}
    waived = cut | {
        "outcome": "fail",
        "better": "lower",
        "interval": None,
        "detail": "needle-002 was right before and is wrong now.",
        "waiver": {
            "rule": "pinned",
            "tier": "int8",
            "reason": "the case asks for a format that nobody uses any more",
            "owner": "evaluation team",
            "expires": "2027-01-31",
            "expired": False,
        },
    }
    reasons = {
        "ship": "int8 may ship: 3 blocking rules pass.",
        "hold": "int8 must not ship: P95 time to first token, short_burst 312 ms (limit 300 ms): 14 of 117 requests "
        "were over the limit.",
        "undecided": "int8 is undecided: P95 time to first token, short_burst 281 ms (limit 300 ms): 4 of 117 requests "
        "were over the limit: too few to tell.",
    }

    def change(v: dict[str, Any]) -> None:
        rules = [r for r in v["tiers"]["int8"]["rules"] if r["id"] not in {"ttft_p95/short_burst", held["id"]}]
        first = {"ship": [waived], "hold": [held, waived], "undecided": [open_]}[word]
        deciding = [] if word == "ship" else [late["id"]]
        v["tiers"]["int8"].update(verdict=word, reason=reasons[word], deciding=deciding, rules=[*first, *rules])
        v.update(verdict=word, reason=reasons[word], budget_minutes=20.0)
        v["waivers"] = [] if word == "undecided" else [waived["waiver"]]
        need = {"rule": late["id"], "what": open_["would_decide"], "minutes": 6.2, "within_budget": True}
        v["settle"] = [need] if word == "undecided" else []

    edit(root / "reports/verdict.json", change)
