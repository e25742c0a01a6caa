"""Writes the golden transcripts anew: ``python -m tests.engine.server.golden_update``. Read the diff before keeping it.

A transcript must not hang on the last bits of a float, which differ between CPUs: so it is recorded with the compiled
kernels and with the reference kernels, which sum in another order, and written only if both agree.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from openai import OpenAI

from tests.engine.server.booted import boot
from tests.engine.server.openai_cases import (
    CASES,
    CONFIG,
    GOLDEN,
    Case,
    differences,
    make_artifact,
    record,
    rounded,
    sync_client,
)

T = TypeVar("T")
KERNELS = ("cpu", "reference")
MIN_GAP = 1e-3  # between neighbours of a list of likeliest tokens


def ask(artifact: Path, kernels: str, what: Callable[[OpenAI, Case], T]) -> dict[str, T]:
    """All cases on a server of its own; without a compiler in its path it has only the reference kernels."""
    path = "" if kernels == "reference" else os.environ["PATH"]
    with mock.patch.dict(os.environ, {"PATH": path}), boot(artifact, **CONFIG) as server:
        found = server.http.get("/info").json()["derived"]["kernels"]
        if found != kernels:
            raise SystemExit(f"the server has {found} kernels, expected {kernels}; is there a C compiler?")
        with sync_client(server.port) as client:
            return {name: what(client, case) for name, case in CASES.items()}


def likeliest(value: Any) -> Iterator[list[float]]:
    """Every list of likeliest tokens' log-probabilities in a transcript, of either endpoint."""
    if isinstance(value, dict):
        for entry in value.get("top_logprobs") or []:
            if entry and "logprob" not in entry:
                yield list(entry.values())
        if any("logprob" in entry for entry in value.get("top_logprobs") or [] if entry):
            yield [entry["logprob"] for entry in value["top_logprobs"]]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from likeliest(inner)


def near_ties(client: OpenAI, case: Case) -> list[str]:
    """Where a case's greedy choice or the order of its likeliest tokens could turn out otherwise elsewhere."""
    greedy = case.arguments.get("temperature") == 0 and not case.arguments.get("logit_bias")
    if not greedy and not case.arguments.get("logprobs"):
        return []
    with_tops = case.arguments | {"stream": False, "stream_options": None}
    asked = {"logprobs": True, "top_logprobs": 2} if case.resource.startswith("chat") else {"logprobs": 2}
    found = record(client, Case(case.resource, asked | with_tops))
    lists = [sorted(values) for values in likeliest(found["answer"])]
    close = [b - a for values in lists for a, b in pairwise(values) if b - a < MIN_GAP]
    return [f"two likely tokens are only {gap:.1e} apart" for gap in close]


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        artifact = make_artifact(Path(scratch))
        by_kernels = {k: ask(artifact, k, record) for k in KERNELS}
        ties = ask(artifact, KERNELS[0], near_ties)
    refused = []
    for name, transcript in by_kernels["cpu"].items():
        refused += [f"{name}{d} (other kernels)" for d in differences(by_kernels["reference"][name], transcript)]
        refused += [f"{name}: {words}" for words in ties[name]]
    if refused:
        print("nothing written, choose other prompts:", *refused, sep="\n  ", file=sys.stderr)
        return 1
    for old in GOLDEN.glob("*.json"):
        if old.stem not in CASES:
            old.unlink()
    for name, transcript in by_kernels["cpu"].items():
        text = json.dumps(rounded(transcript), indent=1, ensure_ascii=False)
        (GOLDEN / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(by_kernels['cpu'])} transcripts in {GOLDEN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
