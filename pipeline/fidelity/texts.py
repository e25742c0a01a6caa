"""What is scored, as token ids.

``held_out/NAME.jsonl`` has the form of calibration text. No recipe may have seen it: that it overlaps neither
calibration text nor, since that would count twice, the evalset is checked each time by the rules of
``pipeline.evaluation.leaks``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.artifact import Named, sha256_file
from pipeline.errors import SeatrialError
from pipeline.evaluation import leaks
from pipeline.evaluation.items import Item
from pipeline.provenance import digest_of
from pipeline.quantize.calibrate import read_entries

FOLDER = Path(__file__).resolve().parent / "held_out"
Ids = list[int]


@dataclass(frozen=True)
class Sizes:
    """``sequence_tokens``: of one stretch of held-out text; ``long_tokens``: of the one long sequence, 0 for none."""

    held_out_tokens: int = 2048
    sequence_tokens: int = 512
    prompts_per_scenario: int = 2
    long_tokens: int = 2048
    output_tokens: int = 48


@dataclass(frozen=True)
class Workload:
    held_out: list[Ids]
    prompts: list[Ids]
    long: Ids
    identity: Named


def workload(model: Path, name: str, items: Sequence[Item], sizes: Sizes, evalset: Named) -> Workload:
    """
    Raises:
        SeatrialError: no such text, one that overlaps what it may not, or one that is too short.
    """
    from transformers import AutoTokenizer

    path = FOLDER / f"{name}.jsonl"
    if not path.is_file():
        raise SeatrialError(f"unknown held-out text {name!r}; {FOLDER.name}/ has {', '.join(_names())}")
    chosen = _first_of_each(items, sizes.prompts_per_scenario)
    refuse_overlap(list(leaks.read_texts(path)), items)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.model_max_length = sys.maxsize
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    opening = tokenizer("")["input_ids"]
    stream = [i for entry in read_entries(path) for i in [*_ids(tokenizer, entry), *end]]
    if len(stream) < sizes.held_out_tokens:
        raise SeatrialError(f"held-out text {name} has {len(stream)} tokens, {sizes.held_out_tokens} are asked for")
    step = sizes.sequence_tokens - len(opening)
    taken = stream[: sizes.held_out_tokens]
    cut = [taken[i : i + step] for i in range(0, len(taken), step)]
    prompts = [_prompt(tokenizer, item) for item in chosen]
    longest = opening + stream + [i for item in items if item.kind == "long_context" for i in _prompt(tokenizer, item)]
    if len(longest) < sizes.long_tokens:
        raise SeatrialError(
            f"held-out text and long documents of the evalset have {len(longest)} tokens, "
            f"{sizes.long_tokens} are asked for"
        )
    numbers = [sizes.held_out_tokens, sizes.sequence_tokens, len(prompts), sizes.long_tokens, sizes.output_tokens]
    return Workload(
        [opening + part for part in cut if len(part) > 1],
        prompts,
        longest[: sizes.long_tokens],
        Named(
            name=f"held-out-{name}, {len(prompts)} prompts of {evalset.name}",
            digest=digest_of([sha256_file(path), evalset.digest, numbers]),
        ),
    )


def refuse_overlap(texts: Sequence[leaks.Text], items: Iterable[Item], folder: Path = leaks.CALIBRATION) -> None:
    """
    Raises:
        SeatrialError: held-out text shares words with calibration text or with an item; names both.
    """
    seen = [t for path in sorted(folder.glob("*.jsonl")) for t in leaks.read_texts(path)] + leaks.texts_of(items)
    found = [*leaks.exact(texts, seen), *leaks.ngrams(texts, seen), *leaks.near_duplicates(texts, seen)]
    if found:
        raise SeatrialError(f"held-out text is not held out: {found[0]} ({len(found)} in all); replace that text")


def _names() -> list[str]:
    return sorted(p.stem for p in FOLDER.glob("*.jsonl"))


def _first_of_each(items: Sequence[Item], per_scenario: int) -> list[Item]:
    taken: Counter[str] = Counter()
    chosen = []
    for item in items:
        taken[item.scenario] += 1
        if taken[item.scenario] <= per_scenario:
            chosen.append(item)
    return chosen


def _ids(tokenizer: Any, entry: dict[str, Any]) -> Ids:
    if "text" in entry:
        return list(tokenizer(entry["text"], add_special_tokens=False)["input_ids"])
    return _chat(tokenizer, entry["messages"], answer=False)


def _prompt(tokenizer: Any, item: Item) -> Ids:
    if item.messages is None:
        return list(tokenizer(item.prompt or "")["input_ids"])
    return _chat(tokenizer, [m.model_dump() for m in item.messages], answer=True)


def _chat(tokenizer: Any, messages: list[dict[str, str]], answer: bool) -> Ids:
    if tokenizer.chat_template:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer))
    else:
        text = "".join(f"{m['role']}: {m['content']}\n" for m in messages)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
