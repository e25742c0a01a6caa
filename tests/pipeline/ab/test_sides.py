"""What a side may be, and what is said where it cannot be found."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil
import pytest
import yaml

from pipeline.ab.__main__ import main
from pipeline.ab.rounds import run_round
from pipeline.ab.sides import Project, side_of
from pipeline.diagnosis.inputs import read_run_folder
from pipeline.errors import SeatrialError
from pipeline.load.measure import read_profile

PLANTED = "pipeline.drill.seams:DecodeSlower10"


def test_an_artifact_settings_and_a_seam_have_identities_of_their_own(project: Project) -> None:
    plain = side_of("artifacts/int8", project)
    same = side_of("config:max_num_seqs=16", project)
    other = side_of("config:max_num_seqs=8,prefill=separate", project)
    planted = side_of(f"seam:{PLANTED}", project)
    assert plain.identities == same.identities
    assert other.settings["prefill"] == "separate"
    engines = [s.identities[1].digest for s in (plain, other, planted)]
    assert len(set(engines)) == 3
    assert planted.identities[1].name.endswith(f"with seam {PLANTED}")
    Path("small.yaml").write_text("max_num_seqs: 8\nprefill: separate\n")
    assert side_of("config:small.yaml", project).identities == other.identities


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nowhere", "no folder and no revision"),
        ("git:nowhere", "names no commit here"),
        ("requirements", "neither an artifact .* nor a source tree"),
        ("release:2026.12", "no release '2026.12': .* released: none"),
        ("config:max_num_seqs", "expected settings such as"),
        ("config:max_num_seqs=0", "max_num_seqs"),
        ("config:max_num_seqs=[", "expected KEY=VALUE with a plain value"),
        ("config:absent.yaml", "expected a YAML file"),
        ("http://127.0.0.1:9", "expected an OpenAI-compatible server"),
    ],
)
def test_what_cannot_be_found_is_said(given: str, words: str, project: Project) -> None:
    with pytest.raises(SeatrialError, match=words):
        side_of(given, project)


def test_a_round_boots_measures_and_ends(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The real thing, once: the planted engine on a tiny model under a slice of seconds."""
    stage = {
        "name": "decode", "warmup_s": 0.2, "duration_s": 5, "arrivals": {"kind": "closed", "concurrency": 2},
        "prompt_tokens": {"kind": "fixed", "tokens": 8}, "output_tokens": {"kind": "fixed", "tokens": 12},
    }  # fmt: skip
    value = {"name": "t", "kind": "smoke", "output": {"fixed_by": "ignore_eos"}, "stages": [stage]}
    Path("t.yaml").write_text(yaml.safe_dump(value))
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath))
    side = side_of(f"seam:{PLANTED}", project)
    r = run_round(side, "candidate", 0, read_profile("t.yaml"), "t.yaml", 5, tmp_path / "out" / "00-candidate")
    assert (r.side, r.pair, r.seed) == ("candidate", 0, 5)
    assert r.requests > 0
    assert r.failed == 0
    itl, rate = r.figures["decode", "itl-p50"], r.figures["decode", "throughput"]
    assert itl is not None
    assert rate is not None
    assert itl >= 0  # tokens of a tiny model may arrive in one read
    assert rate > 0
    assert (tmp_path / "out/00-candidate/records.parquet").is_file()
    known = read_run_folder(str(tmp_path / "out/00-candidate"))
    assert known.steps is not None
    assert known.requests is not None
    assert known.records is not None
    asked, logged = (set(f[c].drop_nulls()) for f, c in ((known.records, "server_id"), (known.requests, "id")))
    assert asked <= logged  # the engine's own log knows the client's requests, on the same clock
    first = known.records.join(known.requests, left_on="server_id", right_on="id")
    # The nearest: a machine that pauses makes single stamps late, a clock that is off would move all of them.
    assert (first["first_token_s"] - first["first_token_s_right"]).abs().min() < 0.5  # type: ignore[operator]
    load = (tmp_path / "out/00-candidate/load.json").read_text()
    assert f'"seam": "{PLANTED}"' in load
    deadline = time.monotonic() + 240
    while left := running_in(tmp_path):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def running_in(folder: Path) -> list[str]:
    found = []
    for p in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            found.append(" ".join(p.cmdline()))
    return [line for line in found if str(folder) in line]


@pytest.mark.parametrize(
    ("option", "words"),
    [("--budget-minutes=0", "--budget-minutes is 0.0: .*greater than 0"), ("--margin-percent=nan", "--margin-percent")],
)
def test_a_wrong_option_is_told_before_anything_starts(
    option: str, words: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["ab", "artifacts/int8", "artifacts/int8", option])
    with pytest.raises(SeatrialError, match=words):
        main()
