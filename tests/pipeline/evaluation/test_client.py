"""The client against a server with known answers and planted faults."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.errors import SeatrialError
from pipeline.evaluation import client as client_module
from pipeline.evaluation.client import (
    Client,
    ProtocolError,
    Refused,
    Reply,
    TransportFailure,
    continuation_logprobs,
    open_http,
    request_for,
)
from pipeline.evaluation.items import Item
from tests.pipeline.evaluation.fake_openai import Fake, serving
from tests.pipeline.evaluation.make import chat_item, choice_item


def ask(fake: Fake, item: Item, check_alive=lambda: None, choices_alone=False) -> Reply:  # type: ignore[no-untyped-def]
    async def go() -> Reply:
        async with open_http(fake.base_url, 1) as http:
            request = request_for(item, "m", choices_alone)
            return await Client(fake.base_url, check_alive, http).ask(item, request)

    return asyncio.run(go())


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses between attempts are noted and not slept."""
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(client_module.asyncio, "sleep", note)
    return slept


def test_a_chat_item_goes_to_the_chat_endpoint_greedily() -> None:
    with serving(Fake({"Which city?": "Paris."})) as fake:
        reply = ask(fake, chat_item(max_tokens=9))
    assert (reply.text, reply.finish_reason, reply.prompt_tokens, reply.output_tokens) == ("Paris.", "stop", 5, 3)
    assert fake.requests == [
        {
            "path": "/v1/chat/completions",
            "model": "m",
            "temperature": 0,
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Which city?"}],
        }
    ]


def test_a_raw_prompt_goes_to_completions_unchanged() -> None:
    with serving(Fake({"2 + 2 =": " 4"})) as fake:
        reply = ask(fake, chat_item(messages=None, prompt="2 + 2 ="))
    assert reply.text == " 4"
    assert fake.requests[0]["path"] == "/v1/completions"
    assert fake.requests[0]["prompt"] == "2 + 2 ="


def test_choices_are_scored_on_their_own_tokens_in_the_order_of_the_index() -> None:
    with serving(Fake()) as fake:
        reply = ask(fake, choice_item())
    assert reply.choice_logprobs == [[-1.0, -1.0], [-0.25, -1.0], [-1.0, -1.0]]
    assert reply.finish_reason is None
    sent = fake.requests[0]
    assert (sent["echo"], sent["logprobs"], sent["max_tokens"], sent["temperature"]) == (True, 1, 0, 0)
    assert sent["prompt"][2] == "choice.one says the way is up there"


def test_a_server_that_can_is_asked_for_the_choices_alone() -> None:
    item = choice_item()
    with serving(Fake()) as fake:
        reply = ask(fake, item, choices_alone=True)
        assert reply.choice_logprobs == ask(fake, item).choice_logprobs
    sent = fake.requests[0]
    assert (sent["echo"], sent["logprobs"], sent["max_tokens"]) == (True, 0, 0)
    assert sent["prompt_logprobs_from"] == len(item.prompt or "")
    assert sent["prompt"] == fake.requests[1]["prompt"]
    assert "prompt_logprobs_from" not in fake.requests[1]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no_logprobs", "no log-probabilities for echo=true"),
        ("short_logprobs", "2 tokens, 1 token_logprobs"),
        ("shifted", "the echo ends in ' left here', expected 'left here'"),
        ("other_echo", r"the echo ends in '\?', expected ' left here'"),
    ],
)
def test_a_broken_form_of_the_choices_alone_is_named(fault: str, message: str) -> None:
    with serving(Fake(fault=fault)) as fake, pytest.raises(ProtocolError, match=message):
        ask(fake, choice_item(), choices_alone=True)


def test_a_full_queue_is_waited_for_as_long_as_the_server_asks(no_pauses: list[float]) -> None:
    fake = Fake()
    fake.script = [(429, {"Retry-After": "3"}), (503, {}), (429, {"Retry-After": "Mon, 01 Jan 2029 00:00:00 GMT"})]
    with serving(fake):
        assert ask(fake, chat_item()).text == "answer to Which city?"
    assert no_pauses == [3.0, 1.0, 1.0]


def test_a_queue_that_stays_full_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BUSY_S", 0.0)
    fake = Fake()
    fake.script = [(429, {})] * 3
    with serving(fake), pytest.raises(TransportFailure, match="429: scripted 429"):
        ask(fake, chat_item())


def test_server_errors_are_tried_three_times() -> None:
    fake = Fake()
    fake.script = [(500, {}), (502, {})]
    with serving(fake):
        assert ask(fake, chat_item()).text == "answer to Which city?"
        fake.script = [(500, {})] * 3
        with pytest.raises(TransportFailure, match="500: scripted 500"):
            ask(fake, chat_item())
    assert len(fake.requests) == 6


