"""Structured outputs of the default model: a vocabulary of whole words, and answers that mean something."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.engine.server.booted import MODEL, Booted, boot, events

pytestmark = pytest.mark.slow
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "email": {"type": "string", "pattern": "^[a-z]{1,12}@[a-z]{1,12}\\.(com|org)$"},
            "tags": {"type": "array", "items": {"enum": ["sailor", "cook", "captain"]}, "minItems": 1, "maxItems": 3},
            "address": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20},
                               "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
                "required": ["city", "zip"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "age", "email", "tags", "address"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "number", "minimum": -10, "maximum": 10, "multipleOf": 0.5},
     "minItems": 3, "maxItems": 5},
    {"anyOf": [{"type": "object", "properties": {"error": {"const": "none"}}, "required": ["error"],
                "additionalProperties": False}, {"type": "boolean"}]},
]  # fmt: skip
EXPRESSIONS = [r"(Yes|No), because [a-z ]{5,60}\.", r"\(\d{3}\) \d{3}-\d{4}", r"(• [A-Z][a-z]{2,12}\n){3}"]


@pytest.fixture(scope="module")
def real(real_model_dir: Path) -> Iterator[Booted]:
    with boot(real_model_dir, max_model_len=1024, compute_dtype="auto") as server:
        yield server


def answers(server: Booted, stream: bool, **body: Any) -> list[str]:
    messages = [{"role": "user", "content": "Describe the captain of a ship as JSON."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 300, "stream": stream, **body}
    texts: dict[int, str] = {}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        if not stream:
            choices = json.loads(response.read())["choices"]
            assert {c["finish_reason"] for c in choices} == {"stop"}
            return [c["message"]["content"] for c in choices]
        chunks = events(response)
    for choice in (c["choices"][0] for c in chunks):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"]["content"]
        assert choice["finish_reason"] in (None, "stop")
    return [texts[i] for i in sorted(texts)]


@pytest.mark.parametrize("temperature", [0, 1])
def test_every_output_matches(real: Booted, temperature: float) -> None:
    sampling = {"temperature": temperature, "seed": 11, "n": 1 if temperature == 0 else 4}
    for schema in SCHEMAS:
        form = {"type": "json_schema", "json_schema": {"name": "captain", "schema": schema, "strict": True}}
        found = answers(real, False, response_format=form, **sampling)
        for text in found:
            jsonschema.validate(json.loads(text), schema)
        if temperature == 0:
            assert answers(real, True, response_format=form, **sampling) == found
    for regex in EXPRESSIONS:
        found = answers(real, False, structured_outputs={"regex": regex}, **sampling)
        assert all(re.fullmatch(regex, text) for text in found), found
        if temperature == 0:
            assert answers(real, True, structured_outputs={"regex": regex}, **sampling) == found


def test_any_object(real: Booted) -> None:
    prompt = 'Answer: {"ship": "Nina"}\nAnswer: {"ship": "Pinta"}\nAnswer:'
    body = {"model": MODEL, "prompt": prompt, "response_format": {"type": "json_object"}, "temperature": 0}
    (choice,) = real.http.post("/v1/completions", json={**body, "max_tokens": 100}).json()["choices"]
    assert choice["finish_reason"] == "stop", choice
    assert isinstance(json.loads(choice["text"]), dict)
