"""Asks a server what it can do, by doing it: a dozen short requests before anything is measured.

A parameter that a server does not know may be refused or passed over in silence; so what counts is what the answer
shows, never that the request was accepted. Requests have the form that the evaluation and the load test send.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx

from pipeline.provenance import utc_now
from pipeline.targets.capabilities import Capabilities, Finding
from pipeline.targets.target import Target

TIMEOUT_S = 300.0  # of one request: the first of a server may compile for minutes
_CHOICES = ("The sun is hot", "The sun is cold")
_SHORT = "Answer with the single word yes."
_LONG = "Write two sentences about the sea."
_OTHERS = ("Count from one to ten.", "Name three animals.", "Say what rain is.")
_TOKENS = 32
_MORE = 8
_METRICS = {"seatrial_": "seatrial", "vllm:": "vllm", "sglang:": "sglang", "llamacpp:": "llama.cpp"}


class _Failed(Exception):
    """The request has no usable answer; the message says what came instead."""


def with_capabilities(target: Target, transport: httpx.BaseTransport | None = None) -> Target:
    """The target with what was found; the bundled engine, or one that was asked before, as it is."""
    if target.capabilities is not None:
        return target
    with httpx.Client(
        base_url=target.base_url, timeout=TIMEOUT_S, headers=target.key.headers, transport=transport
    ) as http:
        return replace(target, capabilities=_Probe(http, target).all())


class _Probe:
    def __init__(self, http: httpx.Client, target: Target) -> None:
        self._http, self._model, self._key = http, target.model_name, target.key

    def all(self) -> Capabilities:
        at = utc_now()
        alone, again, in_company = self._greedy()
        usage, running = self._stream_usage()
        least, beyond = self._lengths()
        scored = self._prompt_logprobs()
        return Capabilities(
            prompt_logprobs=scored,
            prompt_logprobs_from=self._prompt_logprobs_from() if scored.state == "yes" else scored,
            stream_usage=usage,
            running_usage=running,
            token_ids=self._token_ids(),
            metrics=self._metrics(),
            deterministic=_same(alone, again, "asked twice, one after the other"),
            deterministic_in_company=_same(alone, in_company, f"asked alone and among {len(_OTHERS)} others"),
            ignore_eos=beyond,
            min_tokens=least,
            source="probed",
            probed_at=at,
        )

    def _prompt_logprobs(self) -> Finding:
        """In the form that choices are scored: two prompts in a request, nothing generated."""
        body = {"prompt": list(_CHOICES), "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
        try:
            choices = self._post("/v1/completions", body)["choices"]
            found = sorted(choices, key=lambda c: int(c.get("index", 0)))
            values = [c["logprobs"]["token_logprobs"] for c in found]
            offsets = [c["logprobs"]["text_offset"] for c in found]
        except _Failed as e:
            return Finding("no", str(e))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            return Finding("no", f"the answer holds no log-probabilities of the prompt ({type(e).__name__}: {e})")
        if len(found) != len(_CHOICES):
            return Finding("no", f"{len(found)} answers to a request with {len(_CHOICES)} prompts")
        for want, choice, mine, at in zip(_CHOICES, found, values, offsets, strict=True):
            if not str(choice.get("text")).endswith(want):
                return Finding("no", f"the echo is {str(choice.get('text'))[:40]!r}, expected {want!r}")
            if len(mine) < 2 or len(mine) != len(at) or not all(isinstance(v, int | float) for v in mine[1:]):
                return Finding("no", f"{len(mine)} log-probabilities and {len(at)} offsets of {want!r}")
        return Finding("yes", f"{', '.join(str(len(v)) for v in values)} tokens of two echoed prompts scored")

    def _prompt_logprobs_from(self) -> Finding:
        """Of a server that scores whole prompts: it has this if it leaves out what it is told to."""
        start = len("The sun is")
        body = {"prompt": list(_CHOICES), "max_tokens": 0, "echo": True, "logprobs": 0, "temperature": 0}
        try:
            choices = self._post("/v1/completions", body | {"prompt_logprobs_from": start})["choices"]
            found = sorted(choices, key=lambda c: int(c.get("index", 0)))
            texts = [c["text"] for c in found]
            values = [v for c in found for v in c["logprobs"]["token_logprobs"]]
            first = [c["logprobs"]["text_offset"][0] for c in found]
        except _Failed as e:
            return Finding("no", str(e))
        except (KeyError, LookupError, TypeError, ValueError, AttributeError) as e:
            return Finding("no", f"the answer has not the form that was asked for ({type(e).__name__}: {e})")
        if texts != [c[start:] for c in _CHOICES] or first != [start] * len(_CHOICES):
            return Finding("no", f"echoes {str(texts)[:80]} from characters {first}, expected from {start} on")
        if not all(isinstance(v, int | float) for v in values):
            return Finding("no", f"log-probabilities are {str(values)[:80]}")
        return Finding("yes", f"{len(values)} tokens behind a common beginning scored")

    def _stream_usage(self) -> tuple[Finding, Finding]:
        """(at the end, with every chunk); a server that refuses the second may still have the first."""
        options: dict[str, Any] = {"include_usage": True}
        try:
            chunks = list(self._stream({"stream_options": options | {"continuous_usage_stats": True}}))
        except _Failed as e:
            running = Finding("no", str(e))
            try:
                chunks = list(self._stream({"stream_options": options}))
            except _Failed as e:
                return Finding("no", str(e)), running
        else:
            counts = [_tokens(c) for c in chunks if _text(c)]
            whole = bool(counts) and all(n is not None for n in counts)
            running = Finding("yes" if whole else "no", f"{sum(n is not None for n in counts)} of {len(counts)} chunks")
        total = next((n for c in reversed(chunks) if (n := _tokens(c)) is not None), None)
        if total is None:
            return Finding("no", f"{len(chunks)} chunks, none with completion_tokens"), running
        return Finding("yes", f"{total} tokens in {len(chunks)} chunks"), running

    def _token_ids(self) -> Finding:
        try:
            self._post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0})["choices"][0]
        except _Failed as e:
            return Finding("no", str(e))
        except (KeyError, TypeError, LookupError) as e:
            return Finding("no", f"no completion of three token ids ({type(e).__name__})")
        return Finding("yes", "a prompt of three token ids was completed")

    def _metrics(self) -> Finding:
        try:
            answer = self._http.get("/metrics", timeout=30)
        except httpx.HTTPError as e:
            return Finding("no", f"{type(e).__name__}: {e}")
        if answer.status_code != 200:
            return Finding("no", f"/metrics answers {answer.status_code}")
        lines = [x for x in answer.text.splitlines() if x and not x.startswith("#")]
        names = {x.split("{")[0].split(" ")[0] for x in lines}
        for prefix, whose in _METRICS.items():
            if count := sum(n.startswith(prefix) for n in names):
                return Finding("yes", f"{count} of {whose}")
        return Finding("unknown", f"{len(names)} names, none of {', '.join(_METRICS.values())}")

    def _greedy(self) -> tuple[str, str, str] | tuple[None, None, None]:
        def ask(text: str) -> str:
            said = self._chat(text, _TOKENS)["choices"][0]["message"]["content"]
            if not isinstance(said, str):
                raise _Failed(f"the answer is {said!r}, expected a text")
            return said

        try:
            alone, again = ask(_LONG), ask(_LONG)
            with ThreadPoolExecutor(len(_OTHERS) + 1) as pool:
                others = [pool.submit(ask, text) for text in _OTHERS]
                company = pool.submit(ask, _LONG).result()
                for other in others:
                    other.result()
        except (_Failed, KeyError, TypeError, LookupError):
            return None, None, None
        return alone, again, company

    def _lengths(self) -> tuple[Finding, Finding]:
        """(min_tokens, ignore_eos), each against the answer that ends by itself."""
        try:
            plain, why = _length(self._chat(_SHORT, _TOKENS))
        except (_Failed, KeyError, TypeError, LookupError) as e:
            none = Finding("unknown", f"no answer to compare with ({e})")
            return none, none
        if why == "length" or plain >= _TOKENS - _MORE:
            none = Finding("unknown", f"the short answer has {plain} tokens by itself ({why})")
            return none, none
        return (
            self._longer({"min_tokens": plain + _MORE}, plain, plain + _MORE),
            self._longer({"ignore_eos": True}, plain, _TOKENS),
        )

    def _longer(self, option: dict[str, Any], plain: int, wanted: int) -> Finding:
        try:
            found, why = _length(self._chat(_SHORT, _TOKENS, **option))
        except _Failed as e:
            return Finding("no", str(e))
        except (KeyError, TypeError, LookupError) as e:
            return Finding("unknown", f"no token count ({type(e).__name__}: {e})")
        seen = f"{found} tokens ({why}) where {wanted} were due, {plain} without it"
        return Finding("yes" if found >= wanted else "no", seen)

    def _chat(self, text: str, tokens: int, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        return self._post(
            "/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "temperature": 0, **more}
        )

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """
        Raises:
            _Failed: no answer, a refusal, or not a JSON object.
        """
        try:
            answer = self._http.post(path, json={"model": self._model, **body})
            if answer.status_code != 200:
                raise _Failed(self._said(answer))
            value = answer.json()
        except httpx.HTTPError as e:
            raise _Failed(f"{type(e).__name__}: {e}".rstrip(": ")) from e
        except ValueError as e:
            raise _Failed("the answer is not JSON") from e
        if not isinstance(value, dict):
            raise _Failed(f"the answer is {type(value).__name__}, expected an object")
        return value

    def _stream(self, more: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a short streamed chat.

        Raises:
            _Failed: refused, broken off, or not a stream of JSON.
        """
        messages = [{"role": "user", "content": _LONG}]
        body = {"model": self._model, "messages": messages, "max_tokens": 4, "temperature": 0, "stream": True, **more}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise _Failed(self._said(answer))
                for line in answer.iter_lines():
                    data = line.removeprefix("data:").strip()
                    if line.startswith("data:") and data != "[DONE]":
                        chunk = json.loads(data)
                        if not isinstance(chunk, dict):
                            raise _Failed(f"a chunk is {data[:40]!r}, expected an object")
                        yield chunk
        except httpx.HTTPError as e:
            raise _Failed(f"{type(e).__name__}: {e}".rstrip(": ")) from e
        except ValueError as e:
            raise _Failed("a chunk of the stream is not JSON") from e

    def _said(self, answer: httpx.Response) -> str:
        text = " ".join(str(self._key.scrub(answer.text)).split())
        return f"{answer.status_code}: {text[:160]}"


def _same(one: str | None, other: str | None, how: str) -> Finding:
    if one is None or other is None:
        return Finding("unknown", "the request was not answered")
    if one == other:
        return Finding("yes", f"{how}: the same {len(one)} characters")
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return Finding("no", f"{how}: the texts part after {at} characters")


def _length(payload: dict[str, Any]) -> tuple[int, str]:
    """(completion tokens, finish reason)."""
    return int(payload["usage"]["completion_tokens"]), str(payload["choices"][0]["finish_reason"])


def _tokens(chunk: dict[str, Any]) -> int | None:
    found = (chunk.get("usage") or {}).get("completion_tokens")
    return found if isinstance(found, int) else None


def _text(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices") or [{}]
    return bool((choices[0].get("delta") or {}).get("content"))
