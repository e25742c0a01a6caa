"""A made-up run in the layout of a real one, with a switch for each planted fault."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from engine.artifact import Named
from loadtests.records import SCHEMA
from pipeline.files import write_json
from pipeline.load.summary import summarise
from pipeline.provenance import Header, Machine, digest_of

ROOT = Path(__file__).resolve().parents[3]
TIERS = ("bf16", "int8", "int4")
MACHINE = Machine(cpu="Testcore", cores=2, memory_gib=8, isa=["avx2"], os="Linux x86_64")
STAGES = {"short_burst": (0.15, 0.02), "long_context": (0.9, 0.05), "mixed_random": (0.3, 0.03)}  # TTFT, ITL in s
SCENARIOS = {"facts": "choice", "fields": "extract", "sums": "math", "documents": "long_context"}
Row = dict[str, Any]
# The made-up set has 320 items and is called core-v1; these are margins that suit so many, whatever params.yaml has.
MARGINS = {
    "quality_delta": {"evalset": "core-v1", "margin_points": 6, "min_items": 300},
    "quality_baseline": {"evalset": "core-v1", "margin_points": 6, "min_items": 300},
    "cut_off": {"evalset": "core-v1", "margin_points": 10, "min_items": 150},
    "answer_length": {"min_items": 150},
    "divergence": {"min_items": 60},
}


def header(tier: str, workload: str, **changes: str) -> Row:
    names = {"model": "m", "engine": "e", "quantisation": tier, "workload": workload} | changes
    identities = {k: Named(name=v.partition("!")[0], digest=digest_of(v)) for k, v in names.items()}
    return Header(
        **identities, machine=MACHINE, measured_at="2026-12-01T10:00:00Z", engine_requested={}
    ).model_dump()  # fmt: skip


def records(seed: int, requests: int = 150, change: Callable[[Row], None] | None = None) -> list[Row]:
    """Requests of three stages on a schedule; ``change`` may spoil each."""
    rng, rows, clock = random.Random(seed), [], 0.0
    for stage, (ttft, itl) in STAGES.items():
        for i in range(requests):
            due = clock + i * 0.2
            now = due + ttft * rng.lognormvariate(0, 0.25)
            times = [now]
            for _ in range(9):
                now += itl * rng.lognormvariate(0, 0.25)
                times.append(now)
            row: Row = dict.fromkeys(SCHEMA)
            row |= {
                "request_id": f"{stage}-{i}", "stage": stage, "phase": "measured", "seed": i, "due_s": due,
                "sent_s": due + 0.001, "first_byte_s": times[0], "first_token_s": times[0], "end_s": times[-1],
                "token_times_s": times, "status": "ok", "http_status": 200, "finish_reason": "length",
                "prompt_tokens": 50, "output_tokens": 10, "cached_tokens": 0, "max_tokens": 10, "concurrency": 4,
            }  # fmt: skip
            if change:
                change(row)
            rows.append(row)
        clock += requests * 0.2 + 5
    return rows


def _choices(tier: str, i: int) -> list[float]:
    """Log-likelihoods of two choices; those of a quantised tier lie a little beside the reference's."""
    return [-0.5, -1.5 - (0.0 if tier == "bf16" else 0.1 * (i % 3))]


def items(tier: str, flips: tuple[int, int] = (0, 0), spoil: Callable[[Row], None] | None = None) -> list[Row]:
    """80 items a scenario, half of them right; ``flips`` turns so many right ones wrong and wrong ones right."""
    rows = []
    for scenario, kind in SCENARIOS.items():
        for i in range(80):
            right = i % 2 == 0
            rows.append(
                {
                    "id": f"{scenario}-{i:02d}", "scenario": scenario, "kind": kind,
                    "origin": "pinned" if i < 4 else "written", "source": f"{scenario}-{i // 2}", "prompt_text": "?",
                    "reference": "x", "answer": tier, "correct": right, "score": float(right), "status": "ok",
                    "reason": None, "finish_reason": "stop", "prompt_tokens": 20,
                    "output_tokens": 0 if kind == "choice" else 10 + i % 3,
                    "choice_logprobs": _choices(tier, i) if kind == "choice" else None,
                }
            )  # fmt: skip
    rng = random.Random(7)
    movable = [r for r in rows if r["origin"] == "written"]
    for was, count in zip((True, False), flips, strict=True):
        for row in rng.sample([r for r in movable if r["correct"] is was], count):
            row["correct"], row["score"] = not was, float(not was)
    if spoil:
        for row in rows:
            spoil(row)
    return rows


