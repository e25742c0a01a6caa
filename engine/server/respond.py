"""Answers that end when the client goes: whole ones and event streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from engine.server.endpoints import Call
from engine.server.errors import ApiError
from engine.server.generation import Piece
from engine.server.records import current_record
from engine.server.state import ServerState
from engine.server.whole import WholeAnswer


class WhileConnected(Response):
    """Runs ``produce`` and cancels it as soon as the client has disconnected, in whatever state the request is."""

    def __init__(self, produce: Callable[[Scope, Send], Awaitable[None]]) -> None:
        super().__init__()
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self._produce(scope, send))
        watch = asyncio.create_task(gone())
        try:
            await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            watch.cancel()
            result, _ = await asyncio.gather(work, watch, return_exceptions=True)
        if isinstance(result, Exception):
            raise result


async def _never() -> Any:
    """Stands in for ``receive``: only one may wait for the disconnect."""
    await asyncio.Event().wait()


def error_response(state: ServerState, error: ApiError) -> JSONResponse:
    if error.status < 500 or error.reason in ("shutting_down", "unhealthy", "no_space"):
        state.metrics.rejected.labels(error.reason).inc()
        current_record().refused(error.reason, error.prompt_tokens)
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)


def answer(state: ServerState, produce: Callable[[Send], Awaitable[dict[str, Any] | bytes | None]]) -> Response:
    """The response to a request that needs the core: the body that ``produce`` returns (bytes are JSON already), or an
    error that it raises; None: it has sent its answer by itself. A client that goes ends it."""

    async def work(scope: Scope, send: Send) -> None:
        response: Response
        try:
            if reason := state.unready():
                raise ApiError(503, reason, reason="unhealthy" if state.accepting else "shutting_down")
            if (body := await produce(send)) is None:
                return
            response = Response(body, media_type="application/json") if isinstance(body, bytes) else JSONResponse(body)
        except ApiError as e:
            response = error_response(state, e)
        await response(scope, _never, send)

    return WhileConnected(work)


async def generated(state: ServerState, prepare: Callable[[], Call], send: Send) -> bytes | None:
    """Runs a generating request, for ``answer``. ``prepare`` runs in a thread."""
    call = await state.in_thread(prepare)
    current_record().stream = call.stream
    async with aclosing(call.generation.pieces()) as pieces:
        if not call.stream:
            return await _whole(state, call, pieces)
        first = await anext(pieces)  # a refusal comes here, before any header
        if first.token is None:
            first.check_whole()
        await _stream(state, call, first, pieces, send)
        return None


def _head(state: ServerState, call: Call, kind: str) -> dict[str, Any]:
    name = f"{call.format.prefix}{call.generation.id}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": state.model}


async def _whole(state: ServerState, call: Call, pieces: AsyncIterator[Piece]) -> bytes:
    found = WholeAnswer(call.format)
    async for piece in pieces:
        piece.check_whole()
        found.add(piece)
    return found.encoded(_head(state, call, call.format.object), call.generation.usage.body())


async def _stream(state: ServerState, call: Call, first: Piece, rest: AsyncIterator[Piece], send: Send) -> None:
    """One event a token, then the usage if asked for, then the end mark."""
    head = _head(state, call, call.format.chunk_object)
    usage = call.generation.usage

    async def event(body: bytes, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": more})
        await asyncio.sleep(0)  # news that have piled up must not keep others, or the news of a lost client, waiting

    async def token(piece: Piece) -> None:
        chunk = {**head, "choices": [call.format.chunk_choice(piece)]}
        if call.continuous_usage:
            chunk["usage"] = usage.body()
        elif call.include_usage:
            chunk["usage"] = None  # OpenAI: every chunk has the field, the last one its value
        await event(_event(chunk))

    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        await token(first)
        async for piece in rest:
            await token(piece)
    except ApiError as e:  # too late for a status: the stream says it
        await event(_event(e.body))
    if call.include_usage:
        await event(_event({**head, "choices": [], "usage": usage.body()}))
    await event(b"data: [DONE]\n\n", more=False)


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
