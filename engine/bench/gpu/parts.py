"""The parts of a run, in the order of what one would miss most if the time ran out."""

from __future__ import annotations

import _thread
import math
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.artifact import ArtifactError
from engine.bench.gpu import kernels, same, whole
from engine.bench.gpu.clock import Ceilings
from engine.bench.gpu.models import SHAPES, weight_bytes
from engine.bench.gpu.session import Session, vocab_of

GREEDY_TOKENS, TOY_GREEDY_TOKENS = 48, 4
HEADROOM = 1.6  # of the weights' bytes, that must be free for a model and what it works with
ENDED = {"done", "failed", "skipped"}  # statuses that another run would not better


class OutOfTime(BaseException):
    """The budget is spent: what the part has so far counts. No error that a library may take for one of its own."""


class Skip(Exception):
    """A part that cannot be had here: the message is the reason."""


@dataclass
class Run:
    """What parts share: the session, the clock's end, and what earlier parts found."""

    session: Session
    ends_at: float  # of ``now``
    now: Callable[[], float] = time.monotonic
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    ceilings: Ceilings | None = None
    in_a_part: bool = False

    @property
    def left_s(self) -> float:
        return self.ends_at - self.now()

    def check(self) -> None:
        if self.left_s <= 0:
            raise OutOfTime

    @contextmanager
    def ended_in_time(self) -> Iterator[None]:
        """In this block a part that is still at work when the budget is spent gets OutOfTime, wherever it is: one
        product or compilation may take long. For the main thread."""

        def spent(number: int, frame: object) -> None:
            if self.in_a_part:
                raise OutOfTime

        before = signal.signal(signal.SIGUSR1, spent)
        timer = threading.Timer(max(0.0, self.left_s), _thread.interrupt_main, [signal.SIGUSR1])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            signal.signal(signal.SIGUSR1, before)

    def limits(self) -> Ceilings:
        if self.ceilings is None:
            self.ceilings = self.session.clock.ceilings()
        return self.ceilings

    def shape(self, name: str) -> str:
        return "toy" if self.session.toy else name

    def room_for(self, shape: str) -> None:
        """
        Raises:
            Skip: the device has too little memory for a model of this shape.
        """
        memory = self.session.own.memory
        need = int(HEADROOM * weight_bytes(SHAPES[shape], "bf16"))
        if memory is not None and memory.grant(2**62) < need:
            raise Skip(f"{need} bytes are needed for {shape}, {memory.grant(2**62)} are free")


Part = Callable[[Run], Iterator[dict[str, Any]]]  # yields all that it has, again and again


def ceilings(run: Run) -> Iterator[dict[str, Any]]:
    yield asdict(run.limits())


def kernel_shares(shape: str, kinds: list[str]) -> Part:
    def part(run: Run) -> Iterator[dict[str, Any]]:
        session = run.session
        cases = kernels.Cases(session.kernels(), session.own.device, run.shape(shape), session.toy)
        rows: list[kernels.Row] = []
        chosen = [getattr(kernels.Cases, kind) for kind in kinds]
        for row in kernels.measure(cases, chosen, session.clock, run.limits()):
            rows.append(row)
            yield kernels.summary(rows, cases.prompt)
            run.check()

    return part


def greedy(run: Run) -> Iterator[dict[str, Any]]:
    session = run.session
    artifact = session.needed()
    device, host = session.core(session.real()), session.on_host(artifact)
    run.check()
    prompts = same.prompts_of(artifact, vocab_of(artifact))
    tokens = GREEDY_TOKENS
    if session.toy:
        prompts, tokens = [p[:8] for p in prompts[:3]], TOY_GREEDY_TOKENS
    yield same.greedy(device, host, prompts, tokens)


def draws(run: Run) -> Iterator[dict[str, Any]]:
    session = run.session
    vocab = int(SHAPES[run.shape("8B")]["vocab_size"])
    yield same.draws(session.kernels(), session.own.device, vocab, session.toy)


