from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from engine.server.auth import ApiKeyError, ApiKeys
from tests.engine.server.booted import MODEL, command, refused


def keys_in(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_keys_are_lines(tmp_path: Path) -> None:
    keys = ApiKeys.read(keys_in(tmp_path, "# of the team\n\n one-key \r\nother\n"))
    for good in (b"Bearer one-key", b"bearer other", b"Bearer  one-key"):
        assert keys.accept(good)
    for bad in (b"", b"Bearer", b"Bearer ", b"one-key", b"Basic one-key", b"Bearer one", b"Bearer # of the team"):
        assert not keys.accept(bad)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "has no API key"), ("# none\n", "has no API key"), ("good\ntwo words\n", "line 2"), (b"\xff\xfe", "UTF-8")],
)
def test_files_that_are_none(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(ApiKeyError, match=words) as e:
        ApiKeys.read(keys_in(tmp_path, text))
    assert "two words" not in str(e.value)


def test_a_file_that_is_not_there(tmp_path: Path, artifact: Path) -> None:
    message = refused([*command(artifact), "--api-key-file", str(tmp_path / "no")])
    assert re.search("no: No such file or directory; expected a file with one API key a line", message)


def test_who_may_ask(tmp_path: Path, artifact: Path) -> None:
    import json
    import subprocess

    options = ["--exit-with-stdin", "--api-key-file", str(keys_in(tmp_path, "sesame\n"))]
    process = subprocess.Popen(
        command(artifact, *options), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url = f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
    with httpx.Client(base_url=url) as http:
        for path in ("/v1/models", "/info", "/steps", "/nowhere"):
            assert http.get(path).status_code == 401
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}):
            reply = http.post("/v1/completions", json=body, headers=headers)
            assert reply.status_code == 401
            assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert reply.json()["error"]["type"] == "authentication_error"
        two = [("Authorization", "Bearer sesame"), ("Authorization", "Bearer x")]
        assert http.post("/v1/completions", json=body, headers=two).status_code == 401
        assert http.get("/health").status_code == 200
        metrics = http.get("/metrics").text
        assert 'seatrial_requests_rejected_total{reason="unauthorised"} 8.0' in metrics
        http.headers["Authorization"] = "Bearer sesame"
        assert http.post("/v1/completions", json=body).status_code == 200
        assert http.get("/v1/models").status_code == 200
        assert "sesame" not in http.get("/info").text
    _, err = process.communicate("", timeout=240)
    assert process.returncode == 0
    assert "sesame" not in err
