from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from loadtests.workload import PROFILES, Profile, ProfileError, StageSpec, load_profile, workload_digest

STAGES = ["short_burst", "long_context", "mixed_random"]


def raw(name: str = "smoke") -> dict[str, Any]:
    return dict(yaml.safe_load((PROFILES / f"{name}.yaml").read_text(encoding="utf-8")))


def write(tmp_path: Path, value: Any) -> str:
    path = tmp_path / "p.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", sorted(p.stem for p in PROFILES.glob("*.yaml")))
def test_shipped_profiles_bear_their_names(name: str) -> None:
    assert load_profile(name).name == name


@pytest.mark.parametrize("name", ["ci", "smoke", "release", "soak"])
def test_profiles_of_a_trial_have_its_stages(name: str) -> None:
    profile = load_profile(name)
    assert profile.kind == name
    assert [s.name for s in profile.stages] == STAGES


def test_release_measures_half_an_hour_a_stage() -> None:
    profile = load_profile("release")
    assert profile.kind == "release"
    assert all(s.duration_s >= 1800 for s in profile.stages)


def test_soak_measures_hours() -> None:
    profile = load_profile("soak")
    assert profile.kind == "soak"
    assert profile.planned_s >= 4 * 3600


def test_a_shorter_soak_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="short_burst measures 1800 s; a soak profile measures at least 60 minutes"):
        load_profile(write(tmp_path, raw("release") | {"kind": "soak"}))


def test_a_shorter_release_is_refused(tmp_path: Path) -> None:
    value = raw("release")
    value["stages"][1]["duration_s"] = 1799
    with pytest.raises(ProfileError, match="long_context measures 1799 s; a release profile measures at least 30 min"):
        load_profile(write(tmp_path, value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "colour"),
        ({"kind": "other"}, "kind"),
        ({"output": {"fixed_by": "luck"}}, "fixed_by"),
        ({"stages": []}, "stages"),
    ],
)
def test_unknown_or_wrong_keys_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        load_profile(write(tmp_path, raw() | change))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("arrivals", {"kind": "walk", "min": 4, "max": 4, "step": 1, "every_s": 1}, "use kind closed"),
        ("arrivals", {"kind": "sometimes"}, "sometimes"),
        ("arrivals", {"kind": "poisson", "rate_per_s": 0}, "rate_per_s"),
        ("arrivals", {"kind": "replay", "file": "no.csv"}, "no.csv cannot be read: No such file"),
        ("prompt_tokens", None, "needed where no trace is replayed"),
        ("sessions", {"turns": 1, "context_tokens": 9}, "sessions.turns"),
        ("abandon", {"share": 0, "patience": {"kind": "fixed", "s": 1}}, "abandon.share"),
        ("system", {"share": 1, "prompts": []}, "prompts"),
        ("prompt_tokens", {"kind": "uniform", "min": 9, "max": 3}, "min is 9, above max 3"),
        ("output_tokens", {"kind": "lognormal", "median": 99, "sigma": 1, "min": 1, "max": 9}, "min <= median <= max"),
    ],
)
def test_wrong_stage_settings_are_named(tmp_path: Path, key: str, value: Any, message: str) -> None:
    profile = raw()
    profile["stages"][0][key] = value
    with pytest.raises(ProfileError, match=message):
        load_profile(write(tmp_path, profile))


def test_stage_names_are_unique(tmp_path: Path) -> None:
    value = raw()
    value["stages"].append(value["stages"][0])
    with pytest.raises(ProfileError, match="found twice: short_burst"):
        load_profile(write(tmp_path, value))


def test_no_such_profile_names_those_there_are() -> None:
    with pytest.raises(ProfileError, match=r"'nope'.*ci, release, smoke, soak"):
        load_profile("nope")


def test_not_yaml(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="not YAML"):
        load_profile(write(tmp_path, "a: [1"))


def test_the_digest_follows_what_changes_the_traffic() -> None:
    base = Profile.model_validate(raw())
    slower = raw()
    slower["stages"][0]["arrivals"]["concurrency"] = 1
    digests = {
        workload_digest(base, 1),
        workload_digest(base, 2),
        workload_digest(Profile.model_validate(slower), 1),
    }
    assert len(digests) == 3
    assert workload_digest(Profile.model_validate(raw()), 1) == workload_digest(base, 1)


def test_a_file_counts_by_its_content(tmp_path: Path) -> None:
    def digest(file: str, text: str) -> str:
        (tmp_path / file).write_text(text)
        value = raw()
        value["stages"][0]["prompt_tokens"] = {"kind": "empirical", "file": file}
        return workload_digest(load_profile(write(tmp_path, value)), 1)

    assert digest("a.txt", "5\n6\n") == digest("b.txt", "5\n6\n") != digest("a.txt", "5\n7\n")


def test_what_is_left_out_does_not_count() -> None:
    """A key that is new and not used leaves the identity of a profile as it was: ci's, until ci.yaml itself changes."""
    assert workload_digest(load_profile("ci"), 20261129) == (
        "aa5938b941ae29ae40178de4c45e49947f177fee2650bded06b36546ec4f7634"
    )


def test_users_think_only_where_somebody_waits() -> None:
    value = raw()["stages"][0] | {"think": {"kind": "fixed", "s": 1}}
    assert StageSpec.model_validate(value).think
    value["arrivals"] = {"kind": "poisson", "rate_per_s": 1}
    with pytest.raises(ValidationError, match="think has no meaning with poisson arrivals"):
        StageSpec.model_validate(value)
    assert StageSpec.model_validate(value | {"sessions": {"turns": 2, "context_tokens": 900}}).think


def test_users_and_length() -> None:
    profile = Profile.model_validate(raw())
    assert profile.users == 8
    assert profile.planned_s == 24