def invariance(run: Run) -> Iterator[dict[str, Any]]:
    """Of the artifact; where there is none, of random weights in its shape."""
    session = run.session
    runner = session.random(run.shape("135M"), "bf16") if session.artifact is None else session.real()
    yield {"weights": "random" if session.artifact is None else "real", **same.invariance(runner, session.toy)}


def steps(shape: str, scheme: str) -> Part:
    def part(run: Run) -> Iterator[dict[str, Any]]:
        session, name = run.session, run.shape(shape)
        run.room_for(name)
        runner = session.random(name, scheme)
        about = {"scheme": scheme, "derived": runner.derived, "memory": runner.memory()}
        yield about
        run.check()
        about["decode"] = whole.decode(session.core(runner), session.clock, run.limits())
        yield about
        run.check()
        about["prefill"] = whole.prefill(runner, session.clock, run.limits())
        yield about

    return part


def beside(shape: str | None, workload: str) -> Part:
    """``shape`` None: the artifact."""

    def part(run: Run) -> Iterator[dict[str, Any]]:
        session = run.session
        name = None if shape is None else run.shape(shape)
        if name is not None:
            run.room_for(name)
        runner = session.real() if name is None else session.random(name, "bf16")
        jobs = whole.batch_of(runner.vocab_size, workload, session.toy)
        core, theirs = session.core(runner), session.transformers(name)
        for found in whole.side_by_side(core, theirs, jobs):
            yield found
            run.check()

    return part


PARTS: dict[str, Part] = {
    "ceilings": ceilings,
    "invariance": invariance,
    "greedy": greedy,
    "draws": draws,
    "kernels 8B decode": kernel_shares("8B", ["products", "attention"]),
    "steps 8B bf16": steps("8B", "bf16"),
    "C64 135M": beside(None, "C64"),
    "steps 8B w4a16": steps("8B", "w4a16"),
    "C64 8B": beside("8B", "C64"),
    "steps 8B w8a8": steps("8B", "w8a8"),
    "C64 1B": beside("1B", "C64"),
    "steps 1B bf16": steps("1B", "bf16"),
    "kernels 8B others": kernel_shares("8B", ["others"]),
    "kernels 1B": kernel_shares("1B", ["products", "attention"]),
    "kernels 135M": kernel_shares("135M", ["attention", "others"]),
    "steps 8B fp8": steps("8B", "fp8"),
}


def left_of(chosen: list[str], found: dict[str, dict[str, Any]]) -> list[str]:
    """Those that an earlier run did not come to the end of."""
    return [name for name in chosen if name not in found or found[name]["status"] not in ENDED]


def run_all(run: Run, chosen: list[str], write: Callable[[dict[str, Any]], None], say: Callable[[str], None]) -> bool:
    """Each part by itself; ``write`` after each, and within one whenever it has more. False: a part has left the device
    unusable for this process, and the parts behind it are still to be run."""
    for name in chosen:
        began = run.now()
        entry: dict[str, Any] = {"status": "begun", "result": None}
        try:
            run.check()
            run.in_a_part = True
            try:
                for result in PARTS[name](run):
                    entry["result"] = finite(result)
                    run.found[name] = entry
                    write(run.found)
            finally:
                run.in_a_part = False
            entry["status"] = "done"
        except OutOfTime:
            entry["status"] = "cut short" if entry["result"] is not None else "out of time"
        except (Skip, ArtifactError) as e:
            entry |= {"status": "skipped", "error": str(e)}
        except Exception as e:  # whatever one part does, the next one may work: the reader gets the reason
            entry |= {
                "status": "failed",
                "error": f"{type(e).__name__}: {e}"[:2000],
                "where": traceback.format_exc()[-2000:],
            }
        entry["seconds"] = round(run.now() - began, 3)
        if entry["status"] != "out of time" or name not in run.found:  # an earlier run may have begun it
            run.found[name] = entry
        run.session.free()
        say(
            f"{name}: {entry['status']} after {entry['seconds']:.1f} s"
            + (f": {entry['error']}" if "error" in entry else "")
        )
        write(run.found)
        if entry["status"] == "failed" and not run.session.usable():
            return False
    return True


def finite(value: Any) -> Any:
    """JSON has no NaN: null in its place."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
