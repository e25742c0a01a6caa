"""What is about to be sent, made before it is due: a prompt that is written when its time has come is late."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadtests.traffic import Prompt


@dataclass(frozen=True, slots=True)
class Visit:
    """One arrival: a request, or the turns of a session. ``body`` is the first turn's, ready to be sent."""

    arrival: int
    due_s: float | None  # seconds since the stage began; None: when a user is free
    turns: tuple[Prompt, ...]
    body: bytes


class Ahead:
    """Visits in order, ``depth`` of them made ahead by a thread of its own. ``take`` may be called from any thread."""

    def __init__(
        self, arrivals: Iterator[tuple[int, float | None]], make: Callable[[int, float | None], Visit], depth: int
    ) -> None:
        self._arrivals, self._make, self._depth = arrivals, make, depth
        self._made: deque[Visit] = deque()
        self._changed = threading.Condition()
        self._closed = self._ended = False
        self._failure: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            for number, due_s in self._arrivals:
                visit = self._make(number, due_s)
                with self._changed:
                    self._changed.wait_for(lambda: len(self._made) < self._depth or self._closed)
                    if self._closed:
                        return
                    self._made.append(visit)
                    self._changed.notify_all()
                time.sleep(0)  # under Locust: let those go first whose reads are waiting
        except BaseException as e:
            self._failure = e  # told to whoever takes the next one
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def fill(self) -> None:
        """Waits until ``depth`` visits, or all that there are, are made."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._made) >= self._depth or self._ended or self._closed)

    def take(self) -> Visit | None:
        """The next one; None: there is none any more.

        Raises:
            RuntimeError: it could not be made.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._made or self._ended or self._closed)
            if self._failure is not None:
                raise RuntimeError("the traffic could not be made") from self._failure
            if not self._made or self._closed:
                return None
            self._changed.notify_all()
            return self._made.popleft()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
