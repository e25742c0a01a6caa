"""Our load client and guidellm against the same running engine, taking turns, with the same workload.

    python -m tests.crosscheck.load_tools --artifact artifacts/int8 --rounds 5 [--simulated] [--venv DIR] [--keep DIR]

A closed loop of ``--concurrency`` users for ``--warmup-s`` and then ``--duration-s``; prompts of about
``--prompt-tokens``, answers of exactly ``--output-tokens`` tokens. guidellm is given our client's own prompts as a
file, in their order; the prefix cache is off, so that whoever comes second finds nothing. Rounds go A B B A A B ...

Each figure is printed three times: ours, guidellm's, and ours by guidellm's definition; the definitions stand below.
``--simulated`` puts the simulator in the engine's place: its tokens come at set times and cost the machine nothing, so
that what still differs is due to a definition or to an instrument, not to the processor time that a client takes away
from an engine beside it. The artifact then only counts tokens.

guidellm lives in an environment of its own, made on the first call. A round in which our client calls itself void, for
it was late, is named. It ends with 0, or 3 if there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from engine.config import EngineConfig
from loadtests.output import read_run
from loadtests.simulator.process import simulator
from loadtests.simulator.scenario import Scenario
from loadtests.traffic import prompt_of
from loadtests.workload import Profile, load_profile
from pipeline.errors import SeatrialError
from pipeline.files import write_json
from pipeline.load.child import run_locust
from pipeline.serving import bundled_server
from tests.crosscheck.environment import Environment
from tests.crosscheck.load_figures import (
    Compared,
    Figures,
    by_their_definitions,
    compare,
    definitions,
    middle,
    our_figures,
    their_figures,
)
from tests.crosscheck.speed import turns

REQUIREMENT = "guidellm==0.8.1"
STAGE = "same_work"
MODEL = "crosscheck"
SEED = 1
SCHEDULE = Scenario(ttft_ms=200, itl_ms=20)  # near what the engine does under this workload
MOST_PER_USER_S = 50  # requests: more prompts than this nobody can use up


@dataclass(frozen=True)
class Workload:
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    warmup_s: float
    duration_s: float

    def profile(self, folder: Path) -> Path:
        """The same as a profile of our client; returns its file."""
        stage = {
            "name": STAGE,
            "warmup_s": self.warmup_s,
            "duration_s": self.duration_s,
            "arrivals": {"kind": "closed", "concurrency": self.concurrency},
            "prompt_tokens": {"kind": "fixed", "tokens": self.prompt_tokens},
            "output_tokens": {"kind": "fixed", "tokens": self.output_tokens},
        }
        value = {"name": "crosscheck", "kind": "custom", "output": {"fixed_by": "ignore_eos"}, "stages": [stage]}
        path = folder / "profile.yaml"
        path.write_text(yaml.safe_dump(value), encoding="utf-8")
        return path

    @property
    def prompts(self) -> int:
        """How many are written down for guidellm."""
        return int(self.concurrency * (self.warmup_s + self.duration_s) * MOST_PER_USER_S)


def write_prompts(profile: Profile, count: int, path: Path) -> None:
    """The first ``count`` requests of our client as a data set of guidellm's: messages and the length of the answer."""
    with path.open("w", encoding="utf-8") as file:
        for i in range(count):
            prompt = prompt_of(profile.stages[0], SEED, i)
            messages = [{"role": role, "content": text} for role, text in prompt.messages]
            file.write(json.dumps({"messages": messages, "output_tokens_count": prompt.max_tokens}) + "\n")


@dataclass(frozen=True)
class Served:
    """A running server. ``check`` raises if it is no longer alive."""

    base_url: str
    model: str
    check: Callable[[], None]


@dataclass(frozen=True)
class Tools:
    """Both tools, ready to be pointed at a server. ``simulated``: at the simulator, not the engine."""

    artifact: Path
    simulated: bool
    environment: Environment
    workload: Workload
    profile_file: Path
    prompts_file: Path

    @contextmanager
    def serve(self) -> Iterator[Served]:
        """
        Raises:
            SeatrialError, RuntimeError: the server did not start.
        """
        out = self.environment.out
        if self.simulated:
            with simulator(SCHEDULE, out / "simulator") as s:
                yield Served(s.url, MODEL, lambda: None)
            return
        config = EngineConfig.model_validate({"prefix_caching": False, "threads": self.environment.threads})
        with bundled_server(self.artifact, config, out / "server.log", model=MODEL) as server:
            yield Served(server.base_url, server.model, server.check)

    def ours(self, server: Served, name: str, console: Console) -> tuple[Figures, Figures]:
        """Our figures, and the same records by guidellm's definitions. Says so when the client calls itself void.

        Raises:
            SeatrialError: the server or the client failed.
        """
        out = self.environment.out / f"ours-{name}"
        profile = load_profile(str(self.profile_file))
        run_locust(
            profile, self.profile_file, base_url=server.base_url, model=server.model, seed=SEED, out=out,
            log=self.environment.out / f"ours-{name}.log", check=server.check,
        )  # fmt: skip
        records, run = read_run(out)
        if run.client.void:
            console.print(f"{name}: our client calls itself void: {run.client.void_reason}")
        (stage,) = run.stages
        window = (STAGE, stage["start_s"] + stage["warmup_s"], stage["end_s"])
        return our_figures(records, window), by_their_definitions(records, window)

    def theirs(self, server: Served, name: str) -> Figures:
        """
        Raises:
            SeatrialError: guidellm failed, or its report is not what was expected.
        """
        server.check()
        report, work = self.environment.out / f"guidellm-{name}.json", self.workload
        command = [
            str(self.environment.venv / "bin" / "guidellm"), "run",
            "--backend", f"kind=openai_http,target={server.base_url},model={server.model}",
            "--profile", f"kind=concurrent,streams={work.concurrency},warmup={work.warmup_s}",
            "--constraint", f"kind=max_duration,seconds={work.warmup_s + work.duration_s}",
            "--tokenizer", f"kind=huggingface_auto,model={self.artifact}",
            "--data", f"kind=json_file,path={self.prompts_file}",
            "--output", f"kind=json,path={report}", "--disable-progress",
        ]  # fmt: skip
        self.environment.run(command, report.stem, self.environment.out)
        try:
            return their_figures(json.loads(report.read_text(encoding="utf-8")))
        except (OSError, ValueError) as e:
            raise SeatrialError(f"{report}: {e}") from e


