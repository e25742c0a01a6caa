"""The whole engine: a prompt's step, a decode step, 64 requests at once, beside what the device could do and beside
transformers on the same device."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from engine.batch import BatchEntry
from engine.bench.engines.drivers import generate
from engine.bench.engines.drivers.ours import produce, weight_facts
from engine.bench.engines.workloads import draw
from engine.bench.gpu.clock import Ceilings, Clock
from engine.core import EngineCore
from engine.protocol import AddRequest, Output
from engine.request import SamplingParams
from engine.runner import ModelRunner

PROMPT, CONTEXT, STEPS, TOGETHER, ROUNDS = 2048, 128, 48, 12, 2
TOY = {"prompt": 24, "context": 4, "steps": 2}


def prefill(runner: ModelRunner, clock: Clock, ceilings: Ceilings) -> dict[str, Any]:
    """One step of a whole prompt. Operations: two for each weight of the layers and token, the head's one row, causal
    attention."""
    count = TOY["prompt"] if clock.toy else PROMPT
    ids = [(7 * i) % runner.vocab_size for i in range(count)]
    blocks = list(range(-(-count // runner.block_size)))

    def step() -> None:
        (rows,) = runner.execute([BatchEntry("prompt", ids, 0, blocks, "last")])
        assert rows is not None
        rows[-1:]  # the row is there when it can be read

    step()
    seconds = statistics.median(clock.wall(step) for _ in range(clock.rounds))
    shape, weights = runner.shape, weight_facts(runner.model, "bfloat16")["layer_weights"]
    attention = 2 * shape.layers * shape.heads * shape.head_dim * count * (count + 1)
    tflops = (2 * weights * count + 2 * shape.vocab * shape.hidden + attention) / seconds / 1e12
    return {
        "tokens": count,
        "seconds": seconds,
        "tflops": tflops,
        "share_of_bf16_peak": tflops / ceilings.bf16_tflops if ceilings.bf16_tflops else None,
    }


def decode(core: EngineCore, clock: Clock, ceilings: Ceilings) -> dict[str, Any]:
    """Steps of one request, with scheduling, drawing and books: beside reading the weights once at the copy's speed.
    Several at a time, since each begins before the one before is read."""
    runner = core.runner
    assert isinstance(runner, ModelRunner)
    context, steps = (TOY["context"], TOY["steps"]) if clock.toy else (CONTEXT, STEPS)
    params = SamplingParams(max_tokens=steps + 4, ignore_eos=True)
    core.submit(AddRequest(["decode"], [(5 * i) % runner.vocab_size for i in range(context)], params.to_wire()))
    outputs = list[Output]()
    while not any(o.token is not None for o in outputs):
        outputs = core.step()
        if failed := [o.error for o in outputs if o.error]:
            raise RuntimeError(f"the request was not served: {failed[0]}")
    core.step()
    each = min(TOGETHER, steps)

    def some() -> None:
        for _ in range(each):
            core.step()

    seconds = statistics.median(clock.wall(some) / each for _ in range(steps // each))
    core.abort(["decode"])
    while core.has_work:
        core.step()
    nbytes = int(weight_facts(runner.model, "bfloat16")["step_weight_bytes"])
    least = nbytes / ceilings.copy_gb_per_s / 1e9
    return {"context": context, "seconds": seconds, "weight_bytes": nbytes, "times_of_reading_weights": seconds / least}


def batch_of(vocab: int, name: str, toy: bool) -> list[dict[str, Any]]:
    """The requests of a workload of `seatrial bench engine`."""
    jobs = draw(0, vocab)[name].jobs
    if toy:
        return [{"prompt": j.prompt[:6], "max_tokens": 3} for j in jobs[:2]]
    return [{"prompt": j.prompt, "max_tokens": j.max_tokens} for j in jobs]


def side_by_side(
    core: EngineCore, theirs: Any, jobs: list[dict[str, Any]], rounds: int = ROUNDS
) -> Iterator[dict[str, Any]]:
    """Ours and transformers in turn; after each round what there is so far. Each runs once before, not counted: ours on
    all of it, transformers for a few tokens."""
    produce(core, jobs, "warm")
    generate.produce(theirs, [j | {"max_tokens": 2} for j in jobs])
    tokens = sum(int(j["max_tokens"]) for j in jobs)
    seconds: dict[str, list[float]] = {"ours": [], "transformers": []}
    for number in range(rounds):
        seconds["ours"].append(float(produce(core, jobs, f"round{number}")["seconds"]))
        seconds["transformers"].append(float(generate.produce(theirs, jobs)["seconds"]))
        ratios = [b / a for a, b in zip(seconds["ours"], seconds["transformers"], strict=True)]
        yield {
            "requests": len(jobs),
            "output_tokens": tokens,
            "seconds": {k: list(v) for k, v in seconds.items()},
            "tokens_per_s": {k: tokens / statistics.median(v) for k, v in seconds.items()},
            "ours_times_transformers": statistics.median(ratios),
        }
