"""Asked of a server before any load: is it there, which model, does it report usage, and in which form."""

from __future__ import annotations

import http.client
from dataclasses import dataclass

from loadtests.client import Endpoint, Exchange, StreamClient, encoded, get_json
from loadtests.driver import request_body
from loadtests.workload import Profile


class PreflightError(Exception):
    """The server cannot be measured: says what was found, what was expected, what to do."""


@dataclass(frozen=True)
class Ready:
    model: str
    continuous_usage: bool  # the server takes stream_options.continuous_usage_stats


def preflight(profile: Profile, endpoint: Endpoint, model: str | None) -> Ready:
    """One short request, as the profile would send it.

    Raises:
        PreflightError: unreachable, no such model, the request is refused, or the answer has no usage.
    """
    if model is None:
        model = first_model(endpoint)
    first = _try(profile, endpoint, model, continuous=True)
    if first.status == "ok":
        return Ready(model, True)
    if first.http_status in (400, 422):
        second = _try(profile, endpoint, model, continuous=False)
        if second.status == "ok":
            return Ready(model, False)
        first = second
    hint = ""
    if profile.output.fixed_by == "ignore_eos" and first.http_status in (400, 422):
        hint = f". Profile {profile.name} sends ignore_eos; a server without it needs output: {{fixed_by: max_tokens}}"
    raise PreflightError(f"{endpoint.url} did not serve a first short request to {model!r}: {first.reason}{hint}")


def first_model(endpoint: Endpoint) -> str:
    """The first model that the server lists.

    Raises:
        PreflightError: it does not answer, or lists none.
    """
    try:
        found = [str(m["id"]) for m in get_json(endpoint, "/v1/models")["data"]]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as e:
        raise PreflightError(
            f"{endpoint.url}/v1/models: {type(e).__name__}: {e}; expected an OpenAI-compatible server there"
        ) from e
    if not found:
        raise PreflightError(f"{endpoint.url}/v1/models names no model; give one with --model")
    return found[0]


def _try(profile: Profile, endpoint: Endpoint, model: str, *, continuous: bool) -> Exchange:
    exchange = Exchange("preflight", "preflight", "warmup", 0, 0.0, 2)
    client = StreamClient(endpoint, profile.timeout_s)
    client.send(exchange, encoded(request_body(profile, model, (("user", "Say yes."),), 2, continuous)))
    client.close()
    return exchange
