"""The protocol of a running server, on the tiny model with one token a byte."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.server.booted import MODEL, TRIES, Booted, choices_ended, cut_short, events, halted, idle, until
from tests.tiny import EOS_ID

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def test_models_health_info(server: Booted) -> None:
    assert server.http.get("/health").json() == {"status": "ok"}
    (model,) = server.http.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == (MODEL, 512)
    info = server.http.get("/info").json()
    assert info["artifact"]["name"] == "tiny-bf16"
    assert info["config"]["max_queue"] == 4
    assert info["derived"]["compute_dtype"] == "float32"
    assert info["memory"]["rss_bytes"] > info["memory"]["weights_bytes"] > 0
    assert info["memory"]["kv_pool_bytes"] > 0
    assert info["memory"]["rss_bytes"] > info["memory"]["core_rss_bytes"] > info["memory"]["weights_bytes"]
    assert info["memory"]["core_peak_rss_bytes"] >= info["memory"]["core_rss_bytes"]


def test_stream_of_one_chunk_a_token(server: Booted) -> None:
    parameters = {"prompt": "abc", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    whole = server.http.post("/v1/completions", json={"model": MODEL, **parameters}).json()
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = server.stream("/v1/completions", stream_options=options, **parameters)
    *tokens, last = chunks
    assert len(tokens) == 12
    assert "".join(c["choices"][0]["text"] for c in tokens) == whole["choices"][0]["text"]
    assert [c["choices"][0]["finish_reason"] for c in tokens] == [None] * 11 + ["length"]
    assert [c["usage"]["completion_tokens"] for c in tokens] == list(range(1, 13))
    assert last["choices"] == []
    assert last["usage"] == whole["usage"] | {"prompt_tokens_details": last["usage"]["prompt_tokens_details"]}
    assert last["usage"]["prompt_tokens"] == 3


def test_chat_stream_has_the_role_with_the_first_token(server: Booted) -> None:
    chunks = server.stream(CHAT, messages=HELLO, max_tokens=4, temperature=0, ignore_eos=True)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert [d.get("role") for d in deltas] == ["assistant", None, None, None]
    assert all("content" in d for d in deltas)
    assert all("usage" not in c for c in chunks)
    whole = server.http.post(
        CHAT, json={"model": MODEL, "messages": HELLO, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    ).json()
    assert whole["choices"][0]["message"]["content"] == "".join(d["content"] for d in deltas)
    assert whole["usage"]["prompt_tokens"] == len("user\nhello\nassistant\n") + 3  # three special tokens


def test_chat_content_parts_and_logprobs(server: Booted) -> None:
    body = {"model": MODEL, "max_completion_tokens": 3, "temperature": 0, "ignore_eos": True}
    parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    one = server.http.post(CHAT, json={**body, "messages": HELLO, "logprobs": True, "top_logprobs": 2}).json()
    two = server.http.post(CHAT, json={**body, "messages": parts}).json()
    assert one["choices"][0]["message"] == two["choices"][0]["message"]
    content = one["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    assert all(len(c["top_logprobs"]) == 2 and c["logprob"] == c["top_logprobs"][0]["logprob"] for c in content)
    assert (
        bytes(b for c in content for b in c["bytes"]).decode(errors="replace")
        == one["choices"][0]["message"]["content"]
    )


def test_echo_logprobs_equal_a_full_forward_pass(server: Booted, artifact: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    text = "the quick brown fox " * 15 + "jumps"  # longer than one chunk of prefill
    reply = server.complete(text, echo=True, logprobs=3, max_tokens=5).json()["choices"][0]
    found = reply["logprobs"]
    model = AutoModelForCausalLM.from_pretrained(artifact, dtype=torch.float32)
    ids = list(text.encode())
    for _ in range(5):
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    with torch.inference_mode():
        truth = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    expected = truth[:-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1))[:, 0].tolist()
    assert found["token_logprobs"][1:] == pytest.approx(expected, abs=1e-3)
    for i, top in enumerate(found["top_logprobs"][1:]):
        best = truth[i].topk(3).values.tolist()
        assert sorted(top.values(), reverse=True)[:3] == pytest.approx(best, abs=1e-3)
    assert found["text_offset"][: len(text)] == list(range(len(text)))
    assert "".join(found["tokens"][: len(text)]) == text
    assert reply["text"].startswith(text)


def test_scoring_by_tokens_and_many_prompts(server: Booted) -> None:
    texts = ["score me", "score you"]
    by_text = server.complete(texts, echo=True, logprobs=0, max_tokens=0).json()
    by_ids = server.complete([list(t.encode()) for t in texts], echo=True, logprobs=0, max_tokens=0).json()
    for k, text in enumerate(texts):
        for reply in (by_text, by_ids):
            choice = reply["choices"][k]
            assert (choice["index"], choice["text"], choice["finish_reason"]) == (k, text, "length")
            assert len(choice["logprobs"]["token_logprobs"]) == len(text)
        assert by_text["choices"][k]["logprobs"] == by_ids["choices"][k]["logprobs"]
    assert by_text["usage"]["completion_tokens"] == 0
    assert by_text["usage"]["prompt_tokens"] == 17


def test_stop_strings_in_both_modes(server: Booted) -> None:
    full = text_of(server.complete("stop here", max_tokens=40))
    at = next(i for i in range(8, len(full) - 3) if "\ufffd" not in full[i : i + 3])
    stop = full[at : at + 3]
    expected = full[: full.index(stop)]
    reply = server.complete("stop here", max_tokens=40, stop=[stop, "never"]).json()
    assert reply["choices"][0]["text"] == expected
    assert reply["choices"][0]["finish_reason"] == "stop"
    body = {"prompt": "stop here", "max_tokens": 40, "stop": stop, "temperature": 0, "ignore_eos": True}
    chunks = server.stream("/v1/completions", **body)
    assert "".join(c["choices"][0]["text"] for c in chunks) == expected
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == ["stop"]
    idle(server)
    assert server.metric("kv_blocks_used") == 0


def test_end_of_sequence_gives_no_text(server: Booted) -> None:
    bias = {str(EOS_ID): 100}
    reply = server.complete("x", max_tokens=9, ignore_eos=False, logit_bias=bias, min_tokens=3).json()
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == 4
    assert "im_end" not in reply["choices"][0]["text"]
    ignored = server.complete("x", max_tokens=9, logit_bias=bias).json()
    assert (ignored["choices"][0]["text"], ignored["choices"][0]["finish_reason"]) == ("", "length")
    assert ignored["usage"]["completion_tokens"] == 9


def test_penalties_and_bias_act(server: Booted) -> None:
    plain = text_of(server.complete("pen", max_tokens=30))
    assert text_of(server.complete("pen", max_tokens=30, logit_bias={"65": 100})) == "A" * 30
    assert text_of(server.complete("pen", max_tokens=30, repetition_penalty=5.0)) != plain
    biased = {str(b): 50.0 for b in b"ABC"}
    spread = text_of(server.complete("pen", max_tokens=30, logit_bias=biased, frequency_penalty=2.0))
    assert max(spread.count(c) for c in "ABC") - min(spread.count(c) for c in "ABC") <= 4
    assert set(spread) == set("ABC")


def test_samples_with_seed(server: Booted) -> None:
    ask = {"max_tokens": 8, "temperature": 1.0, "seed": 7, "top_p": 0.9, "top_k": 50}
    one = server.complete("seeded", n=3, **ask).json()
    assert [c["index"] for c in one["choices"]] == [0, 1, 2]
    texts = [c["text"] for c in one["choices"]]
    assert len(set(texts)) == 3
    assert [c["text"] for c in server.complete("seeded", n=3, **ask).json()["choices"]] == texts
    assert text_of(server.complete("seeded", **ask)) == texts[0]
    assert one["usage"]["prompt_tokens"] == 6
    assert one["usage"]["completion_tokens"] == 24


def test_warm_prefix_is_reported_and_changes_nothing(server: Booted) -> None:
    prompt = "a prefix that is longer than two blocks of sixteen"
    cold = server.complete(prompt, max_tokens=6).json()
    warm = server.complete(prompt, max_tokens=6).json()
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
    assert warm["choices"][0]["text"] == cold["choices"][0]["text"]


def test_sixteen_at_once_are_the_same_as_alone(server: Booted) -> None:
    rng = random.Random(0)
    asks: list[dict[str, Any]] = [
        {
            "prompt": [rng.randrange(256) for _ in range(rng.randrange(1, 300))],
            "max_tokens": rng.randrange(5, 40),
            "temperature": rng.choice([0, 0.8]),
            "seed": i,
        }
        for i in range(16)
    ]
    alone = [text_of(server.complete(**a)) for a in asks]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda a: text_of(server.complete(**a)), asks))
    assert together == alone


def test_queue_is_bounded_and_says_when_to_come_back(server: Booted) -> None:
    room = 16 + 4
    idle(server)
    with ThreadPoolExecutor(room + 8) as pool:
        with halted(server):  # until all are there: none makes place for another
            asked = [pool.submit(server.complete, "q" * (i + 1), max_tokens=30) for i in range(room + 8)]
            until(lambda: sum(a.done() for a in asked) == 8)
        replies = [a.result() for a in asked]
    codes = [r.status_code for r in replies]
    assert codes.count(200) == room
    refused = [r for r in replies if r.status_code == 429]
    assert len(refused) == 8
    assert all(1 <= int(r.headers["Retry-After"]) <= 60 for r in refused)
    assert refused[0].json()["error"]["type"] == "rate_limit_error"
    idle(server)
    assert server.metric('requests_rejected_total{reason="queue_full"}') >= 8


def test_a_client_that_leaves_frees_its_blocks(server: Booted) -> None:
    body = {"model": MODEL, "prompt": "long", "max_tokens": 500, "stream": True, "ignore_eos": True}

    def leave() -> None:
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())

    cut_short(server, leave, 1, 500)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_waiting(server: Booted, stream: bool) -> None:
    """While all slots are taken: the engine stands still from the moment the client waits until it has left. A try in
    which the slots had become free by then is made again.
    """
    body = {"model": MODEL, "prompt": "waits", "max_tokens": 500, "ignore_eos": True, "stream": stream}
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    for _ in range(TRIES):
        idle(server)
        before, ended = server.metric("generation_tokens_total"), choices_ended(server)
        with ThreadPoolExecutor(2) as pool, httpx.Client(timeout=httpx.Timeout(60, read=0.5)) as client:
            busy = pool.submit(server.complete, "busy", n=16, max_tokens=500)  # takes every slot
            until(lambda: server.metric("num_requests_running") == 16 or busy.done())  # noqa: B023 (called at once)
            leaving = pool.submit(client.post, url, json=body)
            until(lambda: server.metric("num_requests_waiting") == 1 or busy.done())  # noqa: B023 (called at once)
            with halted(server):
                left = isinstance(leaving.exception(), httpx.ReadTimeout)
                waited = left and not busy.done()
            assert busy.result().status_code == 200
        until(lambda n=ended: choices_ended(server) == n + 17)  # type: ignore[misc]
        idle(server)
        if waited:
            assert server.metric("generation_tokens_total") - before == 16 * 500
            return
    raise AssertionError(f"in none of {TRIES} tries all slots were taken for as long as the client waited")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"foo": 1}, 400, "parameter 'foo' is not supported"),
        ({"best_of": 2}, 400, "best_of"),
        ({"prompt": None}, 400, "parameter 'prompt' is missing"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [1, 300]}, 400, "token id 300 is outside the vocabulary of 272"),
        ({"prompt": ""}, 400, "no token"),
        ({"model": "other"}, 404, "this server has 'tiny'"),
        ({"temperature": -1}, 400, "parameter 'temperature'"),
        ({"temperature": "hot"}, 400, "parameter 'temperature'"),
        ({"top_p": 0}, 400, "parameter 'top_p'"),
        ({"max_tokens": 0}, 400, "max_tokens is 0 without echo"),
        ({"min_tokens": 20, "max_tokens": 10}, 400, "min_tokens is 20, expected 0 to 10"),
        ({"stop": ""}, 400, "stop"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options is set but stream is not"),
        ({"logit_bias": {"999": 1}}, 400, "token id 999 is outside the vocabulary"),
        ({"prompt": "y" * 600, "stream": True}, 400, "600 tokens and max_tokens is 16, 616 together"),
        ({"prompt": "y" * 600, "stream": True}, 400, "at most 512"),
    ],
)
def test_refusals_name_what_is_wrong(server: Booted, body: dict[str, Any], status: int, words: str) -> None:
    reply = server.http.post("/v1/completions", json={"model": MODEL, "prompt": "p", **body})
    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"tools": []}, "parameter 'tools' is not supported"),
        ({"top_logprobs": 2}, "top_logprobs is set but logprobs is not"),
        ({"max_tokens": 2, "max_completion_tokens": 2}, "set one of them"),
        ({"messages": [{"role": "user", "content": "z" * 600}]}, "serves at most 512"),
    ],
)
def test_chat_refusals(server: Booted, body: dict[str, Any], words: str) -> None:
    reply = server.http.post(CHAT, json={"model": MODEL, "messages": HELLO, **body})
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]


def test_bodies_that_are_no_json_and_paths_that_are_not_there(server: Booted) -> None:
    assert "not JSON" in server.http.post("/v1/completions", content=b"{").json()["error"]["message"]
    assert server.http.get("/v2").json()["error"]["code"] == 404
    reply = server.http.get("/v1/completions")
    assert (reply.status_code, reply.json()["error"]["type"]) == (405, "invalid_request_error")


@pytest.mark.parametrize(
    "rest",
    [
        b'"prompt": "\\ud800"',
        b'"prompt": "a", "stop": "\\udfff"',
        b'"prompt": "a", "max_tokens": ' + b"9" * 30,
        b'"prompt": "a", "max_tokens": ' + b"9" * 30 + b', "min_tokens": ' + b"9" * 20,
        b'"prompt": "a", "top_k": ' + b"9" * 30,
        b'"prompt": ' + b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_values_that_no_engine_can_take_are_refused_and_hold_no_place(server: Booted, rest: bytes) -> None:
    for _ in range(25):  # more than may run and wait together
        r = server.http.post("/v1/completions", content=b'{"model": "%b", %b}' % (MODEL.encode(), rest))
        assert r.status_code == 400, r.text
        assert r.json()["error"]["type"] == "invalid_request_error"
    text_of(server.complete("abc", max_tokens=1))


def test_a_body_beyond_the_limit_is_not_kept(server: Booted) -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(64):
            yield b"a " * 2**16

    r = server.http.post("/v1/completions", content=endless())
    assert r.status_code == 413
    assert "takes 2097152" in r.json()["error"]["message"]
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("since", ["x", "-1", "9" * 40])
def test_the_step_log_refuses_what_is_no_step(server: Booted, since: str) -> None:
    r = server.http.get("/steps", params={"since": since})
    assert r.status_code == 400
    assert "query.since" in r.json()["error"]["message"]


def test_health_answers_while_a_huge_body_is_tokenised(server: Booted) -> None:
    """More than once: the first may have come before the body, and on a paused machine the second after its end."""
    for _ in range(TRIES):
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.complete, "long story " * 180_000)
            answered = 0
            while not asked.done():
                assert server.http.get("/health").status_code == 200
                answered += not asked.done()
            reply = asked.result()
        assert reply.status_code == 400
        assert "1980000 tokens" in reply.text
        if answered >= 2:
            return
    raise AssertionError(f"in none of {TRIES} tries /health answered while a body was tokenised")


def test_a_raw_socket_that_closes_half_way(server: Booted) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert server.http.get("/health").status_code == 200


def test_step_log_over_http(server: Booted) -> None:
    server.complete("log me", max_tokens=3)
    rows = server.http.get("/steps").json()["rows"]
    assert rows[-1]["finished"] == 1
    assert rows[-1]["decode_requests"] == 1
    assert server.http.get(f"/steps?since={rows[-1]['step']}").json()["rows"] == []


def test_no_block_is_lost_in_all_this(server: Booted) -> None:
    idle(server)
    assert server.metric("kv_blocks_used") == 0
    assert server.metric("kv_integrity_errors_total") == 0
    assert server.metric("kv_blocks_cached") > 0
    assert server.metric('request_success_total{finished_reason="abort"}') >= 1
    assert server.metric("time_to_first_token_seconds_count") > 0


def test_events_end_with_done(server: Booted) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1, "stream": True, "n": 2, "temperature": 1, "seed": 1}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        found = events(response)
    assert sorted(c["choices"][0]["index"] for c in found) == [0, 1]
