"""Whether a server keeps the seed of a request: sampled answers are greedy's blind spot, and no score looks at them."""

from __future__ import annotations

import httpx

from pipeline.errors import SeatrialError
from pipeline.targets.keys import NO_KEY, Key

PROMPT = "Once upon a time there was"
SEEDS, TOKENS, TIMEOUT_S = (11, 12, 13), 16, 120.0


def seed_problems(base_url: str, model: str, key: Key = NO_KEY) -> list[str]:
    """Asks each seed twice: equal seeds must give equal answers, and not all seeds the same one.

    Raises:
        SeatrialError: the server does not answer.
    """
    said: list[tuple[str, str]] = []
    for seed in SEEDS:
        body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 1.0, "seed": seed}
        texts = []
        for _ in range(2):
            try:
                answer = httpx.post(f"{base_url}/v1/completions", json=body, timeout=TIMEOUT_S, headers=key.headers)
                answer.raise_for_status()
                texts.append(str(answer.json()["choices"][0]["text"]))
            except (httpx.HTTPError, ValueError, LookupError) as e:
                raise SeatrialError(f"{base_url}/v1/completions: {e}; expected a sampled answer") from e
        said.append((texts[0], texts[1]))
    problems = [f"seed {s} gives two answers" for s, (a, b) in zip(SEEDS, said, strict=True) if a != b]
    if len({text for pair in said for text in pair}) == 1:
        problems.append(f"seeds {', '.join(map(str, SEEDS))} give one answer")
    return problems
