"""The official ``openai`` client against a running server: transcripts, errors, retries, cancellation.

The transcripts in ``golden/`` are written by ``python -m tests.engine.server.golden_update``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.engine.server.booted import (
    ENDLESS,
    MODEL,
    TRIES,
    Booted,
    boot,
    choices_ended,
    cut_short,
    halted,
    idle,
    until,
)
from tests.engine.server.openai_cases import (
    CASES,
    CONFIG,
    GOLDEN,
    HELLO,
    IGNORE_EOS,
    KEY,
    TOLERANCE,
    async_client,
    differences,
    load,
    make_artifact,
    record,
    record_async,
    sync_client,
)
from tests.tiny import EOS_ID

ENDS_ITSELF = re.compile("_(stop|eos|json|regex)")
LONG: dict[str, Any] = {"model": MODEL, "prompt": "long", "max_tokens": 480, "n": 4, "extra_body": IGNORE_EOS}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_artifact(tmp_path_factory.mktemp("transcripts"))


@pytest.fixture(scope="module")
def served(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"{KEY}\n", encoding="utf-8")
    with boot(artifact, "--api-key-file", str(keys), key=KEY, **CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def reference(artifact: Path) -> Iterator[Booted]:
    """A server that finds no compiler, so that its sums run in another order, as on another CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        with boot(artifact, **CONFIG) as running:
            assert running.http.get("/info").json()["derived"]["kernels"] == "reference"
            yield running


@pytest.fixture(scope="module")
def client(served: Booted) -> Iterator[OpenAI]:
    with sync_client(served.port) as found:
        yield found


def settled(server: Booted) -> None:
    idle(server)
    assert server.metric("kv_blocks_used") == 0
    assert server.metric("kv_integrity_errors_total") == 0


# Transcripts


def test_every_case_has_its_golden_file() -> None:
    assert sorted(p.stem for p in GOLDEN.iterdir()) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_transcript(client: OpenAI, name: str) -> None:
    assert list(differences(record(client, CASES[name]), load(name))) == []


@pytest.mark.parametrize("name", CASES)
def test_transcript_with_other_kernels(reference: Booted, name: str) -> None:
    with sync_client(reference.port) as client:
        assert list(differences(record(client, CASES[name]), load(name))) == []


async def test_transcripts_one_after_another_and_all_at_once(served: Booted) -> None:
    async with async_client(served.port) as client:
        for name, case in CASES.items():
            assert list(differences(await record_async(client, case), load(name))) == [], name
        together = await asyncio.gather(*(record_async(client, case) for case in CASES.values()))
    for name, found in zip(CASES, together, strict=True):
        assert list(differences(found, load(name))) == [], name


@pytest.mark.parametrize("name", CASES)
def test_golden_streams_follow_the_protocol(name: str) -> None:
    """Read from the files, so that a server and its transcripts cannot go wrong together."""
    if not CASES[name].stream:
        return
    chunks = load(name)["chunks"]
    wants_usage = bool(CASES[name].arguments.get("stream_options"))
    if wants_usage:
        *chunks, last = chunks
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == len(chunks)
        assert all(c["usage"] is None for c in chunks)
    else:
        assert all("usage" not in c for c in chunks)
    choices: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        choices.setdefault(choice["index"], []).append(choice)
    assert sorted(choices) == list(range(len(choices)))
    for pieces in choices.values():
        assert [p["finish_reason"] for p in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1]["finish_reason"] == ("stop" if ENDS_ITSELF.search(name) else "length")
        if "delta" in pieces[0]:
            assert [p["delta"].get("role") for p in pieces] == ["assistant"] + [None] * (len(pieces) - 1)


@pytest.mark.parametrize("name", [n for n in CASES if f"{n}_stream" in CASES])
def test_golden_streams_say_what_whole_answers_say(name: str) -> None:
    whole, chunks = load(name)["answer"], load(f"{name}_stream")["chunks"]
    for choice in whole["choices"]:
        pieces = [p for c in chunks for p in c["choices"] if p["index"] == choice["index"]]
        text = "".join(p["delta"]["content"] if "delta" in p else p["text"] for p in pieces)
        assert text == (choice["message"]["content"] if "message" in choice else choice["text"])
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
        for key, values in (choice["logprobs"] or {}).items():
            assert [x for p in pieces for x in p["logprobs"][key]] == values


