"""The commands as a user runs them, on a tiny model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from engine.bench.__main__ import main
from engine.bench.files import check_finite, write_json
from tests.tiny import make_tiny_artifact

SMALL = {
    "max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 64, "prefill_chunk_tokens": 32,
    "memory_limit_bytes": 64 * 2**20, "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("artifact"))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "lengths.csv"
    rows = "".join(f"{10 + 7 * i % 60},{4 + 5 * i % 20}\n" for i in range(40))
    path.write_text("num_prefill_tokens,num_decode_tokens\n" + rows)
    return path


def arguments(artifact: Path, out: Path, *more: str, command: str = "policies") -> list[str]:
    return [command, "--artifact", str(artifact), "--out", str(out), "--config-json", json.dumps(SMALL), *more]


@pytest.fixture(scope="module")
def done(artifact: Path, trace: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """All policies, two rounds, saturated and busy."""
    out = tmp_path_factory.mktemp("out")
    more = ["--trace", str(trace), "--requests", "16", "--rounds", "2", "--fit-pool-mib", "0.1", "--seed", "3"]
    assert main(arguments(artifact, out, *more)) == 0
    return out, json.loads((out / "results.json").read_text())


def saturated(results: dict[str, Any]) -> dict[str, Any]:
    return next(load for load in results["loads"] if load["name"] == "saturated")


def first_run_s(out: Path) -> float:
    requests = pl.read_parquet(out / "requests.parquet")
    return float(requests["token_s"][:16].explode().max())


def test_every_policy_does_the_same_work(done: tuple[Path, dict[str, Any]]) -> None:
    results = done[1]
    assert [load["name"] for load in results["loads"]] == ["saturated", "busy"]
    assert [p["name"] for p in results["loads"][1]["policies"]] == [
        "baseline",
        "static",
        "separate",
        "contiguous",
        "small-paged",
        "small-contiguous",
    ]
    requests = pl.read_parquet(done[0] / "requests.parquet")
    assert requests.height == 2 * 6 * 2 * 16
    busy = requests.filter(pl.col("load") == "busy")
    for (load, *_), run in requests.group_by("load", "policy", "round"):
        assert load == "saturated" or run["due_s"].to_list() == busy["due_s"][:16].to_list()
        assert run["token_s"].list.len().to_list() == requests["token_s"][:16].list.len().to_list()
        assert run["token_s"].list.len().sum() == results["workload"]["output_tokens"]


def test_figures_follow_from_the_samples(done: tuple[Path, dict[str, Any]]) -> None:
    """Recomputed from the files with other means."""
    requests, steps = (pl.read_parquet(done[0] / f"{name}.parquet") for name in ("requests", "steps"))
    for load, policy in ((x, p) for x in done[1]["loads"] for p in x["policies"]):
        figures = {k: v["value"] for k, v in policy["pooled"].items()}
        this = (pl.col("load") == load["name"]) & (pl.col("policy") == policy["name"])
        mine = requests.filter(this)
        ttft = 1000 * (mine["token_s"].list.first() - mine["due_s"])
        assert figures["ttft_p50_ms"] == pytest.approx(ttft.sort()[len(ttft) // 2 - 1])
        assert figures["longest_gap_ms"] == pytest.approx(1000 * mine["token_s"].list.diff().explode().max())
        ran = steps.filter(this)
        assert figures["batch_occupancy_share"] == pytest.approx(ran["batch_requests"].mean() / 4)


def test_what_the_policies_are_about_shows(done: tuple[Path, dict[str, Any]]) -> None:
    """Not timings: what follows from the policies themselves, whatever the machine does."""
    by_name = {p["name"]: {k: v["value"] for k, v in p["pooled"].items()} for p in saturated(done[1])["policies"]}
    assert by_name["static"]["batch_occupancy_share"] < by_name["baseline"]["batch_occupancy_share"]
    assert by_name["contiguous"]["kv_wasted_share"] > by_name["baseline"]["kv_wasted_share"]
    assert by_name["small-contiguous"]["allocation_failures_exhausted"] > 0
    assert by_name["small-paged"]["allocation_failures_exhausted"] > 0
    assert by_name["contiguous"]["preemptions"] == by_name["small-contiguous"]["preemptions"] == 0
    for figures in by_name.values():
        assert 0 < figures["batch_occupancy_share"] <= 1
        assert sum(figures[f"{part}_share"] for part in ("model", "scheduling", "sampling")) == pytest.approx(1)


def test_results_say_what_was_measured(done: tuple[Path, dict[str, Any]], trace: Path) -> None:
    results = done[1]
    assert results["schema_version"] == 1
    assert results["workload"]["trace"]["name"] == "lengths.csv"
    assert len(results["workload"]["trace"]["sha256"]) == len(results["artifact"]["digest"]) == 64
    assert (results["seed"], results["rounds"]) == (3, 2)
    closed, busy = (load["arrivals"] for load in results["loads"])
    assert closed == {"rate_per_s": None, "concurrency": 8}
    assert busy["rate_per_s"] == pytest.approx(0.8 * 16 / first_run_s(done[0]), rel=0.01)
    assert results["engine_config"]["max_num_seqs"] == 4
    policies = saturated(results)["policies"]
    assert policies[1]["engine_config"]["batching"] == "static"
    assert results["machine"]["cores"] >= 1
    p99 = policies[0]["pooled"]["ttft_p99_ms"]
    assert p99 == {"value": None, "reason": "P99 needs 100 samples, there are 32"}
    assert len(policies[0]["rounds"]["output_tokens_per_s"]) == 2
    assert [f["reservation"] for f in results["fit"]["reservations"]] == ["paged", "contiguous", "contiguous-max"]
    assert results["fit"]["kv_bytes_per_token"] == 2 * 3 * 2 * 16 * (
        2 if results["engine_derived"]["kv_dtype"] == "bfloat16" else 4
    )


def test_the_page_stands_alone(done: tuple[Path, dict[str, Any]]) -> None:
    out = done[0]
    page = (out / "report.html").read_text()
    assert sorted(p.name for p in out.iterdir()) == [
        "report.html", "requests.parquet", "results.json", "steps.parquet",
    ]  # fmt: skip
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="|url\(|@import', page.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    assert page.count("<svg") == 2 * (2 + 6 + 6) + 1  # two loads of latency, occupancy, KV bytes; fit
    for words in (
        "small-contiguous / small-paged",
        "lengths.csv",
        "external waste",
        "P99 needs 100 samples",
        "static against",
    ):
        assert words in page
    assert "NaN" not in page


def test_closed_loop_and_drawn_lengths(artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--policies", "static", "--requests", "6", "--rounds", "1", "--concurrency", "2", "--fit-requests", "5"]
    assert main(arguments(artifact, tmp_path, *more)) == 0
    shown = capsys.readouterr().out
    assert "static / baseline" in shown
    assert "one round: no spread" in shown
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["workload"]["trace"]["name"].startswith("log-normal, seed 0")
    (load,) = results["loads"]
    assert load["arrivals"] == {"rate_per_s": None, "concurrency": 2}
    assert results["workload"]["longest_request_tokens"] <= 128


def test_an_open_loop_alone_and_a_policy_alone(artifact: Path, trace: Path, tmp_path: Path) -> None:
    more = ["--trace", str(trace), "--policies", "baseline", "--requests", "4", "--rounds", "1", "--rate", "50"]
    assert main(arguments(artifact, tmp_path, *more)) == 0
    (load,) = json.loads((tmp_path / "results.json").read_text())["loads"]
    assert load["arrivals"]["rate_per_s"] == 50
    assert load["policies"][0]["ratios"] == {}


def test_fit_reads_no_weights(artifact: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = tmp_path / "shape"
    shape.mkdir()
    for name in ("config.json", "seatrial.json"):
        (shape / name).write_bytes((artifact / name).read_bytes())
    more = ["--trace", str(trace), "--fit-pool-mib", "0.1"]
    assert main(arguments(shape, tmp_path / "out", *more, command="fit")) == 0
    assert "contiguous-max" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "results.json").read_text())["kind"] == "fit"
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--policies", "statick"], "unknown policy 'statick'; known: baseline, static, separate"),
        (["--trace", "nowhere.csv"], "nowhere.csv not found; expected a CSV with the columns"),
        (["--requests", "41", "--trace", "TRACE"], "41 requests are asked for, the trace lengths.csv has 40 usable"),
        (["--requests", "0"], "--requests: '0', expected a number of at least 1"),
        (["--rate", "nan"], "--rate: 'nan', expected a number of at least"),
        (["--rate", "inf"], "--rate: 'inf', expected a number of at least"),
        (["--rate", "1", "--concurrency", "2"], "not allowed with argument"),
        (["--pool-share", "1.5"], "at most 1"),
        (["--pool-share", "0.01", "--trace", "TRACE", "--requests", "8"], "cannot hold the longest request"),
        (["--fit-pool-mib", "0.001", "--trace", "TRACE", "--requests", "2", "--rounds", "1"], "give a larger pool"),
        (["--config-json", "{"], "--config-json is not a valid engine config"),
        (["--config-json", '{"batching": "dynamic"}'], "batching: Input should be 'continuous' or 'static'"),
        (["--artifact", "nowhere"], "nowhere is not a directory; expected an artifact"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate (see --help)"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_3(
    more: list[str], message: str, artifact: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [str(trace) if m == "TRACE" else m for m in more]
    assert main(arguments(artifact, tmp_path / "out", *more)) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ")
    assert message in lines[-1]
    assert not (tmp_path / "out").exists()


def test_no_command_and_an_unwritable_folder(
    artifact: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 3
    (tmp_path / "file").write_text("")
    more = ["--trace", str(trace), "--fit-pool-mib", "0.1"]
    assert main(arguments(artifact, tmp_path / "file" / "out", *more, command="fit")) == 3
    assert "cannot be written (Not a directory); give another folder with --out" in capsys.readouterr().err


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.json\.a\[1\] is nan"):
        write_json(tmp_path / "x.json", {"a": [1.0, float("nan")]})
    check_finite({"a": [1, None, "x", {"b": 0.0}]}, "x")
    assert list(tmp_path.iterdir()) == []
