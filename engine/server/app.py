"""The HTTP routes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import psutil
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from engine.memory import status_bytes
from engine.server import endpoints, score, tokens
from engine.server.auth import Authorised
from engine.server.endpoints import Call
from engine.server.errors import ApiError
from engine.server.logs import rfc3339
from engine.server.records import Recorded, current_record
from engine.server.respond import answer, error_response, generated
from engine.server.schemas import INT64
from engine.server.state import ServerState

MAX_BODY_BYTES = 2 * 1024**2  # tokenising takes up to 200 times as much memory


def create_app(state: ServerState) -> FastAPI:
    app = FastAPI(title="Seatrial engine", openapi_url=None)
    app.state.limits = state.limits
    created = int(time.time())

    async def generating(endpoint: Callable[[ServerState, bytes, float], Call], request: Request) -> Response:
        received_s = time.monotonic()
        prepare = partial(endpoint, state, await _body(request), received_s)
        return answer(state, partial(generated, state, prepare))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await generating(endpoints.completion, request)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await generating(endpoints.chat_completion, request)

    @app.post("/score")
    async def scores(request: Request) -> Response:
        received_s = time.monotonic()
        prepare = partial(score.prepare, state, await _body(request), received_s)
        return answer(state, lambda _: score.scores(state, prepare))

    async def in_thread(work: Callable[[ServerState, bytes], dict[str, Any]], request: Request) -> JSONResponse:
        call = partial(work, state, await _body(request))
        return JSONResponse(await state.in_thread(call))

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        return await in_thread(tokens.tokenize, request)

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        return await in_thread(tokens.detokenize, request)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [await model(state.model)]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        state.check_model(name)
        return {
            "id": state.model,
            "object": "model",
            "created": created,
            "owned_by": "seatrial",
            "max_model_len": state.client.about["max_model_len"],
        }

    @app.get("/health")
    async def health() -> JSONResponse:
        if reason := state.unready():
            return JSONResponse({"status": "unhealthy", "reason": reason}, status_code=503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(state.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/info")
    async def info() -> dict[str, Any]:
        return {
            "model": state.model,
            "artifact": {"name": state.manifest.name, "digest": state.manifest.digest},
            "config": state.config.model_dump(mode="json"),
            "derived": state.client.about["derived"],
            "memory": {**state.client.about["memory"], **_resident_bytes(state)},
            "steps": state.client.stats,
            "processes": {"server": os.getpid(), "core": state.client.pid},
        }

    @app.get("/steps")
    async def steps(since: Annotated[int, Query(ge=0, lt=INT64)] = 0) -> dict[str, Any]:
        """The step log: rows after step ``since``, as long as they are kept."""
        origin_at = rfc3339(state.client.clock.origin_at)  # from which start_s counts
        return {"schema_version": 1, "origin_at": origin_at, "rows": state.steps.since(since)}

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error_response(state, error)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        found = f"{request.method} {request.url.path}: {error.detail}"
        return error_response(state, ApiError(error.status_code, found))

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        """A defect of ours; the log has its traceback."""
        return error_response(state, ApiError(500, "the server failed; its log says why", reason="error"))

    @app.exception_handler(RequestValidationError)
    async def query_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']}, found {e['input']!r:.80}" for e in error.errors()
        )
        return error_response(state, ApiError(400, found))

    if state.keys:
        app.add_middleware(Authorised, keys=state.keys, refuse=partial(error_response, state))
    app.add_middleware(Recorded, done=state.note_request)
    return app


async def _body(request: Request) -> bytes:
    """
    Raises:
        ApiError: 413. The rest is read but not kept: a client that is cut off while it sends would not see the answer.
            408 for one that takes too long.
    """
    body, size = bytearray(), 0
    limit_s = request.app.state.limits.body_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            async for part in request.stream():
                size += len(part)
                if size <= MAX_BODY_BYTES:
                    body += part
    except TimeoutError as e:
        found = f"{size} bytes of the body came in {limit_s:g} s, then the time was over; send it faster"
        raise ApiError(408, found, reason="timeout", headers={"Connection": "close"}) from e
    if size > MAX_BODY_BYTES:
        found = f"the body has {size} bytes, the server takes {MAX_BODY_BYTES}; send less at once"
        raise ApiError(413, found, reason="too_long")
    current_record().body_bytes = size
    return bytes(body)


def _resident_bytes(state: ServerState) -> dict[str, int | None]:
    """Resident memory: of server and core, of the core alone, and what the core alone had at most so far (Linux). None
    where one of them is gone, or the system does not say."""
    found: dict[str, int | None] = {"rss_bytes": None, "core_rss_bytes": None}
    with suppress(psutil.Error):
        found["core_rss_bytes"] = core = int(psutil.Process(state.client.pid).memory_info().rss)
        found["rss_bytes"] = core + int(psutil.Process().memory_info().rss)
    found["core_peak_rss_bytes"] = status_bytes("VmHWM", state.client.pid)
    return found