@pytest.mark.parametrize("name", ["chat_logprobs_stream", "completion_echo"])
def test_a_change_of_any_field_is_seen(name: str) -> None:
    golden = load(name)
    assert list(differences(golden, golden)) == []
    answer = golden["chunks"][0] if "chunks" in golden else golden["answer"]
    count = 0
    for holder, key in _places(answer):
        kept = holder[key]
        for other in _others(kept):
            holder[key] = other
            assert len(list(differences(golden, load(name)))) == 1, (key, other)
            count += 1
        holder[key] = kept
    assert count > 40
    assert list(differences(golden, load(name))) == []


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _others(value: Any) -> list[Any]:
    """Values that are not this one; of a float also one that is a little more than the tolerance away."""
    others: dict[type, Callable[[], list[Any]]] = {
        float: lambda: [value + 1.1 * TOLERANCE, None],
        int: lambda: [value + 1, float(value), None],
        str: lambda: [value + " ", None],
        list: lambda: [[*value, None], None],
        dict: lambda: [value | {"more": 1}, None],
    }
    return others.get(type(value), lambda: [0, ""])()


def test_raw_events_end_with_done(client: OpenAI) -> None:
    create = client.chat.completions.with_streaming_response.create
    with create(model=MODEL, messages=HELLO, max_tokens=2, stream=True, temperature=0) as response:
        lines = list(response.iter_lines())
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [line.partition(":")[0] for line in lines if line] == ["data"] * 3
    assert [line for line in lines if line][-1] == "data: [DONE]"
    assert lines[1::2] == [""] * 3  # an empty line ends an event


def test_the_clients_own_accumulator(client: OpenAI) -> None:
    end = {"logit_bias": {str(EOS_ID): 100}, "extra_body": {"min_tokens": 4}}  # it takes a cut-off answer for an error
    ask: dict[str, Any] = {
        "model": MODEL,
        "messages": HELLO,
        "max_tokens": 9,
        "temperature": 0,
        "logprobs": True,
        **end,
    }
    with client.chat.completions.stream(**ask, stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        found = stream.get_final_completion()
    whole = client.chat.completions.create(**ask)
    assert found.choices[0].message.content == whole.choices[0].message.content
    assert found.choices[0].finish_reason == whole.choices[0].finish_reason
    assert found.choices[0].logprobs is not None
    assert whole.choices[0].logprobs is not None
    assert [t.logprob for t in found.choices[0].logprobs.content or []] == [
        t.logprob for t in whole.choices[0].logprobs.content or []
    ]
    assert found.usage is not None
    assert whole.usage is not None
    assert found.usage.total_tokens == whole.usage.total_tokens
    assert kinds.count("content.done") == 1


# JSON as a schema wants it


class Leg(BaseModel):
    to: Literal["Åland", "Tórshavn"]
    knots: Annotated[int, Field(ge=1, le=20)]


class Trial(BaseModel):
    """What OpenAI's client turns into a strict schema, with a definition and a reference to it."""

    verdict: Literal["ship", "hold"]
    calm: bool
    legs: Annotated[list[Leg], Field(min_length=1, max_length=2)]


ASK: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 0, "response_format": Trial}


async def test_answers_are_parsed_into_a_model(served: Booted, client: OpenAI) -> None:
    found = client.chat.completions.parse(**ASK, n=2).choices
    assert all(c.finish_reason == "stop" and isinstance(c.message.parsed, Trial) for c in found)
    async with async_client(served.port) as other:
        assert (await other.chat.completions.parse(**ASK)).choices[0].message == found[0].message
    with client.chat.completions.stream(**ASK) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        last = stream.get_final_completion().choices[0].message
    assert last.parsed == found[0].message.parsed
    assert "".join(deltas) == last.content == found[0].message.content


