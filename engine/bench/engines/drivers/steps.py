"""Where the time of a step of ours goes: the operations' own clock (ModelRunner.profile), beside the whole step's."""

from __future__ import annotations

import time
from typing import Any

from engine.core import EngineCore
from engine.protocol import AddRequest
from engine.request import SamplingParams
from engine.runner import ModelRunner

MARGIN = 4  # tokens that a request may still produce when the last step has been looked at


def profile(core: EngineCore, runner: ModelRunner, batch: int, prompt: int, steps: int) -> dict[str, Any]:
    """``steps`` > 0: so many decode steps of ``batch`` requests after prompts of ``prompt`` tokens; 0: the prefill of
    the prompts themselves. Smaller where the model or the slots do not reach.

    Gives the sizes that were run, ``steps`` that were timed, the mean ``step_s``, and ``ops``: (kind, layer or None,
    mean seconds) in the order of a step.

    Raises:
        RuntimeError: these kernels have no clock.
    """
    batch = min(batch, core.config.max_num_seqs)
    steps = min(steps, runner.max_model_len // 2)
    prompt = min(prompt, runner.max_model_len - steps - MARGIN)
    ids = [f"profile-{i}" for i in range(batch)]
    for i, name in enumerate(ids):
        tokens = [(7 * k + 13 * i) % runner.vocab_size for k in range(prompt)]
        params = SamplingParams(max_tokens=max(1, steps + MARGIN - 1 if steps else 1), ignore_eos=True)
        core.submit(AddRequest([name], tokens, params.to_wire()))
    waiting = set(ids)
    while steps and waiting:  # until every request decodes
        waiting -= {output.id for output in core.step()}
    runner.profile(True)
    walls = list[float]()
    while core.has_work and (not steps or len(walls) < steps):
        began = time.perf_counter()
        core.step()
        walls.append(time.perf_counter() - began)
    ops = runner.profile(False)
    core.abort(ids)
    while core.has_work:
        core.step()
    if not ops:
        raise RuntimeError(f"kernels/{runner.derived['kernels']} keep no time of their operations")
    return {
        "batch": batch,
        "prompt": prompt,
        "steps": len(walls),
        "step_s": sum(walls) / len(walls),
        "ops": [(kind, layer, seconds / len(walls)) for kind, layer, seconds in ops],
    }
