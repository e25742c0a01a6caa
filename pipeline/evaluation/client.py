"""Items as requests to an OpenAI-compatible server, and its replies as answers. Greedy, never streamed.

``messages`` go to /v1/chat/completions, where the server applies the chat template that came with the model; a raw
``prompt`` goes to /v1/completions as it is; the choices of an item go there in one request, each as prompt + choice
with ``echo`` and ``logprobs``, and nothing is generated. A server that has ``prompt_logprobs_from`` is asked for the
tokens of the choices alone: it need not score those of the prompt, and can compute them once for all choices.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from pipeline.errors import SeatrialError
from pipeline.evaluation.graders import Answer, grader_of
from pipeline.evaluation.items import Item
from pipeline.provenance import utc_now
from pipeline.targets.keys import NO_KEY, Key

# How items become requests and replies become answers; part of a result's identity. A change here is a new version.
POLICY = {
    "version": "2",
    "temperature": 0,
    "chat_template": "of the model, applied by the server",
    "bos": "of the server",
}

FROM = "prompt_logprobs_from"
TIMEOUT_S = 600.0  # of one attempt: a queue of long prompts on a small machine takes minutes
ATTEMPTS = 3  # at a connection that breaks or a server error
BUSY_S = 300.0  # how long a full queue (429, 503) is waited for


class Refused(Exception):
    """The server will not answer this one item, however often it is asked."""


class TransportFailure(Exception):
    """No complete answer came back; the item was not judged."""


class ProtocolError(SeatrialError):
    """The server answers in a form that no item could be judged by."""


@dataclass(frozen=True)
class Request:
    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """A complete answer. ``choice_logprobs``: log-probabilities of each choice's tokens, where choices were scored."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    output_tokens: int
    choice_logprobs: list[list[float]] | None
    answered_at: str

    @property
    def answer(self) -> Answer:
        return Answer(self.text, self.choice_logprobs)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def request_for(item: Item, model: str, choices_alone: bool = False) -> Request:
    """The one request that an item is asked by. ``choices_alone``: the server has ``prompt_logprobs_from``."""
    common: dict[str, Any] = {"model": model, "temperature": 0}
    if grader_of(item).scores_choices:
        full = [f"{item.prompt}{choice}" for choice in item.choices or []]
        body = {**common, "prompt": full, "max_tokens": 0, "echo": True}
        how = {"logprobs": 0, FROM: len(item.prompt or "")} if choices_alone else {"logprobs": 1}
        return Request("/v1/completions", body | how)
    if item.messages is not None:
        messages = [m.model_dump() for m in item.messages]
        return Request("/v1/chat/completions", {**common, "messages": messages, "max_tokens": item.max_tokens})
    return Request("/v1/completions", {**common, "prompt": item.prompt, "max_tokens": item.max_tokens})


class Client:
    """Asks one server. ``check_alive`` raises when the server is known to be dead, which ends the whole run.

    ``key``: what the server may not make us repeat (``http`` sends it).
    """

    def __init__(
        self, base_url: str, check_alive: Callable[[], None], http: httpx.AsyncClient, key: Key = NO_KEY
    ) -> None:
        self._base, self._check_alive, self._http = base_url.rstrip("/").removesuffix("/v1"), check_alive, http
        self._key = key

    async def ask(self, item: Item, request: Request) -> Reply:
        """
        Raises:
            Refused: a 4xx for this item.
            TransportFailure: connections break, or server errors, or a full queue for minutes.
            ProtocolError: the reply lacks what judging needs.
            SeatrialError: the server is dead, or has no such path or model.
        """
        payload = await self._post(request)
        try:
            return parse(item, request, payload)
        except (KeyError, IndexError, TypeError, ValueError) as e:
            raise ProtocolError(self._key.scrub(f"{self._base}{request.path}, item {item.id}: {e}")) from e

    async def _post(self, request: Request) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        failures, busy_until = 0, loop.time() + BUSY_S
        while True:
            try:
                response = await self._http.post(self._base + request.path, json=request.body)
                pause = 0.5 * 2**failures
                if response.status_code in (429, 503):
                    problem, pause = self._error_text(response), _retry_after_s(response)
                    exhausted = loop.time() + pause > busy_until
                elif response.status_code >= 500:
                    failures += 1
                    problem, exhausted = self._error_text(response), failures >= ATTEMPTS
                else:
                    return self._accept(request, response)
            except httpx.TransportError as e:
                failures += 1
                problem, pause = f"{type(e).__name__}: {e}".rstrip(":. "), 0.5 * 2**failures
                exhausted = failures >= ATTEMPTS
            self._check_alive()
            if exhausted:
                raise TransportFailure(problem)
            await asyncio.sleep(pause)

    def _accept(self, request: Request, response: httpx.Response) -> dict[str, Any]:
        url = self._base + request.path
        if response.status_code in (401, 403, 404):
            raise SeatrialError(
                f"{url} refused model {request.body['model']!r}: {self._error_text(response)}; "
                "check the server's address, the model's name and the key"
            )
        if response.status_code >= 400:
            raise Refused(self._error_text(response))
        try:
            payload = response.json()
        except ValueError as e:
            said = self._key.scrub(response.text)[:80]
            raise ProtocolError(f"{url} answered {said!r}, which is not JSON") from e
        if response.status_code != 200 or not isinstance(payload, dict):
            found = self._key.scrub(str(payload))[:80]
            raise ProtocolError(f"{url} answered {response.status_code} and {found!r}; expected an object")
        return payload

    def _error_text(self, response: httpx.Response) -> str:
        try:
            message = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = response.text
        return f"{response.status_code}: {self._key.scrub(str(message))[:500]}"