def measure(tools: Tools, rounds: int, console: Console) -> list[Compared]:
    """A warm-up of both, and the rounds, against one server.

    Raises:
        SeatrialError: something failed.
    """
    tools.environment.make()
    found: list[tuple[Figures, Figures, Figures]] = []
    with tools.serve() as server:
        for i, ours_first in enumerate([True, *turns(rounds)]):
            name = f"round-{i}" if i else "warm-up"
            if ours_first:
                (ours, as_theirs), theirs = tools.ours(server, name, console), tools.theirs(server, name)
            else:
                theirs, (ours, as_theirs) = tools.theirs(server, name), tools.ours(server, name, console)
            console.print(f"{name}: ours {_rate(ours)}, guidellm {_rate(theirs)}")
            found.append((ours, theirs, as_theirs))
    _same_work(found)
    return compare(found[1:])


def _rate(figures: Figures) -> str:
    return f"{figures['requests_per_s']:.2f} requests/s"


def _same_work(rounds: Sequence[tuple[Figures, Figures, Figures]]) -> None:
    """
    Raises:
        SeatrialError: the prompts or the answers of the two had other lengths.
    """
    for ours, theirs, _ in rounds:
        for key, share in (("prompt_tokens_mean", 0.01), ("output_tokens_mean", 0.0)):
            a, b = ours[key], theirs[key]
            if a is None or b is None or abs(a - b) > share * a + 1e-9:
                raise SeatrialError(f"{key} is {a} of our client and {b} of guidellm; expected the same work of both")


def show(compared: Sequence[Compared], console: Console) -> None:
    table = Table("figure", "ours", "guidellm", "guidellm / ours", "ours by its definition", "guidellm / that")
    for x in compared:
        table.add_row(
            x.name,
            _span(x.ours),
            _span(x.theirs),
            _span(x.ratios, 3),
            _span(x.as_theirs),
            _span(x.instrument_ratios, 3),
        )
    console.print(table)
    console.print("of each: the middle round (the least to the greatest)")
    for name, ours, theirs in definitions():
        console.print(f"\n{name}\n  ours: {ours}\n  guidellm: {theirs}")


def _span(values: Sequence[float], digits: int = 1) -> str:
    if not values:
        return ""
    return f"{middle(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main(arguments: list[str] | None = None) -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seatrial" / "guidellm"
    parser = argparse.ArgumentParser(
        prog="python -m tests.crosscheck.load_tools", description="our load client beside guidellm, on one engine"
    )
    parser.add_argument("--artifact", type=Path, required=True, help="what the engine serves")
    parser.add_argument("--simulated", action="store_true", help="the simulator in the engine's place")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=4, help="closed-loop users (%(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="of a prompt, about (%(default)s)")
    parser.add_argument("--output-tokens", type=int, default=16, help="of an answer (%(default)s)")
    parser.add_argument("--warmup-s", type=float, default=3, help="of each run, not counted (%(default)s)")
    parser.add_argument("--duration-s", type=float, default=30, help="of each run, counted (%(default)s)")
    parser.add_argument("--venv", type=Path, default=cache, help="guidellm's, made if needed (%(default)s)")
    parser.add_argument("--keep", type=Path, help="where logs, records and reports are kept; without it they are not")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the engine (%(default)s)")
    parser.add_argument("--limit-s", type=float, default=600, help="for each run of guidellm (%(default)s)")
    asked = parser.parse_args(arguments)
    if asked.rounds < 1:
        parser.error(f"--rounds {asked.rounds}: expected at least 1")
    console = Console(width=None if sys.stdout.isatty() else 170, highlight=False)
    with ExitStack() as stack:
        out = (asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crosscheck-")))).resolve()
        out.mkdir(parents=True, exist_ok=True)
        environment = Environment(asked.venv.resolve(), REQUIREMENT, out, asked.threads, asked.limit_s)
        work = Workload(
            asked.concurrency, asked.prompt_tokens, asked.output_tokens, asked.warmup_s, asked.duration_s
        )  # fmt: skip
        profile_file, prompts_file = work.profile(out), out / "prompts.jsonl"
        write_prompts(load_profile(str(profile_file)), work.prompts, prompts_file)
        try:
            tools = Tools(
                asked.artifact.resolve(), asked.simulated, environment, work, profile_file, prompts_file
            )  # fmt: skip
            compared = measure(tools, asked.rounds, console)
        except SeatrialError as e:
            print(e, file=sys.stderr)
            return 3
        write_json(out / "load_tools.json", {"workload": asdict(work), "figures": [asdict(x) for x in compared]})
    show(compared, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
