"""Scores the tasks beside this file with EleutherAI's lm-eval, by our server and by transformers, and compares both.

    python -m tests.crosscheck.lm_eval --artifact DIR [--venv DIR] [--keep DIR]

lm-eval lives in a virtual environment of its own, which is made on the first call and borrows the packages of the
interpreter that runs this, so that both sides have the same torch and the same transformers. It ends with 0 if all
bounds hold, 1 if one is broken, 3 if there is nothing to compare. With a model of 135 million parameters it takes some
minutes on two cores.

The runs, all of the same items (multiple choice; endings and whole texts, one of each longer than ``MAX_LENGTH``; a few
greedy answers, which must be equal in float32):

    hf-float32      transformers, the truth
    ours-float32    token ids, several requests at once: same accuracy, log-likelihoods within 1e-3
    ours-texts      the same as texts, several prompts a request: not one bit different from the above
    hf-bfloat16     transformers; its logits are turned into log-probabilities in float32, as ours are
    ours-bfloat16   an error against the truth of at most 1.5 times that of hf-bfloat16
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.config import EngineConfig
from pipeline.errors import SeatrialError
from pipeline.serving import bundled_server
from tests.crosscheck.compare import Row, Run, lower_precision, read_run, same
from tests.crosscheck.environment import Environment

REQUIREMENT = "lm-eval[api,hf]==0.4.13"
TASK_DIR = Path(__file__).with_name("tasks")
TASKS = ("seatrial_choice", "seatrial_cloze", "seatrial_passages", "seatrial_answers")
MODEL = "crosscheck"
MAX_LENGTH = 512  # tokens; lm-eval keeps one of them for the answer when it asks a server, and one more for the first


@dataclass(frozen=True)
class Options:
    artifact: Path
    environment: Environment

    @property
    def out(self) -> Path:
        return self.environment.out

    @property
    def threads(self) -> int:
        return self.environment.threads


def default_venv() -> Path:
    """Where lm-eval's environment is, unless another place is asked for."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seatrial" / "lm-eval"


def evaluate(options: Options, name: str, model: str, batch_size: int, arguments: dict[str, object]) -> Run:
    """One run of lm-eval in a process of its own, without a network.

    Raises:
        SeatrialError: it failed or took longer than the limit.
    """
    if odd := [str(v) for v in arguments.values() if "," in str(v)]:
        raise SeatrialError(f"lm-eval takes its arguments between commas, and {odd[0]!r} has one; use another path")
    out = options.out / name
    command = [
        str(options.environment.python), "-m", "lm_eval", "run", "--model", model,
        "--model_args", ",".join(f"{k}={v}" for k, v in arguments.items()),
        "--tasks", ",".join(TASKS), "--include_path", str(TASK_DIR), "--batch_size", str(batch_size),
        "--device", "cpu", "--log_samples", "--output_path", str(out),
    ]  # fmt: skip
    options.environment.run(command, name, TASK_DIR)
    try:
        run = read_run(name, out)
    except (ValueError, KeyError, TypeError) as e:
        raise SeatrialError(f"the samples of lm-eval in {out} are not what was expected: {e!r}") from e
    if missing := set(TASKS) - {key[0] for key in (*run.loglikelihoods, *run.texts)}:
        raise SeatrialError(f"lm-eval wrote no samples of {', '.join(sorted(missing))} into {out}")
    return run


def by_transformers(options: Options, dtype: str) -> Run:
    arguments: dict[str, object] = {
        "pretrained": options.artifact,
        "dtype": dtype,
        "softmax_dtype": "float32",
        "max_length": MAX_LENGTH - 2,
    }
    return evaluate(options, f"hf-{dtype}", "hf", 1, arguments)


def by_server(options: Options, dtype: str, texts: bool = False) -> Run:
    name = "ours-texts" if texts else f"ours-{dtype}"
    settings = {"compute_dtype": dtype, "max_model_len": MAX_LENGTH, "threads": options.threads}
    config = EngineConfig.model_validate(settings)
    with bundled_server(options.artifact, config, options.out / f"{name}.server.log", model=MODEL) as server:
        arguments: dict[str, object] = {
            "model": MODEL,
            "base_url": f"{server.base_url}/v1/completions",
            "tokenizer": options.artifact,
            "tokenizer_backend": "huggingface",
            "tokenized_requests": not texts,
            "num_concurrent": 1 if texts else 8,
            "max_length": MAX_LENGTH,
            "max_retries": 1,
        }
        return evaluate(options, name, "local-completions", 4 if texts else 1, arguments)


def crosscheck(options: Options, console: Console) -> list[Row]:
    """All runs, and what they show.

    Raises:
        SeatrialError: one could not be made.
    """
    console.print(f"lm-eval in {options.environment.venv}")
    options.environment.make()
    makers: list[Callable[[], Run]] = [
        lambda: by_transformers(options, "float32"),
        lambda: by_server(options, "float32"),
        lambda: by_server(options, "float32", texts=True),
        lambda: by_transformers(options, "bfloat16"),
        lambda: by_server(options, "bfloat16"),
    ]
    runs: dict[str, Run] = {}
    for make in makers:
        began_s = time.monotonic()
        run = make()
        console.print(f"{run.name}: {len(run.loglikelihoods)} log-likelihoods, {time.monotonic() - began_s:.0f} s")
        runs[run.name] = run
    try:
        return [
            *same(runs["ours-float32"], runs["hf-float32"]),
            *same(runs["ours-texts"], runs["ours-float32"], bound=0),
            *lower_precision(runs["ours-bfloat16"], runs["hf-bfloat16"], runs["hf-float32"]),
        ]
    except ValueError as e:
        raise SeatrialError(f"the runs cannot be compared: {e}") from e


def show(rows: list[Row], console: Console) -> None:
    table = Table("what", "found", "required", "")
    for row in rows:
        mark = {True: "holds", False: "BROKEN", None: ""}[row.passed]
        table.add_row(row.what, row.value, row.bound, mark, style="bold red" if row.passed is False else None)
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crosscheck.lm_eval", description="lm-eval by our server and by transformers"
    )
    parser.add_argument("--artifact", type=Path, required=True, help="a model directory in bf16")
    parser.add_argument(
        "--venv", type=Path, default=default_venv(), help="lm-eval's environment, made if needed (%(default)s)"
    )
    parser.add_argument("--keep", type=Path, help="where logs and samples are kept; without it they are not")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each side (%(default)s)")
    parser.add_argument("--limit-s", type=float, default=1800, help="for each step (%(default)s)")
    asked = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    with ExitStack() as stack:
        out = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crosscheck-")))
        out.mkdir(parents=True, exist_ok=True)
        environment = Environment(asked.venv.resolve(), REQUIREMENT, out.resolve(), asked.threads, asked.limit_s)
        options = Options(asked.artifact.resolve(), environment)
        try:
            rows = crosscheck(options, console)
        except SeatrialError as e:
            print(e, file=sys.stderr)
            return 3
    show(rows, console)
    return 1 if any(row.passed is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
