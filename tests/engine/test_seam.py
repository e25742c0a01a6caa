"""What is planted through the seam acts, says so, and is refused where it is not a seam."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.seam import SeamError, plant
from tests.engine.server.booted import MODEL, Booted, boot, command, refused
from tests.tiny import make_tiny_artifact


class ForgetsTheSeed:
    """Both parts: the core draws every request with one seed, and the server calls itself by another name."""

    def core(self, core: Any) -> None:
        submit = core.submit
        core.submit = lambda a: submit(a._replace(params=a.params | {"seed": 7}))

    def server(self, state: Any) -> None:
        state.model = "planted"


class Nothing:
    pass


HERE = "tests.engine.test_seam"


def _draws(server: Booted) -> set[str]:
    body = {"model": server.http.get("/v1/models").json()["data"][0]["id"], "prompt": "once", "max_tokens": 8}
    said = [server.http.post("/v1/completions", json=body | {"seed": s, "temperature": 1.0}) for s in range(3)]
    return {s.json()["choices"][0]["text"] for s in said}


def test_it_acts_in_both_processes_and_the_server_says_so(tmp_path: Path) -> None:
    artifact = make_tiny_artifact(tmp_path / MODEL)
    with boot(artifact) as server:
        assert "seam" not in server.http.get("/info").json()["derived"]
        assert len(_draws(server)) == 3
    with boot(artifact, "--seam", f"{HERE}:ForgetsTheSeed") as server:
        info = server.http.get("/info").json()
        assert (info["model"], info["derived"]["seam"]) == ("planted", f"{HERE}:ForgetsTheSeed")
        assert len(_draws(server)) == 1


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("tests.engine.test_seam", "expected module:Class"),
        (f"{HERE}:Absent", "has no attribute 'Absent'"),
        ("no.such.module:Class", "importable from the working directory"),
        (f"{HERE}:Nothing", "neither a method core nor a method server"),
    ],
)
def test_what_is_no_seam_is_refused(path: str, why: str) -> None:
    with pytest.raises(SeamError, match=why):
        plant(path, "core", object())


def test_a_server_does_not_start_with_what_is_none(tmp_path: Path) -> None:
    options = command(make_tiny_artifact(tmp_path / MODEL), "--seam", "x:Y")
    assert "error: --seam x:Y" in refused(options)
