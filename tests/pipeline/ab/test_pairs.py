"""A pair of rounds in turns, against mock servers whose own notes say what was sent when."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from loadtests.output import read_run
from loadtests.records import RunInfo
from loadtests.workload import workload_digest
from pipeline.ab import pairs as pairs_module
from pipeline.ab.compare import compare_builds
from pipeline.ab.pairs import Broke, Pairs
from pipeline.ab.report import markdown
from pipeline.ab.room import MARGIN_BYTES, available_bytes, why_no_room
from pipeline.ab.rounds import NeverUp, Round, Which, round_of
from pipeline.ab.sides import Side
from pipeline.drill.repeat import of
from pipeline.errors import SeatrialError
from pipeline.load.measure import read_profile
from pipeline.params import AbParams
from pipeline.serving import ServerEnded
from pipeline.stage import Stage
from pipeline.targets.foreign import foreign
from pipeline.targets.target import Target
from tests.loadtests.mock_server import MockServer, Reply, mock_server
from tests.pipeline.ab.made_up import Machine, side

TOKENS = 3


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def params(**changes: Any) -> AbParams:
    stage = {
        "name": "s", "warmup_s": 0.3, "duration_s": 0.9, "arrivals": {"kind": "closed", "concurrency": 2},
        "prompt_tokens": {"kind": "fixed", "tokens": 12}, "output_tokens": {"kind": "fixed", "tokens": TOKENS},
    }  # fmt: skip
    stage |= changes.pop("stage", {})
    value = {"name": "t", "kind": "smoke", "output": {"fixed_by": "ignore_eos"}, "stages": [stage]}
    Path("t.yaml").write_text(yaml.safe_dump(value))
    return AbParams.model_validate({"profile": "t.yaml", "turn_s": 0.3, "guard_s": 0.01} | changes)


def served_by(server: MockServer, which: str, check: Callable[[], None] = lambda: None) -> Side:
    """A side that is the mock server; ``check`` as that of its target."""

    @contextmanager
    def opened(log: Path) -> Iterator[Target]:
        yield replace(foreign(server.url, "mock"), check_alive=check)

    return replace(side(which), opened=opened)


def pairs_of(base: Side, candidate: Side, p: AbParams) -> Pairs:
    return Pairs({"base": base, "candidate": candidate}, p, read_profile(p.profile))


def spans(run: RunInfo) -> list[tuple[float, float]]:
    """Of the run's turns, on the machine's clock."""
    assert run.clock_zero_s is not None
    turns = [t for stage in run.stages for t in stage["turns"]]
    return [(run.clock_zero_s + t["start_s"], run.clock_zero_s + t["end_s"]) for t in turns]


@pytest.mark.parametrize("pair", [0, 1])
def test_both_are_served_the_same_in_turns_that_never_overlap(pair: int, tmp_path: Path) -> None:
    with mock_server(Reply(first_s=0.02, gap_s=0.01)) as a, mock_server(Reply(first_s=0.03, gap_s=0.01)) as b:
        found = list(pairs_of(served_by(a, "a"), served_by(b, "b"), params()).run(pair, 5, tmp_path / "out"))
        seen = {"base": a.seen, "candidate": b.seen}
    assert {r.side for r in found} == {"base", "candidate"}
    assert all(r.requests > 0 and not r.failed and r.seed == 5 for r in found)
    runs = {which: read_run(tmp_path / f"out/{pair:02d}-{which}")[1] for which in seen}
    order = sorted((span, which) for which, run in runs.items() for span in spans(run))
    first = "base" if pair == 0 else "candidate"
    assert [which for _, which in order][::2] == [first] * 4
    assert all(x[0][1] <= y[0][0] for x, y in itertools.pairwise(order))
    sent = {}
    for which, run in runs.items():
        begins, ends = spans(run)[0][0], spans(run)[-1][1]
        mine = [s for s in seen[which] if s.body["max_tokens"] == TOKENS and begins <= s.received_s <= ends]
        assert all(any(x <= s.received_s and s.sent_s[-1] <= y for x, y in spans(run)) for s in mine)
        sent[which] = {s.body["messages"][-1]["content"] for s in mine}
    few, many = sorted(sent.values(), key=len)
    assert len(few - many) <= 2  # a user may hold a prompt that no turn was left for
    work = [r.work["s"] for r in found]
    assert len(work[0].keys() & work[1].keys()) >= len(few) - 4


def test_rates_are_of_a_sides_own_turns(tmp_path: Path) -> None:
    with mock_server(Reply(first_s=0.02)) as a, mock_server(Reply(first_s=0.02)) as b:
        found = list(pairs_of(served_by(a, "a"), served_by(b, "b"), params()).run(0, 5, tmp_path / "out"))
    for r in found:
        records, run = read_run(tmp_path / f"out/00-{r.side}")
        own_s = sum(t["end_s"] - t["start_s"] for t in run.stages[0]["turns"] if t["measured"])
        tokens = records.filter(records["phase"] == "measured")["output_tokens"].sum()
        assert r.figures["s", "throughput"] == pytest.approx(tokens / own_s)


class Dying:
    """Ends once it has been asked so often for the profile's answers, as a server's process does."""

    def __init__(self, after: int, error: type[Exception] = ServerEnded) -> None:
        self.server: MockServer | None = None
        self.after, self.error = after, error

    def check(self) -> None:
        assert self.server is not None
        if sum(s.body.get("max_tokens") == TOKENS for s in self.server.seen) > self.after:
            raise self.error("the server of b ended with exit code -9 while it was needed")


@pytest.mark.parametrize("which", ["base", "candidate"])
def test_a_side_that_dies_in_its_turn_is_named_and_the_other_goes_on(
    which: Which, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whatever_the_machine_does = {"void": None}
    monkeypatch.setattr(pairs_module, "round_of", lambda *given: replace(round_of(*given), **whatever_the_machine_does))
    dying = Dying(after=3)
    with mock_server(Reply(first_s=0.02)) as a, mock_server(Reply(first_s=0.02)) as b:
        dying.server = a if which == "base" else b
        base, candidate = (
            served_by(s, name, dying.check if name == which else lambda: None)
            for s, name in ((a, "base"), (b, "candidate"))
        )
        value = compare_builds(base, candidate, params(), 5, tmp_path / "out", Stage("ab", None))
    assert value["broken_off"]["side"] == which
    assert "exit code -9" in value["broken_off"]["why"]
    assert [r["side"] for r in value["rounds"]] == [{"base": "candidate", "candidate": "base"}[which]]
    assert value["rounds"][0]["failed"] == 0
    assert value["rounds"][0]["requests"] > 4
    # The base bore the same traffic to its end; of a base that dies nothing follows for the candidate.
    assert value["verdict"] == ("hold" if which == "candidate" else "undecided")


def test_a_candidate_that_does_not_come_up_beside_a_base_that_has(tmp_path: Path) -> None:
    @contextmanager
    def hangs(log: Path) -> Iterator[Target]:
        raise SeatrialError("the server of b was not ready after 180 s")
        yield

    with mock_server() as a:
        value = compare_builds(
            served_by(a, "a"), replace(side("b"), opened=hangs), params(), 5, tmp_path / "out", Stage("ab", None)
        )
        assert a.seen == []
    assert value["verdict"] == "hold"
    assert value["reason"].startswith("the candidate did not come up, the base did: the server of b was not ready")


def test_once_both_have_fitted_they_boot_at_once(tmp_path: Path) -> None:
    both_boot = threading.Barrier(2)
    boots: Counter[str] = Counter()
    ended: list[str] = []

    def opened_as(which: str, server: MockServer) -> Side:
        @contextmanager
        def opened(log: Path) -> Iterator[Target]:
            boots[which] += 1
            if 1 < boots[which] < 4:
                both_boot.wait(timeout=10)  # which it would not survive alone
            if boots[which] > 2 and which == "candidate":  # at once, and then by itself
                raise SeatrialError("no memory left")
            try:
                yield foreign(server.url, "mock")
            finally:
                ended.append(which)

        return replace(side(which), opened=opened)

    with mock_server(Reply()) as a, mock_server(Reply()) as b:
        pairs = pairs_of(opened_as("base", a), opened_as("candidate", b), params())
        for pair in (0, 1):
            assert {r.side for r in pairs.run(pair, 5, tmp_path / "out")} == {"base", "candidate"}
        with pytest.raises(Broke, match="no memory left") as broke:
            list(pairs.run(2, 5, tmp_path / "out"))
    assert (broke.value.side, broke.value.other_up) == ("candidate", True)
    assert isinstance(broke.value.why, NeverUp)
    assert sorted(ended) == ["base"] * 4 + ["candidate"] * 2


def test_what_is_no_fault_of_a_side_ends_both(tmp_path: Path) -> None:
    dying = Dying(after=3, error=KeyboardInterrupt)  # type: ignore[arg-type]
    with mock_server(Reply(first_s=0.02)) as a, mock_server(Reply(first_s=0.02)) as b:
        dying.server = a
        with pytest.raises(KeyboardInterrupt):
            list(pairs_of(served_by(a, "a", dying.check), served_by(b, "b"), params()).run(0, 5, tmp_path / "out"))
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []
    assert not (tmp_path / "out/00-candidate").exists()


# --- where there are no turns ---


def whole(*order: list[Any]) -> Callable[..., Round]:
    machine = Machine({})

    def run(*arguments: Any) -> Round:
        order[0].append(arguments[1])
        return machine.round(*arguments)

    return run


def test_without_room_for_both_whole_rounds_follow_each_other_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(pairs_module, "available_bytes", lambda: 2 * 1024**3)
    monkeypatch.setattr(pairs_module, "held_bytes", lambda target: 1024**3)
    monkeypatch.setattr(pairs_module, "run_round", whole(order))
    up: list[str] = []

    def a_side(name: str) -> Side:
        @contextmanager
        def opened(log: Path) -> Iterator[Target]:
            up.append(name)
            try:
                with mock_server() as server:
                    yield foreign(server.url, "mock")
            finally:
                up.remove(name)

        return replace(side(name), opened=opened)

    value = compare_builds(
        a_side("a"), a_side("b"), params(budget_minutes=1e-4), 5, tmp_path / "out", Stage("ab", None)
    )
    assert order == ["base", "candidate"]
    assert up == []  # the one that was up to be looked at has ended
    why = "2 servers at once need 3072 MiB, 2048 MiB are available"
    assert value["turns"] == {"turn_s": None, "guard_s": None, "why_not": why}
    assert f"whole rounds one after the other: {why}" in markdown(value)


def test_room_is_what_both_hold_and_a_margin() -> None:
    assert why_no_room([10], 2, 20 + MARGIN_BYTES) is None  # the other is taken for as large
    assert why_no_room([10, 11], 2, 20 + MARGIN_BYTES) is not None
    assert why_no_room([0, 0], 2, MARGIN_BYTES) is None


def test_a_containers_limit_counts_without_what_it_can_drop(tmp_path: Path) -> None:
    for name, text in (("max", "1000"), ("current", "700"), ("stat", "anon 100\ninactive_file 200\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert available_bytes(tmp_path) == 500
    (tmp_path / "memory.max").write_text("max")
    assert available_bytes(tmp_path) > 500


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({"turn_s": None}, {}, "ab.turn_s is null"),
        ({"stage": {"arrivals": {"kind": "poisson", "rate_per_s": 1}}}, {}, "stage s of profile t has open-loop"),
        ({}, {"backend": "cuda"}, "fills the accelerator's memory"),
    ],
)
def test_why_there_are_no_turns_is_said(changes: dict[str, Any], settings: dict[str, Any], words: str) -> None:
    both = [replace(side(name), settings=settings) for name in "ab"]
    found = pairs_of(both[0], both[1], params(**changes))
    assert found.turn_s is None
    assert words in (found.why_not or "")
    assert pairs_of(side("a"), side("b"), params()).turn_s == 0.3


def test_a_record_of_turns_does_not_mix_with_one_of_whole_rounds(tmp_path: Path) -> None:
    machine = Machine({})
    value = compare_builds(
        side("a"), side("a"), AbParams(budget_minutes=10), 7, tmp_path, Stage("ab", None), round_=machine.round,
        clock=machine.clock,
    )  # fmt: skip
    turns = value | {
        "turns": {"turn_s": 1.5, "guard_s": 0.1, "why_not": None},
        "traffic_digest": workload_digest(read_profile("ab"), 0, 1.5),
    }
    assert of(value).policy != of(turns).policy
    assert "both sides in turns of 1.5 s, each to its last answer, 0.1 s between two" in markdown(turns)


def test_a_pause_longer_than_a_turn_is_refused() -> None:
    with pytest.raises(ValidationError, match="guard_s is 2, longer than a turn"):
        AbParams(turn_s=1, guard_s=2)
    assert AbParams(turn_s=None, guard_s=2).turn_s is None


def test_a_broken_pair_says_what_broke() -> None:
    broke = Broke("base", NeverUp("not there"), other_up=True)
    assert (str(broke), broke.side, broke.other_up) == ("not there", "base", True)
