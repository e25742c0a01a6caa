"""A short storm. The one that memory is judged by takes ten minutes: ``python -m tests.chaos``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.__main__ import main
from tests.chaos.behaviours import BEHAVIOURS, Wrong, no_room, refusal
from tests.tiny import make_tiny_artifact

ERROR = b'{"error": {"message": "why", "type": "rate_limit_error", "code": 429}}'


@pytest.mark.slow
def test_twelve_seconds_of_storm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = make_tiny_artifact(tmp_path / "artifact")
    config = {"compute_dtype": "float32", "threads": 1, "kv_pool_bytes": 600_000}
    options = ["--seconds", "12", "--ignore-growth", "--seed", "1", "--config-json", json.dumps(config)]
    code = main(["--artifact", str(artifact), *options, "--keep", str(tmp_path / "kept")])
    summary = json.loads(capsys.readouterr().out)
    assert summary["wrong"] == {"count": 0, "first": []}
    assert code == 0
    assert summary["well_behaved"]["same bytes"] > 0
    assert sum(bool(found) for found in summary["behaviours"].values()) > len(BEHAVIOURS) / 2
    assert summary["sigterm"]["exit_code"] == 0


def test_a_refusal_must_say_why() -> None:
    assert refusal(429, ERROR, 429) == "429"
    for status, body, found in (
        (500, ERROR, "status 500, expected"),
        (429, b"Too Many Requests", "without an error body"),
        (429, b'{"error": {"message": ""}}', "does not say why"),
    ):
        with pytest.raises(Wrong, match=found):
            refusal(status, body, 429)
    with pytest.raises(Wrong, match="without Retry-After"):
        no_room(429, {}, ERROR)
    assert no_room(429, {"retry-after": "3"}, ERROR) == "429"
