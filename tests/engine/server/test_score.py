"""``/score`` over HTTP: what it answers, what it refuses, and that nothing stays when the client goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.server.app import MAX_BODY_BYTES
from tests.engine.server.booted import MODEL, Booted, boot, command, halted, refused, until
from tests.tiny import make_tiny_artifact

LIMIT_GIB = 0.01


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("references")


@pytest.fixture(scope="module")
def scoring(artifact: Path, directory: Path) -> Iterator[Booted]:
    with boot(artifact, "--reference-dir", str(directory), "--reference-limit-gib", str(LIMIT_GIB)) as running:
        yield running


def post(server: Booted, **body: Any) -> httpx.Response:
    return server.http.post("/score", json={"model": MODEL, **body})


def data(server: Booted, **body: Any) -> list[dict[str, Any]]:
    response = post(server, **body)
    assert response.status_code == 200, response.text
    assert response.json()["object"] == "score"
    return list(response.json()["data"])


def test_scores_are_the_echoed_ones(scoring: Booted) -> None:
    response = post(scoring, prompt="Hello there", top_logprobs=2).json()
    assert response["usage"]["prompt_tokens"] == 11
    assert response["usage"]["completion_tokens"] == 0
    (scored,) = response["data"]
    echoed = scoring.complete("Hello there", max_tokens=1, echo=True, logprobs=2).json()["choices"][0]["logprobs"]
    assert scored["tokens"] == list(b"Hello there")
    assert scored["logprobs"] == echoed["token_logprobs"][:11]
    assert scored["top"][0] is None
    assert [len(t) for t in scored["top"][1:]] == [2] * 10
    assert scored["top"][1][0]["logprob"] == max(echoed["top_logprobs"][1].values())
    assert (scored["kl"], scored["reference"], scored["stored"]) == (None, None, None)


def test_prompts_in_every_form_come_back_in_order(scoring: Booted) -> None:
    texts = data(scoring, prompt=["ab", "abc", "x"])
    assert [e["index"] for e in texts] == [0, 1, 2]
    assert data(scoring, prompt=[[97, 98], [97, 98, 99], [120]]) == texts
    assert data(scoring, prompt=[97, 98, 99])[0]["logprobs"] == texts[1]["logprobs"]
    assert data(scoring, prompt="abc", add_special_tokens=False)[0]["tokens"] == [97, 98, 99]
    assert texts[2]["logprobs"] == [None]


def test_divergence_from_a_stored_reference(scoring: Booted, directory: Path, tmp_path: Path) -> None:
    prompts = ["The first prompt", "and another, " * 20]
    stored = data(scoring, prompt=prompts, store="base")
    files = {p.stat().st_size for p in (directory / "base").iterdir()}
    assert files == {e["stored"]["bytes"] for e in stored}
    for entry in data(scoring, prompt=prompts, reference="base"):
        assert entry["kl"] == [None] + [0.0] * (len(entry["tokens"]) - 1)
        assert entry["reference"]["model"] == "tiny-bf16"
    candidate = make_tiny_artifact(tmp_path / "int8", "int8")
    with boot(candidate, "--reference-dir", str(directory)) as server:
        for entry in data(server, prompt=prompts, reference="base", store="candidate"):
            assert all(0 < v < 1 for v in entry["kl"][1:])
        refused = post(server, prompt="more", store="base")
    assert refused.status_code == 400
    assert "holds the rows of another model (model tiny-bf16 there and tiny-int8 here" in refused.text


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"prompt": "x", "stream": True}, 400, "parameter 'stream' is not supported by this server; remove it"),
        ({"prompt": "x", "top_logprobs": 21}, 400, "parameter 'top_logprobs'"),
        ({"prompt": ""}, 400, "prompt 0 has no token, expected at least one"),
        ({"prompt": ["x", ""]}, 400, "prompt 1 has no token"),
        ({"prompt": []}, 400, "parameter 'prompt"),
        ({}, 400, "parameter 'prompt' is missing"),
        ({"prompt": [999]}, 400, "token id 999 is outside the vocabulary of 272"),
        ({"prompt": [2**64]}, 400, "parameter 'prompt"),  # no message to the core can hold it
        ({"prompt": [1], "add_special_tokens": True}, 400, "add_special_tokens is for text"),
        ({"prompt": "x", "model": "y"}, 404, "model 'y' is not served here"),
        ({"prompt": "x" * 600}, 400, "600 together; this model serves at most 512"),
        ({"prompt": "x", "store": "../x"}, 400, "parameter 'store'"),
        ({"prompt": "x", "reference": ""}, 400, "parameter 'reference'"),
        ({"prompt": "nowhere", "reference": "base"}, 400, "has no log-probabilities of these 7 tokens"),
        ({"prompt": "x" * (MAX_BODY_BYTES + 1)}, 413, f"the server takes {MAX_BODY_BYTES}"),
        ({"prompt": ["x"] * 40}, 429, "the server takes 20"),
    ],
)
def test_refusals(scoring: Booted, body: dict[str, Any], status: int, words: str) -> None:
    response = post(scoring, **body)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == status


def test_the_limit_is_answered_with_507(scoring: Booted, directory: Path) -> None:
    number, before = 0, scoring.metric('requests_rejected_total{reason="no_space"}')
    while (response := post(scoring, prompt=f"{number}" + "y" * 480, store="fills")).status_code == 200:
        number += 1
        assert number < 50
    assert response.status_code == 507
    assert "483 tokens need" in response.text or "482 tokens need" in response.text
    assert response.json()["error"]["type"] == "insufficient_storage_error"
    assert sum(p.stat().st_size for p in directory.rglob("*.safetensors")) <= LIMIT_GIB * 2**30
    assert scoring.metric('requests_rejected_total{reason="no_space"}') == before + 1
    assert data(scoring, prompt="still serves")[0]["kl"] is None


def test_without_the_option_references_are_refused(server: Booted) -> None:
    response = post(server, prompt="x", store="base")
    assert response.status_code == 400
    assert "start the server with --reference-dir" in response.text


def test_a_client_that_goes_ends_its_requests(scoring: Booted, directory: Path) -> None:
    before = scoring.metric('request_success_total{finished_reason="abort"}')
    with halted(scoring):
        with pytest.raises(httpx.ReadTimeout):
            scoring.http.post(
                "/score",
                json={"model": MODEL, "prompt": [f"gone {i}" for i in range(12)], "store": "gone"},
                timeout=10,
            )
        until(lambda: scoring.metric('request_success_total{finished_reason="abort"}') == before + 12)
    until(lambda: scoring.metric("num_requests_running") == scoring.metric("num_requests_waiting") == 0)
    assert data(scoring, prompt="still serves")
    assert not [p for p in directory.rglob("*") if p.is_file() and p.suffix != ".safetensors"], "a half written file"


def test_a_directory_that_cannot_be_written(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--reference-dir" in refused([*command(artifact), "--reference-dir", str(tmp_path / "file")])
