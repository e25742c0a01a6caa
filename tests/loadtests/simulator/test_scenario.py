from __future__ import annotations

from pathlib import Path

import pytest

import loadtests.simulator
from loadtests.simulator.scenario import ScenarioError, When, load_scenario
from loadtests.workload import load_profile


def test_a_scenario_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("ttft_ms: 5\nform: {role: own_chunk}\nfaults:\n- {kind: stall, at_s: 3, for_s: 2}\n")
    s = load_scenario(path)
    assert (s.ttft_ms, s.form.role, s.faults[0].kind) == (5, "own_chunk", "stall")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft: 5", "ttft: Extra inputs"),
        ("faults: [{kind: quake}]", "faults.0"),
        ("faults: [{kind: stall, at_s: 1, for_s: 0}]", "greater than 0"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_scenario_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=message):
        load_scenario(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot read"):
        load_scenario(tmp_path / "none.yaml")


def test_when_selects() -> None:
    third = When(every=3)
    assert [n for n in range(9) if third.selects(n, 1, 0.0)] == [1, 4, 7]
    assert not When().selects(0, 1, 0.0)  # the preflight
    crowd = When(above=4, from_s=2, to_s=3)
    assert [crowd.selects(1, n, s) for n, s in ((5, 2.0), (4, 2.0), (5, 1.9), (5, 3.0))] == [True, False, False, False]


def test_the_examples_are_valid_and_ask_for_what_their_names_say() -> None:
    examples = Path(loadtests.simulator.__file__).with_name("examples")
    assert load_scenario(examples / "steady.yaml").itl_ms == 50
    for users in (200, 400):
        assert load_profile(str(examples / f"{users}-streams.yaml")).users == users
