from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtests.workload import PROFILES, Profile, ProfileError, load_profile, workload_digest

STAGES = ["short_burst", "long_context", "mixed_random"]


def raw(name: str = "smoke") -> dict[str, Any]:
    return dict(yaml.safe_load((PROFILES / f"{name}.yaml").read_text(encoding="utf-8")))


def write(tmp_path: Path, value: Any) -> str:
    path = tmp_path / "p.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", sorted(p.stem for p in PROFILES.glob("*.yaml")))
def test_shipped_profiles(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert [s.name for s in profile.stages] == STAGES


def test_release_measures_half_an_hour_a_stage() -> None:
    profile = load_profile("release")
    assert profile.kind == "release"
    assert all(s.duration_s >= 1800 for s in profile.stages)


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
    with pytest.raises(ProfileError, match=r"'nope'.*ci, release, smoke"):
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


def test_users_and_length() -> None:
    profile = Profile.model_validate(raw())
    assert profile.users == 8
    assert profile.planned_s == 24