def test_an_answer_that_is_cut_off_is_not_parsed(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError) as raised:
        client.chat.completions.parse(**ASK, max_completion_tokens=5)
    assert raised.value.completion.choices[0].finish_reason == "length"


def test_a_schema_that_cannot_be_used(client: OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "odd", "schema": {"type": "ship"}}}
    with pytest.raises(openai.BadRequestError, match="ship") as raised:
        client.chat.completions.create(model=MODEL, messages=HELLO, response_format=form)
    assert raised.value.param == "response_format"


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "seatrial")
    assert client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client.models.retrieve("org/other")


# Errors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"temperature": -1}, openai.BadRequestError, "parameter 'temperature'"),
        ({"max_tokens": 5000}, openai.BadRequestError, "at most 512"),
        ({"prompt": "y" * 600}, openai.BadRequestError, "600 tokens and max_tokens is 16"),
        ({"extra_body": {"wish": 1}}, openai.BadRequestError, "parameter 'wish' is not supported"),
        ({"model": "other"}, openai.NotFoundError, "this server has 'tiny'"),
    ],
)
def test_refusals_are_the_clients_errors(
    client: OpenAI, arguments: dict[str, Any], kind: type[openai.APIStatusError], words: str, stream: bool
) -> None:
    with pytest.raises(kind, match=words) as raised:
        client.completions.create(**{"model": MODEL, "prompt": "p", "stream": stream, **arguments})
    error = raised.value
    assert isinstance(error.body, dict)
    assert error.body.keys() == {"message", "type", "param", "code"}
    named = {"temperature", "wish", "model"} & {*arguments, *arguments.get("extra_body", {})}
    assert error.param == (named.pop() if named else None)
    assert error.type == {400: "invalid_request_error", 404: "not_found_error"}[error.status_code]
    assert words in error.body["message"]


def test_a_wrong_key_is_an_authentication_error(served: Booted) -> None:
    with sync_client(served.port, api_key="open") as client:
        for ask in (client.models.list, lambda: client.completions.create(model=MODEL, prompt="p", stream=True)):
            with pytest.raises(openai.AuthenticationError, match="the API key is not accepted") as raised:
                ask()
            assert raised.value.type == "authentication_error"


