"""How fast our evaluation is beside lm-eval with transformers, on the same items and the same weights.

    python -m tests.crosscheck.speed --artifact artifacts/bf16 --rounds 5 [--venv DIR] [--keep DIR]

The items are the first of each scenario of ``evalsets/core`` whose choices are scored by their log-likelihood, written
in lm-eval's own form. Each side is a process of its own, begun anew each time, in the order A B B A A B ... A warm-up
runs each once and chooses lm-eval's batch size: the one that answers fastest. Two times are held against each other:

    answering   from the first question to the last answer (``timed_ours.py``, ``timed_lm_eval.py``)
    total       from the start of the process to its end: imports, loading the model, grading

Both sides' log-likelihoods are compared as well, so that nobody is fast by answering something else. Both compute in
bf16; on a CPU that has no instructions for it ``--dtype float32`` is the fairer comparison. It ends with 0, or 3 if
there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import Item
from pipeline.files import write_json
from pipeline.gate.statistics.rounds import ratio_by_round
from tests.crosscheck.environment import Environment
from tests.crosscheck.lm_eval import REQUIREMENT, default_venv
from tests.crosscheck.timed_ours import ROOT, choice_items

TASK = "seatrial_speed"
CONFIDENCE = 0.975  # of each end: an interval of 95 %
CONCURRENCY = 16  # items under way at once, as params.yaml has it
WARMUP = "warm-up"

Answers = dict[tuple[str, str], float]  # log-likelihood in nats, by prompt and continuation


@dataclass(frozen=True)
class Timed:
    """One run of one side."""

    answering_s: float
    total_s: float
    answers: Answers

    def __post_init__(self) -> None:
        if not 0 < self.answering_s <= self.total_s:
            raise ValueError(f"answering took {self.answering_s} s of {self.total_s} s in total; expected a part of it")


@dataclass(frozen=True)
class Sides:
    """How either side is run. ``tasks``: the folder with the items in lm-eval's form."""

    artifact: Path
    environment: Environment
    per_scenario: int
    tasks: Path
    dtype: str

    def ours(self, name: str) -> Timed:
        """
        Raises:
            SeatrialError: it failed, or took longer than the limit.
        """
        out = self.environment.out / f"ours-{name}.json"
        command = [
            sys.executable, "-m", "tests.crosscheck.timed_ours", str(out), "--artifact", str(self.artifact),
            "--per-scenario", str(self.per_scenario), "--threads", str(self.environment.threads),
            "--concurrency", str(CONCURRENCY), "--dtype", self.dtype,
        ]  # fmt: skip
        return self._timed(command, out, ROOT)

    def theirs(self, name: str, batch_size: int) -> Timed:
        """
        Raises:
            SeatrialError: it failed, or took longer than the limit.
        """
        out = self.environment.out / f"lm-eval-{name}-batch-{batch_size}.json"
        command = [
            str(self.environment.python), "-P", str(Path(__file__).with_name("timed_lm_eval.py")), str(out), "run",
            "--model", "hf", "--model_args", f"pretrained={self.artifact},dtype={self.dtype},softmax_dtype=float32",
            "--tasks", TASK, "--include_path", str(self.tasks), "--batch_size", str(batch_size), "--device", "cpu",
        ]  # fmt: skip
        return self._timed(command, out, self.tasks)

    def _timed(self, command: Sequence[str], out: Path, cwd: Path) -> Timed:
        began_s = time.monotonic()
        self.environment.run(command, out.stem, cwd)
        total_s = time.monotonic() - began_s
        try:
            return read_timed(json.loads(out.read_text(encoding="utf-8")), total_s)
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise SeatrialError(f"{out} is not what was expected: {e!r}") from e


def read_timed(value: dict[str, Any], total_s: float) -> Timed:
    """What a side wrote.

    Raises:
        ValueError, KeyError, TypeError: it is in another form.
    """
    answers = {(str(prompt), str(choice)): float(found) for prompt, choice, found in value["loglikelihoods"]}
    return Timed(float(value["answering_s"]), total_s, answers)


