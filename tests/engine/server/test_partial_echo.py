"""``prompt_logprobs_from``: the end of a prompt alone is echoed and scored, with the bits that the whole has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.server.booted import MODEL, Booted

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def echoed(server: Booted, prompt: Any, **parameters: Any) -> dict[str, Any]:
    body = {"max_tokens": 0, "echo": True, "logprobs": 2, **parameters}
    response = server.complete(prompt, **body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def expect_end(choice: dict[str, Any], whole: dict[str, Any], characters: int, tokens: int) -> None:
    assert choice["text"] == whole["text"][characters:]
    for name in LISTS:
        assert choice["logprobs"][name] == whole["logprobs"][name][tokens:]


@pytest.mark.parametrize("start", [0, 1, 40, 63, 64])
def test_the_end_of_a_prompt_has_the_bits_of_the_whole(server: Booted, start: int) -> None:
    text = "from somewhere in here on, it is said: " + "x" * 26
    (whole,) = echoed(server, text)["choices"]
    for prompt in (text, list(text.encode())):
        for _ in range(2):  # the second time the cache has the beginning
            (choice,) = echoed(server, prompt, prompt_logprobs_from=start)["choices"]
            expect_end(choice, whole, start, start)


def test_choices_share_what_is_before_them(server: Booted) -> None:
    question = "a question that nobody has put before: "
    choices = ["yes", "yet", "no", "n"]
    whole = [echoed(server, question + c)["choices"][0] for c in choices]
    other = question.replace("before", "so far")  # as long, and not in the cache
    apart = [echoed(server, other + c)["choices"][0] for c in choices]
    for asked, truth in ((question, whole), (other, apart)):
        reply = echoed(server, [asked + c for c in choices], prompt_logprobs_from=len(asked))
        for k, choice in enumerate(reply["choices"]):
            assert choice["index"] == k
            expect_end(choice, truth[k], len(asked), len(asked))
        details = reply["usage"]["prompt_tokens_details"]
        assert reply["usage"]["prompt_tokens"] == sum(len(asked + c) for c in choices)
        assert details["cached_tokens"] >= 3 * len(asked)


def test_each_prompt_can_have_an_offset_of_its_own(server: Booted) -> None:
    texts = ["the first", "the second one", "the second two"]
    whole = echoed(server, texts)["choices"]
    for k, choice in enumerate(echoed(server, texts, prompt_logprobs_from=[4, 0, 11])["choices"]):
        expect_end(choice, whole[k], [4, 0, 11][k], [4, 0, 11][k])


def test_offsets_are_characters_and_a_token_in_the_middle_of_one_is_its_own(server: Booted) -> None:
    text = "a é𝄞z"  # tokens are bytes: 1, 1, 2, 4, 1 of them
    (whole,) = echoed(server, text)["choices"]
    for characters, tokens in ((1, 1), (2, 2), (3, 4), (4, 8)):
        (choice,) = echoed(server, text, prompt_logprobs_from=characters)["choices"]
        expect_end(choice, whole, characters, tokens)


def test_an_output_follows_as_ever(server: Booted) -> None:
    text = "and then it goes on with"
    body = {"max_tokens": 4, "n": 2, "temperature": 0}
    whole = echoed(server, text, **body)["choices"]
    for choice, truth in zip(echoed(server, text, prompt_logprobs_from=9, **body)["choices"], whole, strict=True):
        expect_end(choice, truth, 9, 9)
    asked = {"prompt": text, "echo": True, "logprobs": 2, "ignore_eos": True, "prompt_logprobs_from": 9, **body, "n": 1}
    pieces = server.stream("/v1/completions", **asked)
    streamed = [c["choices"][0] for c in pieces]
    joined = {
        "text": "".join(c["text"] for c in streamed),
        "logprobs": {name: [v for c in streamed for v in c["logprobs"][name]] for name in LISTS},
    }
    expect_end(joined, whole[0], 9, 9)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"prompt_logprobs_from": 5}, "prompt_logprobs_from is 5 in a prompt of 5 characters; expected fewer"),
        ({"prompt_logprobs_from": -1}, "parameter 'prompt_logprobs_from"),
        ({"prompt_logprobs_from": [1, 2]}, "has 2 offsets for 1 prompts; expected one for each, or one number"),
        ({"prompt_logprobs_from": 1, "logprobs": None}, "set echo and logprobs"),
        ({"prompt_logprobs_from": 1, "echo": False, "max_tokens": 1}, "set echo and logprobs"),
    ],
)
def test_what_cannot_be_left_out_is_refused(server: Booted, parameters: dict[str, Any], message: str) -> None:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 0, **parameters}
    response = server.http.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
