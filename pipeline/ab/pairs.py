"""A pair of rounds over the same traffic: both sides in turns, or whole rounds one after the other.

In turns:   boot A, boot B;   A B A B ... A B;   end both      (a turn: about a second; each side has its own client)
Whole:      boot A, A, end A;   boot B, B, end B

Who is first alternates from pair to pair. A side that breaks off leaves the other to go on to its end, which then has
its round: that is how one knows that the base bore what the candidate did not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from loadtests.turns import Place, Table
from loadtests.workload import Profile
from pipeline.ab.room import available_bytes, held_bytes, why_no_room
from pipeline.ab.rounds import Files, NeverUp, Quiet, Round, Which, base_first, booted, round_of, run_round
from pipeline.ab.sides import Side
from pipeline.errors import SeatrialError
from pipeline.load.measure import measure
from pipeline.load.stolen import Stolen
from pipeline.params import AbParams
from pipeline.targets.target import Target

RunRound = Callable[[Side, Which, int, Profile, str, int, Path], Round]


class Broke(SeatrialError):
    """``side`` broke off by ``why``; ``other_up``: the other's server had come up in that pair."""

    def __init__(self, side: Which, why: SeatrialError, *, other_up: bool = False) -> None:
        super().__init__(str(why))
        self.side, self.why, self.other_up = side, why, other_up


class _NoRoom(SeatrialError):
    """Both servers do not fit."""


class Pairs:
    """Runs pairs of ``sides`` as ``params`` has it. ``why_not``: why the sides do not take turns, None where they do.

    ``round_``: measures whole rounds, instead of turns.
    """

    def __init__(
        self, sides: Mapping[Which, Side], params: AbParams, profile: Profile, round_: RunRound | None = None
    ) -> None:
        self._sides, self._params, self._profile = sides, params, profile
        self._round = round_ or run_round
        self.why_not = "whole rounds were asked for" if round_ else _why_not(sides, params, profile)
        self._both_fit = False

    @property
    def turn_s(self) -> float | None:
        return None if self.why_not else self._params.turn_s

    def as_json(self) -> dict[str, Any]:
        guard_s = None if self.why_not else self._params.guard_s
        return {"turn_s": self.turn_s, "guard_s": guard_s, "why_not": self.why_not}

    def run(self, pair: int, seed: int, out: Path) -> Iterator[Round]:
        """The rounds of pair ``pair``, each as soon as it is there; records and logs stay below ``out``.

        Raises:
            Broke: one of the sides did.
        """
        order: tuple[Which, Which] = ("base", "candidate") if base_first(pair) else ("candidate", "base")
        files = {which: out / f"{pair:02d}-{which}" for which in order}
        if self.turn_s is not None:
            try:
                yield from self._in_turns(order, pair, seed, files, self.turn_s)
                return
            except _NoRoom as e:
                self.why_not = str(e)
        for which in order:
            try:
                yield self._round(
                    self._sides[which], which, pair, self._profile, self._params.profile, seed, files[which]
                )
            except SeatrialError as e:
                raise Broke(which, e) from e

    def _in_turns(
        self, order: tuple[Which, Which], pair: int, seed: int, out: Mapping[Which, Path], turn_s: float
    ) -> Iterator[Round]:
        began = time.monotonic()
        files = {which: Files(out[which]) for which in order}
        with ExitStack() as opened:
            targets = self._boot(order, files, opened)
            stolen = Stolen()
            done = self._measure(targets, seed, files, turn_s)
            share = stolen.share()
        wall_s = time.monotonic() - began
        for which, found in done.items():
            if not isinstance(found, SeatrialError):
                yield round_of(which, pair, self._profile, seed, files[which], found, share, wall_s)
        for which, found in done.items():
            if isinstance(found, SeatrialError):
                raise Broke(which, found, other_up=True)

    def _boot(self, order: tuple[Which, Which], files: Mapping[Which, Files], opened: ExitStack) -> dict[Which, Target]:
        """Both at once where they have fitted before; one after the other where they have not, or now did not come up:
        while it loads an engine takes more than afterwards.
        """
        if self._both_fit:
            at_once = opened.enter_context(ExitStack())
            try:
                return self._boot_at_once(order, files, at_once)
            except NeverUp:
                at_once.close()
        targets = self._boot_in_turn(order, files, opened)
        self._both_fit = True
        return targets

    def _boot_in_turn(
        self, order: tuple[Which, Which], files: Mapping[Which, Files], opened: ExitStack
    ) -> dict[Which, Target]:
        """The second only where there is room for it beside the first."""
        targets: dict[Which, Target] = {}
        held: list[int] = []
        available = available_bytes()
        for which in order:
            try:
                targets[which] = booted(self._sides[which], files[which], opened)
            except NeverUp as e:
                raise Broke(which, e, other_up=bool(targets)) from e
            held.append(held_bytes(targets[which]))
            if (why := why_no_room(held, len(order), available)) is not None:
                raise _NoRoom(why)
        return targets

    def _boot_at_once(
        self, order: tuple[Which, Which], files: Mapping[Which, Files], opened: ExitStack
    ) -> dict[Which, Target]:
        """
        Raises:
            NeverUp: one of them does not come up.
        """
        with ThreadPoolExecutor(len(order)) as pool:
            stacks = {which: opened.enter_context(ExitStack()) for which in order}
            jobs = {w: pool.submit(booted, self._sides[w], files[w], stacks[w]) for w in order}
        return {which: job.result() for which, job in jobs.items()}

    def _measure(
        self, targets: Mapping[Which, Target], seed: int, files: Mapping[Which, Files], turn_s: float
    ) -> dict[Which, dict[str, Any] | SeatrialError]:
        """By side its ``load.json``, or what ended it; in the order in which they ended."""
        done: dict[Which, dict[str, Any] | SeatrialError] = {}
        ended = Event()

        def measured(which: Which, place: Place) -> None:
            f, target = files[which], targets[which]
            try:
                found = measure(
                    Quiet("ab", f.out.name), _until(ended, target), self._params.profile, seed, f.out, f.locust,
                    again=0, place=place,
                )  # fmt: skip
            except SeatrialError as e:
                done[which] = e
            else:
                done[which] = found
            finally:
                place.close()

        with Table(len(targets), turn_s, self._params.guard_s) as table, ThreadPoolExecutor(len(targets)) as pool:
            jobs: list[Future[None]] = []
            try:
                for which, place in zip(targets, table.places, strict=True):
                    jobs.append(pool.submit(measured, which, place))
                for job in jobs:
                    job.result()
            except BaseException:
                ended.set()
                raise
        return done


def _until(ended: Event, target: Target) -> Target:
    """The target, whose check fails as soon as nobody wants its figures any more."""

    def check() -> None:
        if ended.is_set():
            raise SeatrialError("the comparison was ended")
        target.check_alive()

    return replace(target, check_alive=check)


def _why_not(sides: Mapping[Which, Side], params: AbParams, profile: Profile) -> str | None:
    if params.turn_s is None:
        return "ab.turn_s is null"
    if (stage := profile.waits_for_nobody) is not None:
        return f"stage {stage} of profile {profile.name} has open-loop arrivals, which wait for no turn"
    if any(s.settings.get("backend") == "cuda" for s in sides.values()):
        return "each engine fills the accelerator's memory by itself"
    return None
