"""Whether the device gives the tokens of the CPU, and a request the same bits whatever is beside it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.batch import BatchEntry
from engine.bench.engines.drivers.ours import produce
from engine.core import EngineCore
from engine.kernels.draws import NOT_DRAWN, draw_rows, row_of
from engine.kernels.interface import Kernels
from engine.request import SamplingParams
from engine.runner import ModelRunner

ROUNDING = 2.0**-6  # of the largest logit: four units in the last place of bf16, which 30 layers easily add up to
PROMPTS = (
    "The capital of France is",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "def fibonacci(n):\n    ",
    "Explain in two sentences why the sky is blue.",
    "Translate to Spanish: The train leaves at seven in the morning.",
    "List three causes of the French Revolution:\n1.",
    "Question: If a box holds 12 eggs and I have 7 boxes, how many eggs do I have? Answer:",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "The following is a recipe for tomato soup.\n\nIngredients:",
    "Once upon a time in a small village by the sea, there lived",
    "SELECT name, COUNT(*) FROM orders",
    "The three laws of thermodynamics state that",
    "Summarise: A bicycle has two wheels, a frame, pedals and a chain. It is cheap and clean.",
    "In 1969, humans first",
    "My favourite season is autumn because",
    "Opposites: hot - cold, high - low, fast -",
)
LENGTHS, TOY_LENGTHS = (1, 3, 16, 17, 64, 130, 257, 300, 511), (1, 17, 20)
DRAW_FILTERS: tuple[dict[str, Any], ...] = (
    {}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 40, "top_p": 0.8, "min_p": 0.01},
)  # fmt: skip
DRAWN_ROWS = 32
DECODES, ROUNDS, TOY_DECODES, TOY_ROUNDS = 6, 3, 2, 1


def prompts_of(directory: Path, vocab: int) -> list[list[int]]:
    """PROMPTS in the model's tokens, or drawn ids where there is no tokenizer."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        draw = random.Random(0)
        return [[draw.randrange(vocab) for _ in range(8 + i)] for i in range(len(PROMPTS))]
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
    return [tokenizer.encode(text, add_special_tokens=False) for text in PROMPTS]


def greedy(device: EngineCore, host: EngineCore, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Both engines on the same prompts. Where they part, by how much the host prefers its own token."""
    jobs = [{"prompt": p, "max_tokens": tokens} for p in prompts]
    found = [r["tokens"] for r in produce(device, jobs, "device")["requests"]]
    expected = [r["tokens"] for r in produce(host, jobs, "host")["requests"]]
    parted = []
    for i, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        at = next((k for k, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), None)
        if at is None:
            continue
        logits = _last_logits(host, prompts[i] + theirs[:at])
        gap, largest = float(logits[theirs[at]] - logits[mine[at]]), float(logits.abs().max())
        parted.append({"prompt": i, "at": at, "gap": gap, "largest": largest, "rounding": gap <= ROUNDING * largest})
    return {
        "prompts": len(prompts),
        "tokens_each": tokens,
        "equal": len(prompts) - len(parted),
        "parted": parted,
        "beyond_rounding": sum(not p["rounding"] for p in parted),
    }


def draws(kernels: Kernels, device: torch.device, vocab: int, toy: bool = False) -> dict[str, Any]:
    """Tokens that are drawn on the device from random logits, beside those that the host draws from them."""
    rows = 4 if toy else DRAWN_ROWS
    found = dict.fromkeys(("equal", "left_to_host", "different"), 0)
    for number, filters in enumerate(DRAW_FILTERS):
        logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(number)) * 3
        params = SamplingParams(max_tokens=1, temperature=0.5 + 0.3 * number, **filters)
        how = torch.tensor([row_of(params, seed, 7) for seed in range(rows)])
        there = logits.to(device)
        _, largest = kernels.best(there)
        drawn = kernels.draw(there, largest, how.to(device)).tolist()
        for mine, right in zip(drawn, draw_rows(logits, largest.cpu(), how), strict=True):
            found["equal" if mine == right else "left_to_host" if mine == NOT_DRAWN else "different"] += 1
    return {"rows": rows * len(DRAW_FILTERS), **found}


def _last_logits(core: EngineCore, ids: list[int]) -> Tensor:
    """float32 [vocab], computed anew in an idle engine's first blocks, a chunk at a time."""
    runner, most = core.runner, core.config.max_num_batched_tokens
    blocks = list(range(-(-len(ids) // core.config.block_size)))
    for start in range(0, len(ids), most):
        stop = min(len(ids), start + most)
        (rows,) = runner.execute([BatchEntry("again", ids[start:stop], start, blocks, "last")])
    assert rows is not None  # the last row was asked for
    return rows[-1:][0].clone()


def invariance(runner: ModelRunner, toy: bool = False) -> dict[str, Any]:
    """Requests alone, whole prompt first, then token by token; then all together in random pieces and other blocks.
    Every row of logits must have the same bits."""
    lengths, decodes, rounds = (TOY_LENGTHS, TOY_DECODES, TOY_ROUNDS) if toy else (LENGTHS, DECODES, ROUNDS)
    draw, size = random.Random(0), runner.block_size
    prompts = [[draw.randrange(runner.vocab_size) for _ in range(n)] for n in lengths]
    widths = [-(-(n + decodes) // size) for n in lengths]
    most = runner.num_blocks
    alone = [_alone(runner, p, list(range(w)), decodes) for p, w in zip(prompts, widths, strict=True)]
    compared = different = 0
    for number in range(rounds):
        draw = random.Random(number)
        blocks = list(range(most))
        draw.shuffle(blocks)
        tables = [[blocks.pop() for _ in range(w)] for w in widths]
        ids = [p + tokens for p, (tokens, _) in zip(prompts, alone, strict=True)]
        done = [0] * len(ids)
        while any(d < len(t) for d, t in zip(done, ids, strict=True)):
            batch, whose = [], []
            for i in draw.sample(range(len(ids)), draw.randint(1, len(ids))):
                left = len(prompts[i]) - done[i]
                stop = done[i] + (min(left, draw.choice([1, 7, 16, 100])) if left > 0 else 1)
                if stop > len(ids[i]):
                    continue
                batch.append(BatchEntry(str(i), ids[i][done[i] : stop], done[i], tables[i], "last"))
                whose.append((i, stop - len(prompts[i])))
                done[i] = stop
            for (i, at), rows in zip(whose, runner.execute(batch) if batch else [], strict=True):
                assert rows is not None
                if at >= 0:
                    compared += 1
                    different += not torch.equal(rows[-1:][0], alone[i][1][at])
    return {"requests": len(lengths), "rounds": rounds, "rows_compared": compared, "rows_different": different}


def _alone(runner: ModelRunner, prompt: list[int], blocks: list[int], decodes: int) -> tuple[list[int], list[Tensor]]:
    """So many greedy tokens, and the logits of the prompt's last row and of each of them."""
    ids, start, rows = list(prompt), 0, list[Tensor]()
    for _ in range(decodes + 1):
        (found,) = runner.execute([BatchEntry("alone", ids[start:], start, blocks, "last")])
        assert found is not None
        rows.append(found[-1:][0].clone())
        start = len(ids)
        ids.append(int(rows[-1].argmax()))
    return ids[len(prompt) : -1], rows