def test_a_path_that_is_not_there(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings"):
        client.embeddings.create(model=MODEL, input="x")


async def test_refusals_of_the_asyncio_client(served: Booted) -> None:
    async with async_client(served.port) as client:
        with pytest.raises(openai.BadRequestError, match="parameter 'top_p'"):
            await client.completions.create(model=MODEL, prompt="p", top_p=0)
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            await client.chat.completions.create(model="other", messages=HELLO, stream=True)


def fill(client: OpenAI) -> Any:
    """A stream that, with all its choices, takes every place of the server."""
    stream = client.completions.create(**LONG | {"n": 16 + CONFIG["max_queue"]}, stream=True)
    next(iter(stream))
    return stream


def test_a_full_queue_is_a_rate_limit_error_with_a_time_to_wait(served: Booted, client: OpenAI) -> None:
    stream = fill(client)
    try:
        with halted(served), pytest.raises(openai.RateLimitError, match="try again") as raised:
            client.completions.create(model=MODEL, prompt="p")
        assert 1 <= int(raised.value.response.headers["retry-after"]) <= 60
        assert raised.value.type == "rate_limit_error"
    finally:
        stream.close()
    settled(served)


def test_retries_wait_as_told_and_succeed_when_there_is_room(served: Booted, client: OpenAI) -> None:
    stream = fill(client)
    before = served.metric('requests_rejected_total{reason="queue_full"}')

    def refused() -> int:
        return int(served.metric('requests_rejected_total{reason="queue_full"}') - before)

    try:
        patient = client.with_options(max_retries=20)
        with ThreadPoolExecutor(1) as pool:
            with halted(served):  # nobody makes place before the first refusal
                asked = pool.submit(patient.completions.with_raw_response.create, model=MODEL, prompt="p", max_tokens=1)
                until(lambda: refused() > 0)
            stream.close()
            reply = asked.result()
        assert 1 <= reply.retries_taken <= 20
        assert reply.retries_taken == refused()
        assert reply.parse().choices[0].finish_reason in {"stop", "length"}
    finally:
        stream.close()
    settled(served)


def test_a_dead_core_is_an_internal_server_error(endless: Path) -> None:
    with boot(endless, max_model_len=32_768) as server, sync_client(server.port) as client:
        stream = client.completions.create(model=MODEL, prompt="p", stream=True, extra_body=ENDLESS)
        next(iter(stream))
        os.kill(server.core_pid, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="the engine core ended with exit code -9"):
            list(stream)
        for streams in (False, True):
            with pytest.raises(openai.InternalServerError, match="the engine core ended") as raised:
                client.completions.create(model=MODEL, prompt="p", stream=streams)
            assert raised.value.status_code == 503
            assert raised.value.type == "unavailable_error"


# Cancellation


def test_closing_a_stream_frees_its_blocks(served: Booted, client: OpenAI) -> None:
    def leave() -> None:
        stream = client.completions.create(**LONG, stream=True)
        for _, _chunk in zip(range(8), stream, strict=False):
            pass
        stream.close()

    cut_short(served, leave, LONG["n"], LONG["max_tokens"])
    settled(served)


def test_a_closed_stream_is_freed_whole_in_one_step(served: Booted, client: OpenAI) -> None:
    """The core is halted until the server has noticed, so that the steps that follow are the core's own delay.

    One step or two, unless a paused machine keeps the message from it: then it is tried again.
    """
    delays = []
    for _ in range(TRIES):
        settled(served)
        ended, stream = choices_ended(served), client.completions.create(**LONG, stream=True)
        next(iter(stream))
        with halted(served):
            stream.close()
            until(lambda n=ended: choices_ended(served) == n + LONG["n"])  # type: ignore[misc]
            halted_at = served.http.get("/steps").json()["rows"][-1]["step"]
        settled(served)
        rows = served.http.get("/steps", params={"since": halted_at}).json()["rows"]
        if not rows:  # it had ended before it was halted
            continue
        *rest, last = rows
        assert all(row["running"] == LONG["n"] for row in rest)
        assert (last["running"], last["blocks_used"], last["decode_requests"]) == (0, 0, 0)
        delays.append(len(rest))
        if delays[-1] <= 50:  # of the 480 that it would take
            return
    raise AssertionError(f"a closed stream was freed after {delays} steps")


def test_leaving_the_with_block_frees_its_blocks(served: Booted, client: OpenAI) -> None:
    def leave() -> None:
        with client.completions.create(**LONG, stream=True) as stream:
            next(iter(stream))

    cut_short(served, leave, LONG["n"], LONG["max_tokens"])
    settled(served)


def test_a_timeout_frees_its_blocks(served: Booted, client: OpenAI) -> None:
    def leave() -> None:
        ended = choices_ended(served)
        with halted(served):  # no answer comes in time
            with pytest.raises(openai.APITimeoutError):
                client.with_options(timeout=1.0).completions.create(**LONG | {"n": 64})
            until(lambda: choices_ended(served) == ended + 64)

    cut_short(served, leave, 64, LONG["max_tokens"])
    settled(served)


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_a_task_frees_its_blocks(served: Booted, stream: bool) -> None:
    async def ask() -> None:
        async with async_client(served.port) as client:
            answer: Any = await client.completions.create(**LONG, stream=stream)
            if stream:
                async for _ in answer:
                    pass

    async def cancelled() -> None:
        task = asyncio.create_task(ask())
        while not task.done() and served.metric("num_requests_running") < LONG["n"]:
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # unless it was done: then it is tried again
            await task

    cut_short(served, lambda: asyncio.run(cancelled()), LONG["n"], LONG["max_tokens"])
    settled(served)


def test_closing_an_asyncio_stream_frees_its_blocks(served: Booted) -> None:
    async def closed() -> None:
        async with async_client(served.port) as client:
            stream = await client.completions.create(**LONG, stream=True)
            await anext(aiter(stream))
            await stream.close()

    cut_short(served, lambda: asyncio.run(closed()), LONG["n"], LONG["max_tokens"])
    settled(served)
