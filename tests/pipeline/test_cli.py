"""The `seatrial` command: quick to answer, and errors that say what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

HEAVY = ("torch", "transformers", "great_expectations", "locust", "polars", "scipy", "altair")


def _run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments], capture_output=True, text=True, timeout=240, cwd=cwd
    )


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['seatrial', '--help']\n"
        "import pipeline.cli\n"
        "try: pipeline.cli.main()\n"
        f"finally: print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    for command in ("trial", "serve", "bench", "plan", "verdict", "evaluate", "loadtest", "load"):
        assert f" {command} " in done.stdout


def test_a_benchmark_gets_the_engine_settings_of_params_yaml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from pipeline import cli
    from pipeline.params import load_params

    called: list[tuple[str, list[str]]] = []

    def module(name: str, arguments: list[str]) -> NoReturn:
        called.append((name, arguments))
        raise SystemExit(0)

    monkeypatch.setattr(cli, "_module", module)
    options = ["policies", "--artifact", "a", "--seed=1"]
    monkeypatch.chdir(Path(__file__).parents[2])
    CliRunner().invoke(cli.app, ["bench", *options])
    CliRunner().invoke(cli.app, ["bench", *options, "--config-json", "{}"])
    monkeypatch.chdir(tmp_path)  # no params.yaml
    CliRunner().invoke(cli.app, ["bench", *options])
    settings = load_params(Path(__file__).parents[2] / "params.yaml").engine.model_dump_json()
    assert called == [
        ("engine.bench", [*options, "--config-json", settings]),
        ("engine.bench", [*options, "--config-json", "{}"]),
        ("engine.bench", options),
    ]


def test_the_known_seven_billion_ledger() -> None:
    done = _run("plan", "--layers", "32", "--hidden", "4096", "--params", "7e9")
    assert done.returncode == 0, done.stderr
    for figure in ("14 GB", "512 KiB", "1 GiB", "4 GiB"):
        assert figure in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "--layers", "32"), "give --artifact DIR, or all of --layers, --hidden and --params"),
        (("plan", "--layers", "2", "--hidden", "64", "--params", "1e9", "--memory", "1"), "raise memory_limit_bytes"),
        (("plan", "--artifact", "any", "--kv-dtype", "int8"), "--kv-dtype belongs to a plan from numbers"),
        (("plan", "--layers", "2", "--measure"), "--measure boots an engine: give it --artifact DIR"),
        (("plan", "--artifact", "nowhere"), "not found"),
        (("serve", "--artifact", "nowhere"), "nowhere is not a directory"),
        (("serve", "--artifact", "nowhere", "--isa", "mmx"), "Input should be 'auto', 'avx512', 'avx2' or 'baseline'"),
        (("plan", "--tier", "int8"), "No such option"),
        (("bench", "fit", "--artifact", "nowhere"), "nowhere is not a directory"),
    ],
)
def test_mistakes_are_answered(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = _run(*arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("verdict", "--fiel", "x"), ("trial", "--force"), ("verdct",)])
def test_a_mistake_in_the_options_is_no_verdict(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert _run(*arguments, cwd=tmp_path).returncode == 3


def test_no_verdict_yet_is_undecided(tmp_path: Path) -> None:
    done = _run("verdict", cwd=tmp_path)
    assert done.returncode == 2
    assert "reports/verdict.json" in done.stdout + done.stderr
