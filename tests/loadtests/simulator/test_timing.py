from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.simulator.scenario import Scenario
from loadtests.simulator.timing import Timing


def timing(*faults: dict[str, object], **kwargs: object) -> Timing:
    return Timing(Scenario.model_validate({"faults": list(faults), **kwargs}))


def test_plain_delays_are_kept() -> None:
    assert timing().after(1.5, 0.25) == 1.75


def test_a_stall_holds_what_is_due_in_it_and_nothing_else() -> None:
    t = timing({"kind": "stall", "at_s": 2, "for_s": 30})
    assert t.after(1.0, 0.99) == 1.99
    assert [t.after(1.9, d) for d in (0.1, 1, 30)] == [32.0, 32.0, 32.0]
    assert t.after(32.0, 0.1) == pytest.approx(32.1)


def test_spikes_come_back() -> None:
    t = timing({"kind": "spikes", "every_s": 5, "for_s": 0.5, "first_s": 2})
    assert [t.release(s) for s in (0.1, 1.99, 2.0, 2.4, 2.5, 7.2, 12.1)] == [0.1, 1.99, 2.5, 2.5, 2.5, 7.5, 12.5]


def test_drift_grows_and_then_stays() -> None:
    t = timing({"kind": "drift", "share": 0.05, "from_s": 10, "over_s": 100})
    assert [t.after(s, 1.0) - s for s in (0, 10, 60, 110, 500)] == pytest.approx([1, 1, 1.025, 1.05, 1.05])


def test_steps_gather_what_is_due_between_them() -> None:
    t = timing(step_ms=50)
    assert [round(t.release(s), 6) for s in (0.0, 0.001, 0.05, 0.0501)] == [0.0, 0.05, 0.05, 0.1]


@given(st.floats(0, 100), st.floats(0.5, 3), st.floats(0.01, 0.4), st.floats(0, 50), st.floats(0.1, 5))
def test_what_is_released_is_not_held_again(at: float, every: float, wide: float, stall: float, length: float) -> None:
    t = timing(
        {"kind": "spikes", "every_s": every, "for_s": wide},
        {"kind": "stall", "at_s": stall, "for_s": length},
        step_ms=30,
    )
    moved = t.release(at)
    assert moved >= at - 1e-9
    assert t.release(moved) == pytest.approx(moved, abs=1e-6)
