"""A grader's version fixes what it does: other behaviour, or another golden file, needs another version."""

from __future__ import annotations

import hashlib
import json

import pytest

from pipeline.evaluation import sandbox
from pipeline.evaluation.graders import GRADERS
from tests.pipeline.evaluation.golden_cases import FOLDER, inputs, output, path_of

JUDGING = [name for name, spec in GRADERS.items() if not spec.for_people]
# sha256 of each golden file. A line is added with a new version and never changed.
DIGESTS = {
    "choice.loglikelihood@1": "cb104711d0a95f00b096ce343d38a747cb71423a3db2920b5ecec342f7bcdd08",
    "extract.match@1": "67b3ebfe4ca96722841af0ab5c7e96c76c9f5978fbc56e21a5c3dc7f2fc5be00",
    "math.last_number@1": "3be21b6a7974bfad139691276cbcea8da2330317b70a78752e543c8e92eb676b",
    "code.unit_tests@1": "e5a905b9914e5d75ca9159e0dec55db790017e031daa93cffe6ccd3c1c82bccf",
    "instruct.constraints@1": "ccf2d363fc4059c788596594bc537ac1a0d95330d374bec7dfe8916c6cd6bc61",
    "instruct.ifeval@1": "454f76f9f091b8a8355b083c36b02dda61268a063d1970a7da31ca98c38d190d",
}


@pytest.mark.parametrize("name", JUDGING)
def test_a_version_still_does_what_it_did(name: str) -> None:
    if GRADERS[name].needs_process and sandbox.unavailable():
        pytest.skip(f"this machine isolates nothing: {sandbox.unavailable()}")
    cases = inputs()[name]
    golden = json.loads(path_of(name).read_text(encoding="utf-8"))
    assert len(golden) == len(cases)
    for (item, answer), expected in zip(cases, golden, strict=True):
        assert output(item, answer) == expected, (
            f"{name} grades otherwise than version {GRADERS[name].version} did; give it a new version, then run "
            "python -m tests.pipeline.evaluation.golden_cases and add the digest here"
        )


def test_golden_files_are_those_of_their_versions() -> None:
    found = {p.stem: hashlib.sha256(p.read_bytes()).hexdigest() for p in FOLDER.glob("*.json")}
    assert found == DIGESTS


@pytest.mark.parametrize("name", JUDGING)
def test_goldens_hold_right_and_wrong_answers(name: str) -> None:
    assert {row["correct"] for row in json.loads(path_of(name).read_text(encoding="utf-8"))} == {True, False}
