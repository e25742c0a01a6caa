"""When things are sent: the faults that act on the clock. Pure; seconds since the scenario's zero."""

from __future__ import annotations

import math

from loadtests.simulator.scenario import Drift, Scenario, Spikes, Stall


class Timing:
    """The scenario's clock. ``release`` is idempotent: what it returns is never held back again."""

    def __init__(self, scenario: Scenario) -> None:
        self._stalls = [f for f in scenario.faults if isinstance(f, Stall)]
        self._spikes = [f for f in scenario.faults if isinstance(f, Spikes)]
        self._drifts = [f for f in scenario.faults if isinstance(f, Drift)]
        self._step_s = scenario.step_ms / 1000 if scenario.step_ms else None
        self._held = bool(self._stalls or self._spikes or self._step_s)

    def after(self, from_s: float, delay_s: float) -> float:
        """The moment ``delay_s`` after ``from_s``, with drift, steps and stalls."""
        if self._drifts:
            delay_s *= self._stretch(from_s)
        return self.release(from_s + delay_s) if self._held else from_s + delay_s

    def _stretch(self, at_s: float) -> float:
        return math.prod(1 + d.share * min(max((at_s - d.from_s) / d.over_s, 0.0), 1.0) for d in self._drifts)

    def release(self, at_s: float) -> float:
        """The first moment from ``at_s`` on at which something may be sent."""
        while True:
            moved = self._once(at_s)
            if moved <= at_s:
                return at_s
            at_s = moved

    def _once(self, at_s: float) -> float:
        for s in self._stalls:
            if s.at_s <= at_s < s.at_s + s.for_s:
                return s.at_s + s.for_s
        for p in self._spikes:
            k = math.floor((at_s - p.first_s) / p.every_s)
            if k >= 0 and at_s < (ends := p.first_s + k * p.every_s + p.for_s):
                return ends
        if self._step_s:
            return math.ceil(at_s / self._step_s - 1e-9) * self._step_s
        return at_s