def test_a_cut_connection_is_a_transport_failure() -> None:
    fake = Fake()
    fake.drop = {"Which city?"}
    with serving(fake), pytest.raises(TransportFailure, match="Error"):
        ask(fake, chat_item())
    assert len(fake.requests) == 3


def test_a_dead_server_ends_the_run_at_once() -> None:
    def dead() -> None:
        raise SeatrialError("the server ended with exit code 7")

    fake = Fake()
    fake.drop = {"Which city?"}
    with serving(fake), pytest.raises(SeatrialError, match="exit code 7"):
        ask(fake, chat_item(), dead)
    assert len(fake.requests) == 1


def test_a_refused_item_is_not_asked_again() -> None:
    fake = Fake()
    fake.refuse = {"Which city?"}
    with serving(fake), pytest.raises(Refused, match="400: prompt too long"):
        ask(fake, chat_item())
    assert len(fake.requests) == 1


def test_a_wrong_model_name_is_the_run_s_problem() -> None:
    fake = Fake()
    fake.script = [(404, {})]
    with serving(fake), pytest.raises(SeatrialError, match=r"refused model 'm': 404.*check the server's address"):
        ask(fake, chat_item())


@pytest.mark.parametrize(
    ("fault", "item", "message"),
    [
        ("no_usage", chat_item(), "item extract.one: the reply has no 'usage'"),
        ("no_logprobs", choice_item(), "item choice.one: no log-probabilities for echo=true"),
        ("short_logprobs", choice_item(), "tokens, 6 token_logprobs"),
        ("shifted", choice_item(), "no token begins where the choice ' left here' begins"),
        ("other_echo", choice_item(), r"the echo ends in '\?'"),
        ("not_json", chat_item(), "which is not JSON"),
    ],
)
def test_a_broken_form_is_named(fault: str, item: Item, message: str) -> None:
    with serving(Fake(fault=fault)) as fake, pytest.raises(ProtocolError, match=message):
        ask(fake, item)


def test_an_aborted_answer_is_not_an_answer() -> None:
    with serving(Fake(fault="abort")) as fake, pytest.raises(TransportFailure, match="finish_reason 'abort'"):
        ask(fake, chat_item())


def echo(tokens: list[str], values: list[float | None], offsets: list[int], text: str) -> dict[str, object]:
    return {"text": text, "logprobs": {"tokens": tokens, "token_logprobs": values, "text_offset": offsets}}


def test_a_bos_that_is_part_of_the_echo_is_counted() -> None:
    found = continuation_logprobs("ab", "ab c", echo(["<s>", "ab", " c"], [None, -1, -2], [0, 3, 5], "<s>ab c"))
    assert found == [-2.0]


def test_a_bos_that_is_only_in_the_offsets_is_counted() -> None:
    found = continuation_logprobs("ab", "ab c", echo(["<s>", "ab", " c"], [None, -1, -2], [0, 3, 5], "ab c"))
    assert found == [-2.0]


def test_a_token_across_the_edge_is_refused() -> None:
    with pytest.raises(ValueError, match="no token begins where the choice 'cd' begins"):
        continuation_logprobs("ab", "abcd", echo(["a", "bc", "d"], [None, -1, -2], [0, 1, 3], "abcd"))


def test_of_an_echo_from_the_choice_on_nothing_may_be_missing() -> None:
    assert continuation_logprobs("ab", "ab c", echo([" c"], [-2], [2], " c"), whole=False) == [-2.0]
    with pytest.raises(ValueError, match=r"no token begins where the choice 'cd' begins.*\['bc', 'd'\]"):
        continuation_logprobs("ab", "abcd", echo(["bc", "d"], [-1, -2], [1, 3], "bcd"), whole=False)
    with pytest.raises(ValueError, match="no token begins where the choice 'cd' begins"):
        continuation_logprobs("ab", "abcd", echo(["d"], [-2], [3], "d"), whole=False)
    with pytest.raises(ValueError, match="the echo ends in 'abcd', expected 'cd'"):
        continuation_logprobs("ab", "abcd", echo(["cd"], [-2], [2], "abcd"), whole=False)
    with pytest.raises(ValueError, match="the echo ends in '', expected 'abcd'"):
        continuation_logprobs("ab", "abcd", echo([], [], [], ""), whole=False)


@pytest.mark.parametrize("bad", [None, float("nan"), float("-inf"), 0.5, "x"])
def test_impossible_log_probabilities_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="expected finite numbers not above 0"):
        continuation_logprobs("ab", "ab c", echo(["ab", " c"], [None, bad], [0, 2], "ab c"))  # type: ignore[list-item]
