"""Outputs that must match a schema or an expression, over HTTP, on a model that says anything at all."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest

from tests.engine.server.booted import MODEL, Booted, until

CHAT = "/v1/chat/completions"
SCHEMAS: dict[str, dict[str, Any]] = {
    "nested": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "size": {"type": "object", "properties": {"w": {"type": "integer", "minimum": 1, "maximum": 9}},
                     "required": ["w"], "additionalProperties": False},
        },
        "required": ["name", "size"],
        "additionalProperties": False,
    },
    "array": {"type": "array", "items": {"enum": ["red", "green", 3, None]}, "minItems": 2, "maxItems": 4},
    "number": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "reference": {
        "$defs": {"flag": {"type": "boolean"}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/flag"}, "b": {"anyOf": [{"$ref": "#/$defs/flag"}, {"type": "null"}]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}  # fmt: skip
EXPRESSIONS = [
    r"[a-f]{3}(-[a-f]{3}){1,3}",
    r"(yes|no|maybe), [0-9]+ times",
    "^(ä|ö|€|𝄞){2,5}$",
    r"\$[0-9]{1,4}\.[0-9]{2}",
]
SAMPLING = [
    {"temperature": 0},
    {"temperature": 1, "seed": 3},
    {"temperature": 1.5, "seed": 4, "top_p": 0.7, "min_p": 0.02},
]


def structured(server: Booted, stream: bool, **body: Any) -> tuple[list[str], list[str]]:
    """Texts and finish reasons of the choices."""
    body = {"prompt": "Say it:", "max_tokens": 120, **body}
    if not stream:
        reply = server.http.post("/v1/completions", json={"model": MODEL, **body})
        assert reply.status_code == 200, reply.text
        choices = reply.json()["choices"]
        return [c["text"] for c in choices], [c["finish_reason"] for c in choices]
    texts, reasons = dict[int, str](), dict[int, str]()
    for chunk in server.stream("/v1/completions", **body):
        (choice,) = chunk["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        if choice["finish_reason"]:
            assert choice["index"] not in reasons
            reasons[choice["index"]] = choice["finish_reason"]
    return [texts[i] for i in sorted(texts)], [reasons[i] for i in sorted(texts)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SCHEMAS)
def test_outputs_match_their_schema(server: Booted, name: str, stream: bool) -> None:
    schema = SCHEMAS[name]
    form = {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
    for sampling in SAMPLING:
        n = 1 if sampling["temperature"] == 0 else 4
        texts, reasons = structured(server, stream, response_format=form, n=n, **sampling)
        assert reasons == ["stop"] * n
        for text in texts:
            jsonschema.validate(json.loads(text), schema)
        assert structured(server, False, structured_outputs={"json": schema}, n=n, **sampling)[0] == texts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("regex", EXPRESSIONS)
def test_outputs_match_their_expression(server: Booted, regex: str, stream: bool) -> None:
    for sampling in SAMPLING:
        n = 1 if sampling["temperature"] == 0 else 4
        texts, reasons = structured(server, stream, structured_outputs={"regex": regex}, n=n, **sampling)
        for text, reason in zip(texts, reasons, strict=True):
            if reason == "stop":
                assert re.fullmatch(regex, text)
            else:  # digits without end
                assert reason == "length"
                assert re.fullmatch(regex, text + "0 times" * ("times" not in text))


def test_one_of_some_texts(server: Booted) -> None:
    choices = ["a", "ab", "a|b", 'quote" \\ \n {}', "ärger €", "-^$.*"]
    texts, reasons = structured(
        server, False, structured_outputs={"choice": choices}, n=16, temperature=5, seed=1, max_tokens=40
    )
    assert set(texts) <= set(choices)
    assert len(set(texts)) >= 3
    assert set(reasons) == {"stop"}


def test_any_object_on_the_chat_endpoint(server: Booted) -> None:
    messages = [{"role": "user", "content": "json"}]
    bias = {str(b): -50 for b in range(128, 256)} | {str(ord("}")): 9}
    for seed in range(3):
        body = {"messages": messages, "response_format": {"type": "json_object"}, "temperature": 1, "seed": seed}
        reply = server.http.post(CHAT, json={"model": MODEL, "max_tokens": 200, "logit_bias": bias, **body}).json()
        choice = reply["choices"][0]
        assert choice["message"]["content"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
    text = {"messages": messages, "response_format": {"type": "text"}, "max_tokens": 3}
    assert server.http.post(CHAT, json={"model": MODEL, **text}).status_code == 200


def test_an_output_that_is_cut_says_so(server: Booted) -> None:
    texts, reasons = structured(server, False, structured_outputs={"regex": "[a-z]{50}"}, max_tokens=7, temperature=0)
    assert reasons == ["length"]
    assert re.fullmatch("[a-z]{7}", texts[0])
    texts, reasons = structured(server, False, structured_outputs={"regex": "[a-z]{7}"}, max_tokens=7, temperature=0)
    assert (len(texts[0]), reasons) == (7, ["stop"])


def test_a_bias_moves_within_the_grammar_only(server: Booted) -> None:
    bias = {str(ord("b")): 100, str(ord("z")): 100, str(ord("c")): -100}
    texts, _ = structured(server, False, structured_outputs={"regex": "[abc]{9}"}, logit_bias=bias, temperature=0)
    assert texts == ["b" * 9]
    texts, _ = structured(server, False, structured_outputs={"regex": "c{9}"}, logit_bias=bias, temperature=1)
    assert texts == ["c" * 9]


def test_logprobs_are_those_of_the_unmodified_logits(server: Booted) -> None:
    reply = server.complete(
        "logprob", structured_outputs={"regex": "[xyz]{4}"}, ignore_eos=False, max_tokens=9, logprobs=1
    ).json()["choices"][0]
    ids = [*b"logprob", *reply["text"].encode()]
    scored = server.complete(ids, echo=True, max_tokens=0, logprobs=0).json()["choices"][0]["logprobs"]
    assert reply["logprobs"]["token_logprobs"] == scored["token_logprobs"][len("logprob") :]
    assert min(reply["logprobs"]["token_logprobs"]) < -2  # not one of three


def test_a_grammar_among_neighbours_is_as_alone(server: Booted) -> None:
    asks = [
        {"structured_outputs": {"regex": "[a-z]{12}"}, "temperature": 1, "seed": i, "prompt": "n" * (1 + 9 * i)}
        if i % 2
        else {"temperature": 1, "seed": i, "prompt": "m" * (1 + 9 * i), "max_tokens": 20}
        for i in range(12)
    ]
    alone = [structured(server, False, **a) for a in asks]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda a: structured(server, False, **a), asks)) == alone


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "'text', 'json_object' or 'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema is expected"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format", "is missing"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of json, regex and choice"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"grammar": "a"}}, "structured_outputs", "'structured_outputs.grammar' is not"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "unclosed group"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs", "look-around"),
        ({"structured_outputs": {"regex": "a" * 5000}}, "structured_outputs", "5000 bytes, this server takes 4096"),
        ({"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}}, "structured_outputs", "uniqueItems"),
        ({"structured_outputs": {"json": {"type": "strin"}}}, "structured_outputs", "strin"),
        ({"structured_outputs": {"json": {"$ref": "#"}}}, "structured_outputs", "cannot be used"),
        ({"structured_outputs": {"json": {"x-guidance": {"lenient": True}}}}, "structured_outputs", "x-guidance"),
        ({"structured_outputs": {"json": {"type": "integer", "minimum": 3, "maximum": 1}}}, "structured_outputs",
         "minimum (3) is greater than maximum (1)"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs",
         "set one"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "beside structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 2}, "min_tokens", "beside a grammar"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(server: Booted, body: dict[str, Any], param: str, words: str, stream: bool) -> None:
    reply = server.http.post("/v1/completions", json={"model": MODEL, "prompt": "p", "stream": stream, **body})
    assert reply.status_code == 400, reply.text
    assert words in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == param


def nested(depth: int) -> Any:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def test_grammars_that_are_too_hard_end_nobody_else(server: Booted) -> None:
    """Minutes of compiling, deep nesting, huge tables: each is refused, while others are served."""
    hard: list[dict[str, Any]] = [
        {"json": {"allOf": [{"type": "string", "pattern": f"a{i}"} for i in range(30)]}},
        {"json": nested(70)},
        {"regex": "(" * 2000 + "a" + ")" * 2000},
        {"choice": [str(i) for i in range(1001)]},
    ]
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(
                httpx.post,
                f"http://127.0.0.1:{server.port}/v1/completions",
                json={"model": MODEL, "prompt": "p", "structured_outputs": h},
                timeout=240,
            )
            for h in hard
        ]
        served = 0
        while not all(a.done() for a in asked):
            assert server.complete("others", max_tokens=2).status_code == 200
            served += not all(a.done() for a in asked)
    assert served >= 2  # the first may have come before any of them
    replies = [a.result() for a in asked]
    assert [r.status_code for r in replies] == [400] * len(hard), [r.text for r in replies]
    assert "takes more than 2 s" in replies[0].text
    assert "levels deep" in replies[1].text
    texts, reasons = structured(server, False, structured_outputs={"regex": "[0-9]{3}"}, temperature=0)
    assert (len(texts[0]), reasons) == (3, ["stop"])
    until(lambda: server.metric("num_requests_running") + server.metric("num_requests_waiting") == 0)


def test_work_that_is_too_much_in_one_step_ends_its_own_request(server: Booted) -> None:
    heavy = {"regex": r"(.*\p{L}.{40}){12}x"}
    reply = server.http.post(
        "/v1/completions",
        json={
            "model": MODEL, "prompt": "p", "structured_outputs": heavy, "max_tokens": 400, "temperature": 1, "seed": 1,
            "logit_bias": {str(ord("a")): 15.0, "98": 14.0, "46": 14.5},
        },
    )  # fmt: skip
    assert reply.status_code == 400, reply.text
    assert "the grammar cannot be followed" in reply.json()["error"]["message"]
    assert server.complete("still there", max_tokens=2).status_code == 200
