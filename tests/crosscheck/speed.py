"""How fast our evaluation is beside lm-eval with transformers, on the same items and the same weights.

    python -m tests.crosscheck.speed --artifact artifacts/bf16 --rounds 5 [--venv DIR] [--keep DIR]

The items are the first of each scenario of ``evalsets/core``, so that choices and texts have the shares that they have
there. Choices are scored by their log-likelihood; texts are greedy, of the item's own length at most, and continue the
same text on both sides, the chat template applied. Each side is a process of its own, begun anew each time, in the
order A B B A A B ... A warm-up runs lm-eval once with each of its batch sizes and takes for choices and for texts the
one that answers fastest. These times are held against each other:

    choices, generated   from the first question to the last answer (``timed_ours.py``, ``timed_lm_eval.py``)
    all                  both of them together
    total                from the start of the process to its end: imports, loading the model, grading

Both sides' answers are compared as well, so that nobody is fast by answering something else: log-likelihoods, and how
many texts are equal. Both compute in bf16; on a CPU that has no instructions for it ``--dtype float32`` is the fairer
comparison. It ends with 0, or 3 if there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.text import TextCodec
from pipeline.errors import SeatrialError
from pipeline.evaluation.items import Item
from pipeline.files import write_json
from pipeline.gate.statistics.rounds import ratio_by_round
from tests.crosscheck.environment import Environment
from tests.crosscheck.lm_eval import REQUIREMENT, default_venv
from tests.crosscheck.speed_items import (
    CHOICES,
    GENERATED,
    KINDS,
    ROOT,
    LogLikelihoods,
    Texts,
    core_items,
    same_choices,
    same_texts,
    write_tasks,
)

CONFIDENCE = 0.975  # of each end: an interval of 95 %
CONCURRENCY = 32  # items under way at once, as params.yaml has it
WARMUP = "warm-up"
FIGURES = (*KINDS, "all", "total")
Items = dict[str, list[Item]]  # by kind
Sizes = tuple[int, int]  # lm-eval's batches of choices and of texts


@dataclass(frozen=True)
class Timed:
    """One run of one side."""

    seconds: dict[str, float]  # by kind
    total_s: float
    loglikelihoods: LogLikelihoods
    texts: Texts

    def __post_init__(self) -> None:
        if not 0 < self.figure("all") <= self.total_s:
            raise ValueError(
                f"answering took {self.figure('all')} s of {self.total_s} s in total; expected a part of it"
            )

    def figure(self, name: str) -> float:
        """Seconds: of a kind, ``all`` answers, or the process in ``total``."""
        if name == "total":
            return self.total_s
        return sum(self.seconds.values()) if name == "all" else self.seconds[name]


@dataclass(frozen=True)
class Sides:
    """How either side is run. ``folder`` has the items in lm-eval's form, as ``tasks``."""

    artifact: Path
    environment: Environment
    per_scenario: int
    folder: Path
    tasks: list[str]
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

    def theirs(self, name: str, sizes: Sizes) -> Timed:
        """
        Raises:
            SeatrialError: it failed, or took longer than the limit.
        """
        out = self.environment.out / f"lm-eval-{name}-batch-{sizes[0]}-{sizes[1]}.json"
        command = [
            str(self.environment.python), "-P", str(Path(__file__).with_name("timed_lm_eval.py")), str(out),
            *map(str, sizes), "run",
            "--model", "hf", "--model_args", f"pretrained={self.artifact},dtype={self.dtype},softmax_dtype=float32",
            "--tasks", ",".join(self.tasks), "--include_path", str(self.folder), "--device", "cpu",
        ]  # fmt: skip
        return self._timed(command, out, self.folder)

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
    seconds = {kind: float(value["seconds"][kind]) for kind in KINDS}
    return Timed(seconds, total_s, answers, {str(item): str(text) for item, text in value["texts"]})


def turns(rounds: int) -> list[bool]:
    """Of each round whether ours runs first: it does in every other one, so that a drift favours nobody."""
    return [i % 2 == 0 for i in range(rounds)]


def show(counts: dict[str, int], ours: Sequence[Timed], theirs: Sequence[Timed], sizes: Sizes) -> Table:
    """Items a second of both sides by each time, and the ratio of ours to theirs with its interval and its rounds.
    ``counts``: items of each kind."""
    batches = " and ".join(map(str, sizes))
    table = Table(
        "time", "items", "our items/s", f"lm-eval items/s (batch {batches})", "ratio", "95 %", "of each round"
    )
    for name in FIGURES:
        n = counts.get(name, sum(counts.values()))
        a, b = ([n / run.figure(name) for run in side] for side in (ours, theirs))
        r = ratio_by_round(b, a, CONFIDENCE, base_first=[not first for first in turns(len(a))])
        each = " ".join(f"{x / y:.2f}" for x, y in zip(a, b, strict=True))
        table.add_row(name, str(n), _span(a), _span(b), f"{r.ratio:.2f}", f"{r.low:.2f} to {r.high:.2f}", each)
    return table


