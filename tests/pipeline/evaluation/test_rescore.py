"""The release in service is asked the present items, under the identity of its record."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline.ab import sides
from pipeline.ab.sides import Side
from pipeline.drill.trial import header
from pipeline.errors import SeatrialError
from pipeline.evaluation import outputs, sets
from pipeline.provenance import Header, differing
from pipeline.release.record import RELEASES, Release
from pipeline.targets.target import Target
from tests.pipeline.evaluation.fake_openai import Fake, serving
from tests.pipeline.evaluation.make import read_results
from tests.pipeline.evaluation.test_stage import project

__all__ = ["project"]  # the fixture

ANSWER = "It is Paris, the city on the river that everybody knows from the pictures of its tower and bridges."


def write_release() -> Header:
    """A record of tier int8, on a set that is no more; its header."""
    head = Header.model_validate(header("int8", "core-v0"))
    release = Release(
        name="1.0.0", tier="int8", owner="team", policy="p", policy_digest="", waivers=[], attempts=1,
        verdict_as_of="2026-11-30T12:00:00Z", evaluation=head, load=head, latency={}, scores={"gone": 1.0},
        promoted_at="2026-11-30T12:00:00Z",
    )  # fmt: skip
    RELEASES.mkdir()
    (RELEASES / "1.0.0.json").write_text(release.model_dump_json())
    return head


def serve_as(monkeypatch: pytest.MonkeyPatch, fake: Fake, head: Header) -> list[str]:
    """Puts ``fake`` where the release would be booted; what was asked for."""
    asked: list[str] = []
    target = Target(fake.base_url, "m", head.model, head.engine, head.quantisation, {}, {}, None)

    def side_of(given: str, project: sides.Project) -> Side:
        asked.append(f"{given} of {project.tier}")
        identities = (head.model, head.engine, head.quantisation)
        return Side(given, "release", identities, {}, opened=lambda log: nullcontext(target))

    monkeypatch.setattr(sides, "side_of", side_of)
    return asked


def test_the_release_answers_the_present_items(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = write_release()
    with serving(Fake({f"Question {i}?": ANSWER for i in (0, 2)})) as fake:
        asked = serve_as(monkeypatch, fake, head)
        sets.main(["rescore"])
    outcome, rows = read_results(project, "in-service")
    assert asked == ["release:1.0.0 of int8"]
    assert differing(head, Header.model_validate(outcome["header"])) == ["workload"]
    assert outcome["header"]["workload"]["name"] == "core-v1"
    assert (len(rows), outcome["scenarios"]["extract"]["n"]) == (12, 6)
    assert len(outputs.read(outputs.ledgers())) == 2, "what it wrote is fingerprinted, as of any evaluated artifact"
    assert not (project / "reports/stages/rescore.json").exists()


def test_without_a_release_or_with_another_model_nothing_is_written(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SeatrialError, match="nothing has been released"):
        sets.main(["rescore"])
    head = write_release()
    other = head.model_copy(update={"model": head.model.model_copy(update={"name": "another", "digest": "0" * 64})})
    with serving(Fake()) as fake:
        serve_as(monkeypatch, fake, other)
        with pytest.raises(
            SeatrialError, match=r"1\.0\.0 was released with drill, but its artifact here is of another"
        ):
            sets.main(["rescore"])
        assert fake.requests == []
    assert not (project / "results").exists()
