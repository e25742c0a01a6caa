"""Requests of every kind with what a core answered to each, down to the last bit: for tests of independence."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.plan import Plan
from engine.protocol import AddRequest, Output
from engine.request import Request, SamplingParams, TokenLogprob
from engine.runner import ModelRunner


@dataclass(frozen=True)
class Job:
    """One request: ``samples`` of a prompt, or prompts that begin with it and go on as ``branches``."""

    name: str
    prompt: tuple[int, ...]
    params: SamplingParams
    samples: int = 1
    priority: int = 0
    branches: tuple[tuple[int, ...], ...] = ()

    @property
    def ids(self) -> list[str]:
        return [f"{self.name}.{k}" for k in range(len(self.branches) or self.samples)]

    def request(self) -> AddRequest:
        branches = [list(rest) for rest in self.branches] or None
        return AddRequest(self.ids, list(self.prompt), self.params.to_wire(), self.priority, branches)


class Answer(NamedTuple):
    """All that one sample was answered. Log-probabilities are compared as floats: every bit counts."""

    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    prompt_logprobs: list[TokenLogprob] | None
    finish_reason: str | None


@dataclass
class Run:
    core: EngineCore
    answers: dict[str, Answer] = field(default_factory=dict)
    preempted: set[str] = field(default_factory=set)

    def note(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            assert output.refusal is None, output
            assert output.error is None, output
            answer = self.answers.setdefault(output.id, Answer([], [], None, None))
            if output.timings and output.timings["num_preemptions"]:
                self.preempted.add(output.id)
            if output.token is not None:
                answer.tokens.append(output.token)
                answer.logprobs.append(output.logprob)
            if output.prompt_logprobs is not None:
                answer = answer._replace(prompt_logprobs=output.prompt_logprobs)
            self.answers[output.id] = answer._replace(finish_reason=output.finish_reason)


class Sized:
    """A runner with another number of blocks than it has room for: a small pool without loading the model again."""

    def __init__(self, runner: ModelRunner, num_blocks: int) -> None:
        assert num_blocks <= runner.num_blocks
        self.runner, self.num_blocks = runner, num_blocks
        self.vocab_size, self.max_model_len = runner.vocab_size, runner.max_model_len
        self.execute, self.copy_blocks = runner.execute, runner.copy_blocks


class Counting:
    """A runner that notes the batches it computes."""

    def __init__(self, runner: Any) -> None:
        self.runner, self.batches = runner, list[list[BatchEntry]]()
        self.num_blocks, self.vocab_size = runner.num_blocks, runner.vocab_size
        self.max_model_len, self.copy_blocks = runner.max_model_len, runner.copy_blocks

    def execute(self, batch: list[BatchEntry]) -> list[Tensor | None]:
        self.batches.append(batch)
        found: list[Tensor | None] = self.runner.execute(batch)
        return found


def core_of(runner: ModelRunner, num_blocks: int | None = None, **settings: Any) -> EngineCore:
    defaults: dict[str, Any] = {
        "block_size": runner.block_size, "max_model_len": runner.max_model_len, "max_num_seqs": 48,
        "max_num_batched_tokens": 512, "prefill_chunk_tokens": 256, "threads": 1,
    }  # fmt: skip
    sized: Any = runner if num_blocks is None else Sized(runner, num_blocks)
    return EngineCore(sized, EngineConfig(**(defaults | settings)))


def serve(
    core: EngineCore,
    jobs: Sequence[Job],
    *,
    aborts: Sequence[str] = (),
    order: int | None = None,
    stagger: bool = False,
    storm: bool = False,
) -> Run:
    """Runs jobs to their end. ``order`` shuffles their arrival; with ``stagger`` a few arrive at each step; the jobs
    named in ``aborts`` are aborted while they run, at different steps; in a ``storm`` somebody is preempted at every
    other step."""
    draw, waiting, doomed = random.Random(order), list(jobs), list(aborts)
    if order is not None:
        draw.shuffle(waiting)
    run = Run(core)
    for step in range(20_000):
        for _ in range(draw.randint(0, 5) if stagger else len(waiting)):
            if waiting:
                core.submit(waiting.pop(0).request())
        if doomed and step % 3 == 2:
            name = doomed.pop()
            core.abort([i for i in core.requests if i.startswith(f"{name}.")])
        if not (core.has_work or waiting):
            core.pool.check()
            core.pool.check_idle()
            return run
        if storm and step % 2 and (prey := [r for r in core.scheduler.running if r.num_preemptions < 3]):
            least = min(r.num_preemptions for r in prey)  # so that it comes to many
            preempt(core, draw.choice([r for r in prey if r.num_preemptions == least]))
        run.note(core.step())
    raise AssertionError("work left after 20,000 steps")


def preempt(core: EngineCore, victim: Request) -> None:
    """As the scheduler does it under pressure, but whenever a test likes."""
    victim.last_step = -1  # in no plan that could lose it
    core.scheduler._preempt(Plan(budget=1, allowance=1), victim)


def expect_same(found: Run, expected: dict[str, Answer], without: Iterable[str] = ()) -> None:
    """Every sample was answered with the same bits; those named in ``without`` were aborted and may be shorter."""
    compared = 0
    for name, truth in expected.items():
        answer = found.answers.get(name)
        if name.split(".")[0] in without:
            if answer is not None:
                assert answer.tokens == truth.tokens[: len(answer.tokens)], name
                assert answer.logprobs == truth.logprobs[: len(answer.logprobs)], name
            continue
        assert answer is not None, f"{name} was not answered"
        for part, ours, theirs in zip(Answer._fields, answer, truth, strict=True):
            assert ours == theirs, f"{name}: {part} differ: {first_difference(ours, theirs)}"
        compared += 1
    assert compared > 0


def first_difference(ours: Any, theirs: Any) -> str:
    if not isinstance(ours, list) or not isinstance(theirs, list):
        return f"{ours} for {theirs}"
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"at {at} of {len(ours)} and {len(theirs)}: {ours[at : at + 1]} for {theirs[at : at + 1]}"


def mixed_jobs(
    count: int, vocab: int, longest: int, seed: int = 0, max_tokens: int = 8, typical: int | None = None
) -> list[Job]:
    """Prompts of 1 to ``longest`` tokens, some with a common beginning, under every sampling parameter there is.

    The first lengths lie around the edges of blocks and chunks, the rest is at most ``typical`` (default: ``longest``).
    """
    draw = random.Random(seed)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300, 400]
    lengths = [n for n in lengths if n <= longest]
    common = draw.choices(range(vocab), k=longest)
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"temperature": 1.3, "top_p": 0.9},
        {"logit_bias": {t: draw.choice([-100.0, 5.0, 100.0]) for t in draw.sample(range(vocab), 5)}},
        {"temperature": 0.7, "top_k": 5, "repetition_penalty": 1.3},
        {"stop_token_ids": tuple(draw.sample(range(vocab), vocab // 3))},
        {"temperature": 1.0, "min_p": 0.05, "stop_token_ids": tuple(draw.sample(range(vocab), vocab // 4))},
        {"stop_token_ids": tuple(draw.sample(range(vocab), vocab // 3)), "min_tokens": 3},
    ]
    jobs = []
    for i in range(count):
        length = lengths[i % len(lengths)] if i < len(lengths) else draw.randint(1, typical or longest)
        shared = draw.choice([0, 0, length // 2, max(0, length - 1)])
        prompt = common[:shared] + draw.choices(range(vocab), k=length - shared)
        params = SamplingParams(
            max_tokens=draw.randint(3, max_tokens) if i % 3 else max_tokens,
            seed=draw.choice([7, i, -i]),  # some share a seed
            logprobs=draw.choice([None, 0, 1, 5]) if i % 2 else 3,
            prompt_logprobs=draw.choice([0, 2]) if i % 5 == 4 else None,
            **{"ignore_eos": i % 7 == 6, **kinds[i % len(kinds)]},
        ) if i % 11 != 10 else SamplingParams(0, prompt_logprobs=1)  # fmt: skip
        jobs.append(
            Job(f"j{i}", tuple(prompt), params, samples=3 if i % 8 == 5 else 1, priority=draw.choice([0, 0, 1]))
        )
    return jobs


def noise(count: int, vocab: int, longest: int, seed: int = 99) -> list[Job]:
    """Neighbours whose own output nobody looks at: no seed, hot, biased; they may be aborted."""
    draw = random.Random(seed)
    return [
        Job(
            f"noise{i}",
            tuple(draw.choices(range(vocab), k=draw.randint(1, longest))),
            SamplingParams(draw.randint(1, 20), temperature=3.0, logit_bias={draw.randrange(vocab): 50.0}, logprobs=1),
        )
        for i in range(count)
    ]


def alone(runner: ModelRunner, jobs: Sequence[Job], **settings: Any) -> dict[str, Answer]:
    """What each job is answered in a core of its own."""
    answers: dict[str, Answer] = {}
    with torch.inference_mode():
        for job in jobs:
            answers |= serve(core_of(runner, **settings), [job]).answers
    assert {i for job in jobs for i in job.ids} == answers.keys()
    return answers