def _span(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.2f} ({ordered[0]:.2f} to {ordered[-1]:.2f})"


def measure(sides: Sides, items: Items, tried: Sequence[Sizes], rounds: int, console: Console) -> None:
    """Warm-up, rounds, and what they show.

    Raises:
        SeatrialError: a run could not be made.
    """
    counts = {kind: len(items[kind]) for kind in KINDS}
    choices = sum(len(x.choices or []) for x in items[CHOICES])
    console.print(f"{counts[CHOICES]} items with {choices} choices, {counts[GENERATED]} that are answered with a text")
    _say(console, f"{WARMUP}, ours", sides.ours(WARMUP))
    found: dict[Sizes, Timed] = {}
    for sizes in tried:
        found[sizes] = sides.theirs(WARMUP, sizes)
        _say(console, f"{WARMUP}, lm-eval with batches of {sizes[0]} and {sizes[1]}", found[sizes])
    best_choices, best_texts = (min(found, key=lambda s: found[s].seconds[kind])[i] for i, kind in enumerate(KINDS))
    best = best_choices, best_texts
    ours: list[Timed] = []
    theirs: list[Timed] = []
    for i, ours_first in enumerate(turns(rounds), 1):
        for is_ours in (ours_first, not ours_first):
            run = sides.ours(f"round-{i}") if is_ours else sides.theirs(f"round-{i}", best)
            (ours if is_ours else theirs).append(run)
            _say(console, f"round {i}, {'ours' if is_ours else 'lm-eval'}", run)
    same, difference = same_choices(items[CHOICES], ours[-1].loglikelihoods, theirs[-1].loglikelihoods)
    equal = same_texts(items[GENERATED], ours[-1].texts, theirs[-1].texts)
    console.print(show(counts, ours, theirs, best))
    console.print(
        f"{same} of {counts[CHOICES]} items have the same likeliest choice on both sides; log-likelihoods differ by at "
        f"most {difference:.3f} nats; {equal} of {counts[GENERATED]} texts are equal; both in {sides.dtype}"
    )
    figures = {
        side: [{"seconds": r.seconds, "total_s": r.total_s} for r in runs]
        for side, runs in (("ours", ours), ("lm_eval", theirs))
    }
    alike = {"same_choices": same, "largest_difference_nats": difference, "equal_texts": equal}
    write_json(sides.environment.out / "speed.json", {"items": counts, "batch_sizes": best, **alike, **figures})


def _say(console: Console, name: str, run: Timed) -> None:
    parts = ", ".join(f"{kind} {run.seconds[kind]:.1f} s" for kind in KINDS)
    console.print(f"{name}: {parts}; {run.total_s:.1f} s in total")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crosscheck.speed", description="items per second: our evaluation beside lm-eval's hf"
    )
    parser.add_argument("--artifact", type=Path, required=True, help="a model directory in bf16")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs, at least 2 (%(default)s)")
    parser.add_argument("--per-scenario", type=int, default=8, help="items of each scenario (%(default)s)")
    parser.add_argument(
        "--batch-sizes", type=_sizes, nargs="+", default=[(1, 8), (8, 16), (16, 32)], metavar="CHOICES:TEXTS",
        help="lm-eval's, tried in the warm-up; of each kind the fastest is taken (1:8 8:16 16:32)",
    )  # fmt: skip
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
        items, folder = core_items(asked.per_scenario), out.resolve() / "tasks"
        try:
            environment.make()
            tasks = write_tasks(items, _renderer(asked.artifact), folder)
            sides = Sides(asked.artifact.resolve(), environment, asked.per_scenario, folder, tasks, asked.dtype)
            measure(sides, items, asked.batch_sizes, asked.rounds, console)
        except SeatrialError as e:
            print(e, file=sys.stderr)
            return 3
    return 0


def _sizes(text: str) -> Sizes:
    choices, _, texts = text.partition(":")
    return int(choices), int(texts)


def _renderer(artifact: Path) -> Callable[[Item], str]:
    """The text that our server continues for an item."""
    codec = TextCodec(artifact)

    def render(item: Item) -> str:
        return codec.render_chat([m.model_dump() for m in item.messages]) if item.messages else item.prompt or ""

    return render


if __name__ == "__main__":
    sys.exit(main())
