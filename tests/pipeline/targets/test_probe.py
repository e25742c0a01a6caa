"""What a server lacks is found by what its answers show, whether it refuses a parameter or passes it over."""

from __future__ import annotations

import json
from dataclasses import fields

import httpx
import pytest

from engine.artifact import Named
from pipeline.targets.capabilities import TITLES, Capabilities, promised
from pipeline.targets.probe import with_capabilities
from pipeline.targets.target import Target
from tests.pipeline.targets.pretend import Pretend

NOBODY = Named(name="nobody", digest="0" * 64)


def probed(pretend: Pretend) -> Capabilities:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        found = pretend.answer(request.method, request.url.path, request.headers.get("Authorization"), body)
        return httpx.Response(found[0], content=found[2], headers={"Content-Type": found[1]})

    target = Target("http://test", "m", NOBODY, NOBODY, NOBODY, {}, {}, None)
    found = with_capabilities(target, httpx.MockTransport(answer)).capabilities
    assert found is not None
    return found


def states(found: Capabilities) -> dict[str, str]:
    return {name: getattr(found, name).state for name in TITLES}


def test_a_server_that_has_all() -> None:
    found = probed(Pretend())
    assert states(found) == dict.fromkeys(TITLES, "yes")
    assert found.metrics.seen == "1 of vllm"
    assert found.source == "probed"
    assert Capabilities.read(json.loads(json.dumps(found.json()))) == found


@pytest.mark.parametrize(
    ("lacks", "absent"),
    [
        ("prompt_logprobs", {"prompt_logprobs", "prompt_logprobs_from"}),
        ("prompt_logprobs_from", {"prompt_logprobs_from"}),
        ("stream_usage running_usage", {"stream_usage", "running_usage"}),
        ("running_usage", {"running_usage"}),
        ("token_ids", {"token_ids"}),
        ("metrics", {"metrics"}),
        ("deterministic", {"deterministic"}),
        ("deterministic_in_company", {"deterministic_in_company"}),
        ("ignore_eos", {"ignore_eos"}),
        ("min_tokens", {"min_tokens"}),
        ("params", {"ignore_eos", "min_tokens"}),
    ],
)
def test_each_gap_is_found_and_no_other(lacks: str, absent: set[str]) -> None:
    found = probed(Pretend(tuple(lacks.split())))
    assert states(found) == {name: "no" if name in absent else "yes" for name in TITLES}
    for name in absent:
        why = found.lacking(name)
        assert why is not None
        assert why.startswith(f"not measurable here: {name}, {TITLES[name]}: the server lacks it: ")


def test_without_an_answer_nothing_is_claimed() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody there")

    target = Target("http://test", "m", NOBODY, NOBODY, NOBODY, {}, {}, None)
    found = with_capabilities(target, httpx.MockTransport(broken)).capabilities
    assert found is not None
    assert "yes" not in states(found).values()
    assert found.deterministic.state == found.ignore_eos.state == "unknown"
    assert "it could not be told" in str(found.lacking("deterministic"))
    assert found.prompt_logprobs.seen == "ConnectError: nobody there"


def test_what_is_known_is_not_asked_again() -> None:
    target = Target("http://test", "m", NOBODY, NOBODY, NOBODY, {}, {}, None, capabilities=promised())
    assert with_capabilities(target) is target


def test_every_capability_has_a_title() -> None:
    assert [f.name for f in fields(Capabilities)] == [*TITLES, "source", "probed_at"]