def write_task(items: Sequence[Item], folder: Path) -> None:
    """The items as a task of lm-eval: each choice continues the prompt as it stands, nothing is put between."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"id": x.id, "prompt": x.prompt, "choices": x.choices, "answer": x.reference} for x in items]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (folder / f"{TASK}.jsonl").write_text("".join(lines), encoding="utf-8")
    task = {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"{TASK}.jsonl"}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (folder / f"{TASK}.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML


def turns(rounds: int) -> list[bool]:
    """Of each round whether ours runs first: it does in every other one, so that a drift favours nobody."""
    return [i % 2 == 0 for i in range(rounds)]


def same_choices(items: Sequence[Item], ours: Answers, theirs: Answers) -> tuple[int, float]:
    """Items in which both find the same choice likeliest, and the largest difference of a log-likelihood, in nats.

    Raises:
        SeatrialError: one side has no answer to a question that was put to both.
    """
    asked = {(item.prompt or "", choice) for item in items for choice in item.choices or []}
    for side, answers in (("our evaluation", ours), ("lm-eval", theirs)):
        if missing := asked - answers.keys():
            raise SeatrialError(f"{side} has no answer to {len(missing)} of {len(asked)} questions: {min(missing)!r}")
    same = sum(_likeliest(item, ours) == _likeliest(item, theirs) for item in items)
    return same, max(abs(ours[key] - theirs[key]) for key in asked)


def _likeliest(item: Item, answers: Answers) -> str:
    return max(item.choices or [], key=lambda choice: answers[item.prompt or "", choice])


def show(items: Sequence[Item], ours: Sequence[Timed], theirs: Sequence[Timed], batch_size: int) -> Table:
    """Items a second of both sides by each time, and the ratio of ours to theirs with its interval and its rounds."""
    n = len(items)
    table = Table("time", "our items/s", f"lm-eval items/s (batch {batch_size})", "ratio", "95 %", "of each round")
    for name in ("answering", "total"):
        a, b = ([n / getattr(run, f"{name}_s") for run in side] for side in (ours, theirs))
        r = ratio_by_round(b, a, CONFIDENCE, base_first=[not first for first in turns(len(a))])
        each = " ".join(f"{x / y:.2f}" for x, y in zip(a, b, strict=True))
        table.add_row(name, _span(a), _span(b), f"{r.ratio:.2f}", f"{r.low:.2f} to {r.high:.2f}", each)
    return table


def _span(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.2f} ({ordered[0]:.2f} to {ordered[-1]:.2f})"


def measure(sides: Sides, items: Sequence[Item], batch_sizes: Sequence[int], rounds: int, console: Console) -> None:
    """Warm-up, rounds, and what they show.

    Raises:
        SeatrialError: a run could not be made.
    """
    sides.environment.make()
    write_task(items, sides.tasks)
    console.print(f"{len(items)} items with {sum(len(x.choices or []) for x in items)} choices")
    _say(console, f"{WARMUP}, ours", sides.ours(WARMUP))
    tried: dict[int, Timed] = {}
    for size in batch_sizes:
        tried[size] = sides.theirs(WARMUP, size)
        _say(console, f"{WARMUP}, lm-eval with batches of {size}", tried[size])
    batch_size = min(tried, key=lambda size: tried[size].answering_s)
    ours: list[Timed] = []
    theirs: list[Timed] = []
    for i, ours_first in enumerate(turns(rounds), 1):
        for is_ours in (ours_first, not ours_first):
            run = sides.ours(f"round-{i}") if is_ours else sides.theirs(f"round-{i}", batch_size)
            (ours if is_ours else theirs).append(run)
            _say(console, f"round {i}, {'ours' if is_ours else 'lm-eval'}", run)
    same, difference = same_choices(items, ours[-1].answers, theirs[-1].answers)
    console.print(show(items, ours, theirs, batch_size))
    console.print(
        f"{same} of {len(items)} items have the same likeliest choice on both sides; log-likelihoods differ by at most "
        f"{difference:.3f} nats, both in {sides.dtype}"
    )
    figures = {
        side: [{"answering_s": r.answering_s, "total_s": r.total_s} for r in runs]
        for side, runs in (("ours", ours), ("lm_eval", theirs))
    }
    write_json(sides.environment.out / "speed.json", {"items": len(items), "batch_size": batch_size, **figures})


def _say(console: Console, name: str, run: Timed) -> None:
    console.print(f"{name}: {run.answering_s:.1f} s of {run.total_s:.1f} s answering")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crosscheck.speed", description="items per second: our evaluation beside lm-eval's hf"
    )
    parser.add_argument("--artifact", type=Path, required=True, help="a model directory in bf16")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs, at least 2 (%(default)s)")
    parser.add_argument("--per-scenario", type=int, default=3, help="choice items of each scenario (%(default)s)")
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[1, 8, 16], help="lm-eval's, tried in the warm-up"
    )
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="both compute in it")
    parser.add_argument("--venv", type=Path, default=default_venv(), help="lm-eval's, made if needed (%(default)s)")
    parser.add_argument("--keep", type=Path, help="where logs and times are kept; without it they are not")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each side (%(default)s)")
    parser.add_argument("--limit-s", type=float, default=900, help="for each run (%(default)s)")
    asked = parser.parse_args(arguments)
    if asked.rounds < 2:
        parser.error(f"--rounds {asked.rounds}: a spread needs at least 2")
    console = Console(width=None if sys.stdout.isatty() else 150)
    with ExitStack() as stack:
        out = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crosscheck-")))
        out.mkdir(parents=True, exist_ok=True)
        environment = Environment(asked.venv.resolve(), REQUIREMENT, out.resolve(), asked.threads, asked.limit_s)
        sides = Sides(asked.artifact.resolve(), environment, asked.per_scenario, out.resolve() / "tasks", asked.dtype)
        try:
            measure(sides, choice_items(asked.per_scenario), asked.batch_sizes, asked.rounds, console)
        except SeatrialError as e:
            print(e, file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
