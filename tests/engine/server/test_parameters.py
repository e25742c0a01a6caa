"""Parameters over HTTP: each does what its name says, is neutral, or is refused by name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.server.neutral import NEUTRAL, described
from engine.server.schemas import ChatBody, CompletionBody
from engine.text import TextCodec
from tests.engine.server.booted import MODEL, TRIES, Booted, halted, idle, until
from tests.tiny import EOS_ID

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def ask(server: Booted, path: str, **body: Any) -> Any:
    given = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    return server.http.post(path, json={"model": MODEL, "max_tokens": 4, "temperature": 0, **given, **body})


def first(server: Booted, **body: Any) -> dict[str, Any]:
    reply = ask(server, COMPLETIONS, **body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json()["choices"][0])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_changes_nothing_is_taken(server: Booted, path: str) -> None:
    known = (ChatBody if path == CHAT else CompletionBody).model_fields
    plain = ask(server, path).json()["choices"]
    for place in range(max(len(values) for values in NEUTRAL.values())):
        body = {k: v[place % len(v)] for k, v in NEUTRAL.items() if v and k not in known}
        assert ask(server, path, **body).json()["choices"] == plain
    given = ("model", "prompt", "messages", "max_tokens", "temperature")
    nulls = dict.fromkeys([*NEUTRAL, *(f for f in known if f not in given)])
    assert ask(server, path, **nulls, wish=None).json()["choices"] == plain
    assert len(ask(server, path, n=2, best_of=2).json()["choices"]) == 2


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", 3), ("metadata", {"a": 1}), ("store", True), ("service_tier", "flex"), ("tools", [{"type": "x"}]),
        ("tool_choice", "required"), ("user", "me"), ("prediction", {"type": "content"}), ("suffix", "x"),
        ("use_beam_search", True), ("use_beam_search", 0), ("length_penalty", 2.0), ("bad_words", ["a"]),
        ("guided_json", {}), ("prompt_logprobs", 1), ("reasoning_effort", "low"), ("truncate_prompt_tokens", 3),
        ("modalities", ["text", "audio"]), ("continue_final_message", True), ("functions", [{}]), ("min_p", 1.5),
        ("priority", 2**31), ("priority", 0.5), ("stop", ["x"] * 33), ("stop", "x" * 257), ("stop_token_ids", [-1]),
        ("stop_token_ids", [272]), ("logit_bias", {"a": 1}), ("logit_bias", {"5": 101}), ("n", 0), ("seed", 2**63),
        ("repetition_penalty", 1e-300), ("repetition_penalty", 101), ("logit_bias", {str(2**64): 1}),
    ],
)  # fmt: skip
def test_what_would_change_something_is_refused_by_name(server: Booted, path: str, name: str, value: Any) -> None:
    reply = ask(server, path, **{name: value})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    if (name, value) == ("stop_token_ids", [272]):  # the core looks at it
        assert "token id 272 is outside the vocabulary of 272" in error["message"]
    else:
        assert error["param"] == name
        assert name in error["message"]
        if NEUTRAL.get(name):
            assert described(name) in error["message"]


def test_messages_may_be_those_of_an_answer(server: Booted) -> None:
    told = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "tool_calls": None,
        "audio": None,
        "annotations": None,
    }
    assert ask(server, CHAT, messages=[*HELLO, told, *HELLO]).status_code == 200
    reply = ask(server, CHAT, messages=[{**told, "tool_calls": [{"id": "a"}]}])
    assert "tool_calls" in reply.json()["error"]["message"]


def test_several_parameters_at_fault_are_all_named(server: Booted) -> None:
    error = ask(server, COMPLETIONS, wish=1, top_p=3).json()["error"]
    assert error["param"] is None
    assert "'wish'" in error["message"]
    assert "'top_p'" in error["message"]


def test_stop_tokens_of_the_request(server: Booted) -> None:
    full = [*first(server, max_tokens=30, ignore_eos=True)["text"].encode()]
    bias = {"65": 100}
    a = first(server, max_tokens=9, logit_bias=bias, stop_token_ids=[65])
    assert (a["text"], a["finish_reason"]) == ("", "stop")
    b = first(server, max_tokens=9, logit_bias=bias, stop_token_ids=[65], min_tokens=3, include_stop_str_in_output=True)
    assert (len(b["text"]), b["text"][-1], b["finish_reason"]) == (4, "A", "stop")
    assert "A" not in b["text"][:3]
    c = first(server, max_tokens=9, logit_bias=bias, stop_token_ids=[65], ignore_eos=True)
    assert c["finish_reason"] == "stop"  # ignore_eos is about the model's own
    d = first(server, max_tokens=9, logit_bias={str(EOS_ID): 100}, stop_token_ids=[65], ignore_eos=True)
    assert d["finish_reason"] == "length"
    assert len(full) > 10


def test_stop_strings_and_special_tokens_in_the_text(server: Booted) -> None:
    bias = {"65": 100}
    cut = first(server, max_tokens=9, logit_bias=bias, stop="AAA", include_stop_str_in_output=True)
    assert (cut["text"], cut["finish_reason"]) == ("AAA", "stop")
    later = first(server, max_tokens=9, logit_bias=bias, stop="AAA", min_tokens=4)
    assert (later["text"], later["finish_reason"]) == ("AAAA", "stop")
    special = first(server, max_tokens=3, logit_bias={str(EOS_ID): 100}, ignore_eos=True, skip_special_tokens=False)
    assert special["text"] == "<|im_end|>" * 3


def test_min_p_leaves_the_likely(server: Booted) -> None:
    bias = {str(b): 90.0 for b in b"abc"} | {"100": 60.0}
    texts = [first(server, temperature=20, seed=s, max_tokens=40, logit_bias=bias, min_p=0.3)["text"] for s in range(4)]
    assert set("".join(texts)) <= set("abc")
    assert len(set("".join(texts))) == 3
    free = [first(server, temperature=20, seed=s, max_tokens=40, logit_bias=bias)["text"] for s in range(4)]
    assert set("".join(free)) > set("abc")
    assert first(server, temperature=20, seed=1, max_tokens=40, min_p=1.0) == first(server, max_tokens=40)


def test_more_choices_than_the_server_takes_is_no_matter_of_waiting(server: Booted) -> None:
    reply = server.complete(["a"] * 7, n=3, max_tokens=1)
    assert reply.status_code == 400
    assert "7 prompts with n 3 are 21 choices, this server takes 20" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_lower_priority_runs_sooner(server: Booted, path: str) -> None:
    ended: list[str] = []

    def run(name: str, at: str, **body: Any) -> None:
        assert ask(server, at, ignore_eos=True, **body).status_code == 200
        ended.append(name)

    def with_the_core() -> int:
        """Choices that it has, as one is told who asks for more than there is room for."""
        refused = ask(server, COMPLETIONS, n=20)
        assert refused.status_code == 429
        return int(refused.json()["error"]["message"].split()[0])

    for _ in range(TRIES):  # until the crowd is halted before its end
        idle(server)
        ended.clear()
        with ThreadPoolExecutor(3) as pool:
            crowd = pool.submit(run, "crowd", COMPLETIONS, prompt=["crowd"] * 16, max_tokens=480)  # takes all slots
            until(lambda: server.metric("num_requests_running") == 16 or crowd.done())  # noqa: B023
            with halted(server):
                if server.metric("num_requests_running") < 16:
                    continue
                late = pool.submit(run, "late", path, max_tokens=1, priority=2**31 - 1)
                until(lambda: with_the_core() == 17)
                soon = pool.submit(run, "soon", path, max_tokens=40, priority=-(2**31))
                until(lambda: with_the_core() == 18)
            for asked in (crowd, late, soon):
                asked.result()
        assert ended.index("soon") < ended.index("late")  # which came first and is shorter
        return
    raise AssertionError(f"in none of {TRIES} tries all slots were taken")


def test_each_choice_ends_once(server: Booted) -> None:
    for body in (
        {"n": 4, "temperature": 1, "seed": 5, "max_tokens": 9, "stop": ["e", "a"]},
        {"n": 3, "temperature": 1, "seed": 6, "max_tokens": 1},
        {
            "n": 2,
            "prompt": ["one", "two"],
            "max_tokens": 12,
            "temperature": 1.5,
            "seed": 7,
            "stop_token_ids": [32, 101],
        },
    ):
        whole = ask(server, COMPLETIONS, **body).json()["choices"]
        texts, ends = dict[int, str](), dict[int, str]()
        for chunk in server.stream(COMPLETIONS, **{"prompt": "hello", **body}):
            (choice,) = chunk["choices"]
            assert choice["index"] not in ends
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            if choice["finish_reason"]:
                ends[choice["index"]] = choice["finish_reason"]
        assert [(texts[c["index"]], ends[c["index"]]) for c in whole] == [
            (c["text"], c["finish_reason"]) for c in whole
        ]
        assert len(ends) == len(whole)


def test_logprobs_of_samples_equal_a_full_forward_pass(server: Booted, artifact: Path) -> None:
    """With echo, prompts longer than a chunk, several samples, cold and warm."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(artifact, dtype=torch.float32)
    codec = TextCodec(artifact)
    nameless = {str(t): -100 for t in range(260, 272)}  # ids that no token has, and so no text tells apart
    names = {codec.token_string(t): t for t in range(260)}
    replies: list[dict[str, Any]] = []
    for length in (1, 15, 16, 17, 255, 256, 257, 400):
        prompt = [(31 * i + length) % 256 for i in range(length)]
        body = {"prompt": prompt, "echo": True, "logprobs": 2, "n": 3, "max_tokens": 8, "temperature": 1, "top_p": 0.9,
                "seed": length, "ignore_eos": True, "frequency_penalty": 0.5, "logit_bias": nameless}  # fmt: skip
        cold, warm = (ask(server, COMPLETIONS, **body).json() for _ in range(2))
        assert cold["choices"] == warm["choices"]
        for choice in cold["choices"]:
            found = choice["logprobs"]
            ids = [names[t] for t in found["tokens"]]
            assert ids[:length] == prompt
            with torch.inference_mode():
                truth = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
            expected = [float(truth[i, t]) for i, t in enumerate(ids[1:])]
            assert found["token_logprobs"][1:] == pytest.approx(expected, abs=1e-3)
            for row, top in zip(truth, found["top_logprobs"][1:], strict=False):
                best = row.topk(2)
                if min(best.indices.tolist()) < 260:  # two without a name are one entry
                    assert sorted(top.values(), reverse=True)[:2] == pytest.approx(best.values.tolist(), abs=1e-3)
        replies.append(cold)
    assert len({c["text"] for r in replies for c in r["choices"]}) == 24