def open_http(base_url: str, concurrency: int, key: Key = NO_KEY) -> httpx.AsyncClient:
    """A pool of connections; a server on this machine is reached directly, whatever proxy is configured."""
    local = urlsplit(base_url).hostname in {"127.0.0.1", "localhost", "::1"}
    return httpx.AsyncClient(
        timeout=httpx.Timeout(TIMEOUT_S, connect=30),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        trust_env=not local,
        headers=key.headers,
    )


def _retry_after_s(response: httpx.Response) -> float:
    try:
        wanted = float(response.headers.get("Retry-After", "1"))
    except ValueError:  # a date
        wanted = 1.0
    return min(max(wanted, 0.05), 30.0) if math.isfinite(wanted) else 1.0


def parse(item: Item, request: Request, payload: dict[str, Any]) -> Reply:
    """A reply out of an OpenAI-style answer.

    Raises:
        ProtocolError, KeyError, IndexError, TypeError, ValueError: it lacks something.
        TransportFailure: the server gave up on the answer.
    """
    choices = sorted(_need(payload, "choices", list), key=lambda c: int(c.get("index", 0)))
    expected = len(item.choices or []) if grader_of(item).scores_choices else 1
    if len(choices) != expected:
        raise ValueError(f"found {len(choices)} entries in `choices`, expected {expected}")
    usage = _need(payload, "usage", dict)
    prompt_tokens, output_tokens = (_need(usage, k, int) for k in ("prompt_tokens", "completion_tokens"))
    if grader_of(item).scores_choices:
        logprobs = [
            continuation_logprobs(item.prompt or "", full, c, whole=FROM not in request.body)
            for full, c in zip(request.body["prompt"], choices, strict=True)
        ]
        return Reply("", None, prompt_tokens, 0, logprobs, utc_now())
    first = choices[0]
    text = _need(first, "message", dict).get("content") if "messages" in request.body else _need(first, "text", str)
    finish = first.get("finish_reason")
    if finish not in ("stop", "length"):
        raise TransportFailure(f"the server ended the answer with finish_reason {finish!r}")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"the answer is {text!r}, expected a text")
    return Reply(text or "", finish, prompt_tokens, output_tokens, None, utc_now())


def _need(value: dict[str, Any], key: str, kind: type) -> Any:
    if not isinstance(value, dict) or key not in value:
        raise ValueError(f"the reply has no {key!r}; found {sorted(value) if isinstance(value, dict) else value!r}")
    if not isinstance(value[key], kind) or isinstance(value[key], bool):
        raise ValueError(f"{key!r} is {str(value[key])[:80]!r}, expected {kind.__name__}")
    return value[key]


def continuation_logprobs(prompt: str, full: str, choice: dict[str, Any], whole: bool = True) -> list[float]:
    """Log-probabilities of the tokens of ``full`` that begin at or after the end of ``prompt``. ``whole``: the echo is
    to be that of the whole text; else from the first token on that has a character of the choice.

    Raises:
        ValueError: no echoed log-probabilities, an echo of something else, or a token that spans the end of the
            prompt, so that a part of the choice could not be told from the prompt.
    """
    found = choice.get("logprobs")
    if not isinstance(found, dict):
        raise ValueError(f"no log-probabilities for echo=true: `logprobs` is {str(found)[:80]!r}; "
                         "choices can only be scored by a server that gives those of the prompt")  # fmt: skip
    tokens, values, offsets = (_need(found, k, list) for k in ("tokens", "token_logprobs", "text_offset"))
    if not len(tokens) == len(values) == len(offsets):
        raise ValueError(
            f"{len(tokens)} tokens, {len(values)} token_logprobs, {len(offsets)} text_offset; expected as many"
        )
    text, start = _need(choice, "text", str), len(prompt)
    echoed = full if whole or not offsets else full[offsets[0] :]
    if not text.endswith(echoed) or not (whole or text == echoed):
        raise ValueError(f"the echo ends in {text[-60:]!r}, expected {echoed[-60:]!r}")
    if whole:
        start += len(text) - len(full)
    if (
        whole
        and text == full
        and len(offsets) > 1
        and tokens[0]
        and not full.startswith(tokens[0])
        and offsets[1] > offsets[0]
    ):
        start += offsets[1]  # a BOS that is counted in the offsets and left out of the text
    if start not in offsets:
        raise ValueError(f"no token begins where the choice {full[len(prompt):]!r} begins; the tokens there are "
                         f"{[t for t, o in zip(tokens, offsets, strict=True) if abs(o - start) < 12]}")  # fmt: skip
    mine = [v for v, o in zip(values, offsets, strict=True) if o >= start]
    if any(not isinstance(v, int | float) or isinstance(v, bool) or not math.isfinite(v) or v > 1e-6 for v in mine):
        raise ValueError(f"token_logprobs of the choice are {mine}, expected finite numbers not above 0")
    return [float(v) for v in mine]