def _evaluation(tier: str, rows: list[Row]) -> Row:
    scenarios = {}
    for scenario, kind in SCENARIOS.items():
        mine = [r for r in rows if r["scenario"] == scenario]
        if not mine:
            continue
        right = sum(r["correct"] for r in mine)
        scenarios[scenario] = {"kind": kind, "n": len(mine), "correct": right, "accuracy": right / len(mine)}
    right = sum(r["correct"] for r in rows)
    return {
        "schema_version": 1, "header": header(tier, "core-v1"), "accuracy": right / len(rows), "n": len(rows),
        "evalset": {"name": "core", "version": "1", "items": len(rows)}, "correct": right, "scenarios": scenarios,
        "errors": 0, "cut_off": 0, "usage": {}, "output_tokens_mean": 10.0, "partial": False,
    }  # fmt: skip


def write_load(root: Path, tier: str, rows: list[Row], **changes: Any) -> None:
    base = root / "results" / tier / "load"
    base.mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame(rows, schema=SCHEMA)
    frame.write_parquet(base / "records.parquet")
    windows = {
        s: (float(d["due_s"].min()), float(d["due_s"].max()) + 1)  # type: ignore[arg-type]
        for s in STAGES
        if (d := frame.filter(pl.col("stage") == s)).height
    }

    def figures(w: dict[str, tuple[float, float]]) -> Row:
        return summarise(frame, w, fixed_output=True, goodput=None)

    value = {
        "schema_version": 1, "header": header(tier, "ci-load"), "profile": "ci", "started_at": "2026-12-01T10:10:00Z",
        "duration_s": 100.0,
        "client": {"lag_p99_ms": 1.0, "lag_limit_ms": 15.0, "cpu_share": 0.1, "void": False, "void_reason": None},
        "stages": {s: figures({s: w}) for s, w in windows.items()}, "overall": figures(windows) if windows else {},
        "truncation": {
            "deterministic": True, "words": "8 of 8 prompts gave the same bytes idle as under load",
            "paired": {"n": 8, "same": 8, "different": 0, "shorter": 0, "length_ratio": 1.0, "interval": [1.0, 1.0]},
        },
    }  # fmt: skip
    write_json(base / "load.json", value | changes)


def write_items(root: Path, tier: str, rows: list[Row], **changes: Any) -> None:
    base = root / "results" / tier / "eval"
    write_json(base / "eval.json", _evaluation(tier, rows) | changes)
    (base / "items.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


def make_run(root: Path) -> None:
    """A clean run: nothing wrong with any tier."""
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    raw["tiers"], raw["quantization"] = list(TIERS), {t: {"recipe": t} for t in TIERS}
    for rule in (r for policy in raw["gate"]["policies"].values() for r in policy["rules"]):
        rule |= MARGINS.get(rule["kind"], {})
    (root / "params.yaml").write_text(yaml.safe_dump(raw))
    for number, tier in enumerate(TIERS):
        memory = {"weights_bytes": 1000, "kv_pool_bytes": 5000}
        write_json(root / "results" / tier / "plan.json", {"schema_version": 1, "tier": tier, "ledger": memory})
        write_items(root, tier, items(tier))
        write_load(root, tier, records(number))
        books = {f"metrics_{when}": {"seatrial_kv_integrity_errors_total": 0.0} for when in ("before", "after")}
        write_json(root / "results" / tier / "load" / "server.json", {"info": {"memory": memory}, **books})
        pl.DataFrame(
            {
                "t_s": [float(t) for t in range(60)], "requests_running": [3] * 60, "requests_waiting": [0] * 60,
                "kv_blocks_used": [40] * 60, "kv_blocks_total": [400] * 60, "rss_bytes": [10**9] * 60,
                "preemptions_total": [0] * 60,
            }
        ).write_parquet(root / "results" / tier / "load" / "samples.parquet")  # fmt: skip
    check = {"name": "leaks", "what": "No item shares text with the calibration data.", "engine": "seatrial"}
    check |= {"success": True, "blocking": True, "observed": 0, "expected": 0, "examples": []}
    evalset = {"name": "core", "version": "1", "items": 320}
    report = {"schema_version": 1, "evalset": evalset, "success": True, "checks": [check]}
    write_json(root / "reports/evalset.json", report)
