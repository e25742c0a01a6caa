"""A made-up trial that ships: records of two tiers in the layout of a real one, for faults to be planted into.

Every figure is drawn from a seed; nothing of it was measured.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from engine.artifact import Named
from loadtests.records import SCHEMA
from pipeline.files import write_json
from pipeline.gate.__main__ import judge
from pipeline.gate.inputs import EVALSET, RESULTS
from pipeline.gate.verdict import VERDICT
from pipeline.load.analysis.truncation import Pair, truncation
from pipeline.load.summary import summarise
from pipeline.params import PARAMS, load_params
from pipeline.provenance import Header, Machine, digest_of

Row = dict[str, Any]
AT, NOW = "2026-12-01T10:00:00Z", datetime(2026, 12, 1, 12, tzinfo=UTC)
MACHINE = Machine(cpu="Drill", cores=2, memory_gib=8, isa=["avx2"], os="Linux x86_64")
STAGES = {"short_burst": (0.15, 0.02), "long_context": (0.9, 0.05), "mixed_random": (0.3, 0.03)}  # TTFT, ITL in s
SCENARIOS = {"facts": "choice", "fields": "extract", "sums": "math", "documents": "long_context"}
EACH, REQUESTS = 175, 150  # of answers: as many in all as the set has that the margins are for
EVALSET_NAME, EVALSET_VERSION = "core-v2", "2.0.0"
MEMORY = {"weights_bytes": 1000, "kv_pool_bytes": 5000}
CANDIDATE, REFERENCE = "int8", "bf16"
BASE: Row = {
    "schema_version": 1, "started_at": AT, "duration_s": 100.0, "profile": "ci",
    "client": {"lag_p99_ms": 1.0, "lag_limit_ms": 15.0, "cpu_share": 0.1, "void": False, "void_reason": None},
}  # fmt: skip


def header(tier: str, workload: str, machine: Machine = MACHINE, **changes: str) -> Row:
    """``changes``: another identity for one of the four."""
    names = {"model": "drill", "engine": "drill", "quantisation": tier, "workload": workload} | changes
    named = {k: Named(name=v.partition("!")[0], digest=digest_of(v)) for k, v in names.items()}
    return Header(**named, machine=machine, measured_at=AT, engine_requested={}).model_dump()


def requests(seed: int, count: int = REQUESTS, change: Callable[[Row], Any] | None = None) -> list[Row]:
    """The records of three stages of ``count`` requests each; ``change`` may spoil each of them."""
    rng, rows, clock = random.Random(seed), list[Row](), 0.0
    for stage, (ttft, itl) in STAGES.items():
        for i in range(count):
            due = clock + i * 0.2
            times = [due + ttft * rng.lognormvariate(0, 0.25)]
            for _ in range(9):
                times.append(times[-1] + itl * rng.lognormvariate(0, 0.25))
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
        clock += count * 0.2 + 5
    return rows


def answers(each: int = EACH) -> list[Row]:
    """``each`` items a scenario: half of them right, the first four pinned."""
    digits = len(str(each - 1))
    return [
        {
            "id": f"{scenario}-{i:0{digits}d}", "scenario": scenario, "kind": kind,
            "origin": "pinned" if i < 4 else "written", "source": f"{scenario}-{i // 2}", "prompt_text": "?",
            "reference": "x", "answer": "x", "correct": i % 2 == 0, "score": float(i % 2 == 0), "status": "ok",
            "reason": None, "finish_reason": "stop", "prompt_tokens": 20,
            "output_tokens": 0 if kind == "choice" else 10 + i % 3, "choice_logprobs": None,
        }
        for scenario, kind in SCENARIOS.items()
        for i in range(each)
    ]  # fmt: skip


def write_load(root: Path, tier: str, rows: list[Row], **changes: Any) -> None:
    """``changes``: of load.json."""
    folder = root / RESULTS / tier / "load"
    folder.mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame(rows, schema=SCHEMA)
    frame.write_parquet(folder / "records.parquet")
    due = {s: frame.filter(pl.col("stage") == s)["due_s"].to_list() for s in STAGES}
    windows = {s: (min(times), max(times) + 1) for s, times in due.items() if times}
    figures = {s: summarise(frame, {s: w}, fixed_output=True, goodput=None) for s, w in windows.items()}
    overall = summarise(frame, windows, fixed_output=True, goodput=None) if windows else {}
    idle = [Pair(r["request_id"], r["stage"], 4, 10, 10, "length", "length", True) for r in rows[:8]]
    value = BASE | {
        "header": header(tier, "ci-load"), "stages": figures, "overall": overall,
        "truncation": truncation(frame, idle, fixed_output=True, deterministic=True),
    }  # fmt: skip
    write_json(folder / "load.json", value | changes)


def write_server(root: Path, tier: str) -> None:
    """What was asked of the server beside the load: its books and its samples, of a minute in which all was calm."""
    folder = root / RESULTS / tier / "load"
    books = {f"metrics_{when}": {"seatrial_kv_integrity_errors_total": 0.0} for when in ("before", "after")}
    write_json(folder / "server.json", {"info": {"memory": MEMORY}, **books})
    n = 60
    samples = {
        "t_s": [float(t) for t in range(n)], "requests_running": [3] * n, "requests_waiting": [0] * n,
        "kv_blocks_used": [40] * n, "kv_blocks_total": [400] * n, "rss_bytes": [10**9] * n,
        "preemptions_total": [0] * n,
    }  # fmt: skip
    pl.DataFrame(samples).write_parquet(folder / "samples.parquet")


def write_answers(
    root: Path, tier: str, rows: list[Row], name: str = EVALSET_NAME, version: str = EVALSET_VERSION, **changes: Any
) -> None:
    """``name``, ``version``: of the set. ``changes``: of eval.json."""
    scenarios = {}
    for scenario, kind in SCENARIOS.items():
        mine = [r["correct"] for r in rows if r["scenario"] == scenario]
        if not mine:
            continue
        scenarios[scenario] = {"kind": kind, "n": len(mine), "correct": sum(mine), "accuracy": sum(mine) / len(mine)}
    right = sum(r["correct"] for r in rows)
    value = {
        "schema_version": 1, "header": header(tier, name), "accuracy": right / len(rows), "n": len(rows),
        "evalset": {"name": "core", "version": version, "items": len(rows)}, "correct": right, "scenarios": scenarios,
        "errors": 0, "cut_off": 0, "usage": {}, "output_tokens_mean": 10.0, "partial": False,
    }  # fmt: skip
    folder = root / RESULTS / tier / "eval"
    write_json(folder / "eval.json", value | changes)
    (folder / "items.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


def write_trial(root: Path, params: Path = PARAMS) -> None:
    """All of it, under the policy of ``params``."""
    raw = yaml.safe_load(params.read_text(encoding="utf-8"))
    raw["tiers"], raw["gate"]["waivers"] = [REFERENCE, CANDIDATE], []
    raw["gate"]["policy"] = "pull_request"
    raw["release"] |= {"candidate": CANDIDATE, "reference": REFERENCE}
    (root / "params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    for number, tier in enumerate((REFERENCE, CANDIDATE)):
        write_answers(root, tier, answers())
        write_serving(root, tier, number)
    write_evalset_report(root, EACH * len(SCENARIOS))


def write_serving(root: Path, tier: str, seed: int) -> None:
    """All that was measured of a tier beside its answers."""
    write_json(root / RESULTS / tier / "plan.json", {"schema_version": 1, "tier": tier, "ledger": MEMORY})
    write_load(root, tier, requests(seed))
    write_server(root, tier)


def write_evalset_report(root: Path, items: int, version: str = EVALSET_VERSION) -> None:
    """A set in which nothing was found."""
    check = {"name": "leaks", "what": "Nothing leaks.", "engine": "seatrial", "success": True, "blocking": True}
    check |= {"observed": 0, "expected": 0, "examples": []}
    evalset = {"name": "core", "version": version, "items": items}
    write_json(root / EVALSET, {"schema_version": 1, "evalset": evalset, "success": True, "checks": [check]})


@contextmanager
def working_in(root: Path) -> Iterator[None]:
    """The gate reads where it stands."""
    with contextlib.chdir(root):
        yield


def judged(root: Path, plant: Callable[[Path], None]) -> Row:
    """Writes a trial that ships, plants a fault into it and lets the gate judge; the content of verdict.json."""
    write_trial(root)
    with working_in(root):
        plant(root)
        value = judge(load_params(), NOW).model_dump(mode="json")
        write_json(VERDICT, value)
    return value
