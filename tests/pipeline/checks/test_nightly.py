"""The reminder to rotate, and the settings of a release."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.checks.release_settings import for_release
from pipeline.checks.rotation import reminder
from pipeline.errors import SeatrialError
from pipeline.evaluation.items import Evalset, Grader, Item, Manifest, Rotation
from pipeline.params import load_params

ROOT = Path(__file__).resolve().parents[3]


def _set(*weeks: str, rotation: bool = True) -> Evalset:
    plan = Rotation(items_per_week=5, weeks_kept=4, minimum_share=0.1, stale_after_weeks=2, waived_until="2026-W50")
    manifest = Manifest(
        name="own", version="1.0.0", description="", scenarios={}, content_digest="0", changelog=[],
        rotation=plan if rotation else None,
    )  # fmt: skip
    items = [
        Item(
            id=f"i{n}", scenario="s", kind="chat", origin="production", week=week, source="s", prompt="?",
            grader=Grader(name="people.rubric"),
        )
        for n, week in enumerate(weeks)
    ]  # fmt: skip
    return Evalset(manifest=manifest, items=items)


@pytest.mark.parametrize(
    ("weeks", "now", "words"),
    [
        (["2026-W47", "2026-W49"], "2026-W49", None),
        (["2026-W47", "2026-W49"], "2026-W50", "are 1 weeks old: `seatrial evalset rotate --week 2026-W50"),
        (["2026-W49"], "2026-W52", "are 3 weeks old and are stale"),
        (["2026-W52"], "2027-W01", "are 2 weeks old:"),  # 2026 has 53 weeks
        ([], "2026-W49", "no production requests yet (waived for 1 more weeks)"),
        ([], "2026-W51", "its waiver has expired"),
    ],
)
def test_a_rotation_is_due_from_the_week_after(weeks: list[str], now: str, words: str | None) -> None:
    said = reminder(_set(*weeks), now)
    assert said is None if words is None else words in (said or "")


def test_a_set_without_rotation_has_none_due() -> None:
    assert reminder(_set("2020-W01", rotation=False), "2026-W49") is None


def test_a_release_is_judged_by_its_own_profile_and_policy(tmp_path: Path) -> None:
    path, before = tmp_path / "params.yaml", (ROOT / "params.yaml").read_text()
    path.write_text(before)
    shipped = load_params(path)
    text = for_release(before)
    path.write_text(text)
    after = load_params(path)
    assert (after.load.profile, after.gate["policy"]) == ("release", "release")
    changed = [a for a, b in zip(before.split("\n"), text.split("\n"), strict=True) if a != b]
    assert changed == [f"  profile: {shipped.load.profile}", f"  policy: {shipped.gate['policy']}"]
    assert for_release(text) == text
    with pytest.raises(SeatrialError, match=r"has no load\.profile, gate\.policy on a line of its own"):
        for_release("load: {profile: ci}\n")
