"""What every engine is given: token ids and a number of tokens to produce, all requests at once, greedy.

A     one request of 128 tokens, 128 come out: decoding one stream
B     one request of 1,024 tokens, 1 comes out: prefill
C16   16 requests at once, prompts of 32-512 tokens (4,840 in all), outputs of 16-256 (1,650 in all)
C64   64 requests at once, likewise (17,080 and 8,840 in all)

Lengths and ids are drawn from a seed; the totals of C16 and C64 are the same for every seed within 1 %, so that seeds
can be compared. A file brings others: a JSON object, under each name one request ``{"prompt": [ids], "out": n}`` or a
list of them; ``meta`` is free.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from engine.bench.errors import BenchError

PROMPT, OUTPUT = (32, 512), (16, 256)  # tokens, smallest and largest, of a request of a batch
TOLERANCE = 0.01  # of the total tokens of a batch
DEFAULT, QUICK = ("A", "B", "C16", "C64"), ("A", "B")
META = "meta"


@dataclass(frozen=True)
class Job:
    """One request: so many tokens to produce after the prompt, whatever the model thinks of the end."""

    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    name: str
    jobs: list[Job]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(j.prompt) for j in self.jobs)

    @property
    def output_tokens(self) -> int:
        return sum(j.max_tokens for j in self.jobs)

    @property
    def digest(self) -> str:
        """sha256 over ids and lengths: equal ones were the same work."""
        text = json.dumps([[j.prompt, j.max_tokens] for j in self.jobs], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        if len(self.jobs) == 1:
            return f"{self.name}: one request, {self.prompt_tokens:,} tokens in, {self.output_tokens:,} out"
        return (
            f"{self.name}: {len(self.jobs)} requests at once, {self.prompt_tokens:,} tokens in, "
            f"{self.output_tokens:,} out"
        )


def draw(seed: int, vocab: int) -> dict[str, Workload]:
    """The four workloads; ids within ``vocab``."""
    return {
        "A": Workload("A", [Job(_ids("A", seed, vocab, 128), 128)]),
        "B": Workload("B", [Job(_ids("B", seed, vocab, 1024), 1)]),
        "C16": _batch("C16", seed, vocab, 16, prompt_tokens=4840, output_tokens=1650),
        "C64": _batch("C64", seed, vocab, 64, prompt_tokens=17080, output_tokens=8840),
    }


def _ids(name: str, seed: int, vocab: int, count: int) -> list[int]:
    rng = random.Random(f"{name}/ids/{seed}")
    return [rng.randrange(vocab) for _ in range(count)]


def _batch(name: str, seed: int, vocab: int, count: int, *, prompt_tokens: int, output_tokens: int) -> Workload:
    rng = random.Random(f"{name}/{seed}")
    prompts = _summing(lambda: [rng.randint(*PROMPT) for _ in range(count)], prompt_tokens)
    outputs = _summing(lambda: [rng.randint(*OUTPUT) for _ in range(count)], output_tokens)
    ids = iter(_ids(name, seed, vocab, sum(prompts)))
    return Workload(name, [Job([next(ids) for _ in range(p)], o) for p, o in zip(prompts, outputs, strict=True)])


def _summing(drawn: Callable[[], list[int]], total: int) -> list[int]:
    """The first draw that sums to ``total`` within the tolerance: uniform lengths under that one condition."""
    while abs(sum(found := drawn()) - total) > TOLERANCE * total:
        pass
    return found


class _Request(BaseModel):
    prompt: Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]
    out: Annotated[int, Field(ge=1, strict=True)]


def read(path: Path) -> dict[str, Workload]:
    """
    Raises:
        BenchError: no such file, or not of the form above, with the place.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as e:
        raise BenchError(f"{path} cannot be read ({e.strerror}); expected a file of workloads") from e
    except ValueError as e:
        raise BenchError(f"{path} is not JSON ({e}); expected an object of workloads") from e
    if not isinstance(content, dict) or not content.keys() - {META}:
        raise BenchError(f'{path} holds no workloads; expected {{"A": {{"prompt": [ids], "out": n}}, ...}}')
    return {name: Workload(name, _jobs(path, name, value)) for name, value in content.items() if name != META}


def _jobs(path: Path, name: str, value: Any) -> list[Job]:
    from pydantic import TypeAdapter  # drawn workloads need none: see engine.bench.gpu

    requests = TypeAdapter(Annotated[list[_Request], Field(min_length=1)])
    try:
        found = requests.validate_python(value if isinstance(value, list) else [value])
    except ValidationError as e:
        first = e.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BenchError(f"{path}: workload {name}, request {place}: {first['msg']}") from e
    return [Job(r.prompt, r.out) for r in found]


def choose(known: dict[str, Workload], names: list[str]) -> list[Workload]:
    """
    Raises:
        BenchError: a name that is not known, or none.
    """
    for name in names:
        if name not in known:
            raise BenchError(f"unknown workload {name!r}; known: {', '.join(known)}")
    if not names:
        raise BenchError(f"no workload is chosen; known: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]
