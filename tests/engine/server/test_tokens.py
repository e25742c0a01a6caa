from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.server.booted import MODEL, Booted
from tests.tiny import EOS_ID

CHARACTERS = st.characters(exclude_categories=["Cs"])


def post(server: Booted, path: str, **body: Any) -> Any:
    reply = server.http.post(path, json={"model": MODEL, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(st.text(CHARACTERS, max_size=40) | st.just("<|im_end|> and <|im_start|>"))
def test_round_trip(server: Booted, text: str) -> None:
    found = post(server, "/tokenize", prompt=text, return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == 512
    assert post(server, "/detokenize", tokens=found["tokens"]) == {"prompt": text}


def test_tokens_are_those_of_a_request(server: Booted) -> None:
    messages = [{"role": "user", "content": "hé"}]
    found = post(server, "/tokenize", messages=messages, return_token_strs=True)
    assert post(server, "/detokenize", tokens=found["tokens"])["prompt"] == (
        "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n"
    )
    assert found["token_strs"][:2] == ["<|im_start|>", "u"]
    assert "bytes:\\xc3" in found["token_strs"]
    usage = post(server, "/v1/chat/completions", messages=messages, max_tokens=1)["usage"]
    assert usage["prompt_tokens"] == found["count"]
    assert "token_strs" not in post(server, "/tokenize", prompt="a")
    assert post(server, "/tokenize", prompt="a", add_special_tokens=False)["tokens"] == [ord("a")]
    assert post(server, "/tokenize", prompt="") == {"tokens": [], "count": 0, "max_model_len": 512}
    assert post(server, "/detokenize", tokens=[]) == {"prompt": ""}
    assert post(server, "/detokenize", tokens=[0xC3, EOS_ID, 97]) == {"prompt": "\ufffd<|im_end|>a"}


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        ("/tokenize", {}, 400, None, "either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 400, None, "either"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt", "prompt"),
        ("/tokenize", {"prompt": "a", "truncate": 3}, 400, "truncate", "'truncate' is not supported"),
        ("/tokenize", {"prompt": "a", "model": "x"}, 404, "model", "is not served here"),
        ("/detokenize", {"tokens": [1, 272]}, 400, "tokens", "token id 272 is outside the vocabulary of 272"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens", "tokens"),
        ("/detokenize", {"tokens": "abc"}, 400, "tokens", "tokens"),
        ("/detokenize", {"tokens": [2**64]}, 400, "tokens", "tokens"),
    ],
)
def test_refusals(server: Booted, path: str, body: dict[str, Any], status: int, param: str | None, words: str) -> None:
    reply = server.http.post(path, json={"model": MODEL, **body})
    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == param


def test_bodies_are_bounded(server: Booted) -> None:
    assert server.http.post("/tokenize", content=b" " * (2**21 + 1)).status_code == 413
    assert server.http.post("/detokenize", content=b"[").status_code == 400
