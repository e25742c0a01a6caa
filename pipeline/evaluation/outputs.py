"""The own-output ledger: fingerprints of what evaluated models wrote, so that no reference turns out to be one of them.

A regression set whose references were taken over from a model measures how like that model the next one is. The
evaluation therefore leaves one line a generation in an append-only file, and the health check compares references
with it. A line holds no text: a digest of the question's words, a MinHash of the answer's words, when, by which
artifact, and a digest of the item's reference at that time.

A reference is an own output if it has ``MIN_WORDS`` words or more, a generation to the same question is ``ALIKE`` it
(words and pairs of neighbours, so light rewording does not hide it), and that generation is older than the reference:
no earlier or equal line of the question shows today's reference. An item that a model simply answers right is older
than its answers, and stays.

The file grows by evaluation and is read at the check, outside the graph's outputs. ``.seatrial/outputs.jsonl`` is this
machine's; those below ``evalsets/outputs/`` are read too, so that a team can commit what its machines saw.
"""

from __future__ import annotations

import base64
import fcntl
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import SeatrialError
from pipeline.evaluation import leaks
from pipeline.evaluation.duplicates import features
from pipeline.evaluation.items import EVALSETS, Item
from pipeline.provenance import digest_of, utc_now

LEDGER = Path(".seatrial/outputs.jsonl")
COMMITTED = EVALSETS / "outputs"
MIN_WORDS = 20
ALIKE = 0.5
PERMUTATIONS = 64
SCHEMA_VERSION = 1


class _Reply(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def choice_logprobs(self) -> Sequence[object] | None: ...


class Answered(Protocol):
    """An item and the reply to it, if there was one: what is read here of an evaluation, which the check of a set does
    not import, so that it need not run again when serving changes.
    """

    @property
    def item(self) -> Item: ...
    @property
    def reply(self) -> _Reply | None: ...


@dataclass(frozen=True)
class Fingerprint:
    """One generation. ``sketch`` is a MinHash of the answer's words and pairs of neighbours."""

    question: str
    sketch: tuple[int, ...]
    reference: str
    artifact: str
    at: str

    def line(self) -> str:
        import numpy as np

        sketch = base64.b64encode(np.array(self.sketch, dtype="<u4").tobytes()).decode()
        row = {"schema_version": SCHEMA_VERSION, "question": self.question, "sketch": sketch,
               "reference": self.reference, "artifact": self.artifact, "at": self.at}  # fmt: skip
        return json.dumps(row, sort_keys=True) + "\n"

    def alike(self, sketch: tuple[int, ...]) -> float:
        """Estimate of the Jaccard similarity, with a standard error of about 0.06."""
        return sum(a == b for a, b in zip(self.sketch, sketch, strict=True)) / len(sketch)


def question_digest(item: Item) -> str:
    return digest_of(leaks.words(leaks.question_of(item)))[:32]


def reference_texts(item: Item) -> list[str]:
    """References that are texts; an index or a number is nobody's wording."""
    values = item.reference if isinstance(item.reference, list) else [item.reference]
    return [v for v in values if isinstance(v, str)]


def sketch_of(text: str) -> tuple[int, ...]:
    return tuple(int(v) for v in leaks.minhash(features(leaks.words(text)), PERMUTATIONS).hashvalues)


def _reference_digest(item: Item) -> str:
    return digest_of(item.reference)[:32]


def fingerprint(item: Item, answer: str, artifact: str, at: str) -> Fingerprint | None:
    """None for an answer that is too short to be like a reference that counts."""
    if len(leaks.words(answer)) < MIN_WORDS * ALIKE:
        return None
    return Fingerprint(question_digest(item), sketch_of(answer), _reference_digest(item), artifact, at)


def of_answers(answered: Iterable[Answered], artifact: str) -> Iterator[Fingerprint]:
    """One of each answer that was written and is long enough; ``artifact`` says by whom."""
    at = utc_now()
    for a in answered:
        if a.reply and not a.reply.choice_logprobs and (made := fingerprint(a.item, a.reply.text, artifact, at)):
            yield made


def remember(prints: Iterable[Fingerprint], ledger: Path = LEDGER) -> int:
    """Appends what the ledger does not have yet, under a lock; the number of new lines.

    The same answer of the same artifact to the same question with the same reference is one line, however often it is
    evaluated: the first one says when.
    """
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with ledger.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        if text and not text.endswith("\n"):  # torn by a kill: what follows must not continue it
            file.write("\n")
        known = {_identity(p) for p in _parsed(text, ledger, torn=True)}
        new = []
        for p in prints:
            if _identity(p) not in known:
                known.add(_identity(p))
                new.append(p)
        file.write("".join(p.line() for p in new))
    return len(new)


def _identity(p: Fingerprint) -> tuple[Any, ...]:
    return p.question, p.sketch, p.reference, p.artifact


def read(paths: Iterable[Path]) -> list[Fingerprint]:
    """
    Raises:
        SeatrialError: a line that is none, as file:line.
    """
    return [p for path in paths for p in _parsed(path.read_text(encoding="utf-8"), path, torn=path == LEDGER)]


def ledgers() -> list[Path]:
    """This machine's ledger and the committed ones, as far as there are any."""
    return [p for p in (LEDGER, *sorted(COMMITTED.glob("*.jsonl"))) if p.is_file()]


def _parsed(text: str, path: Path, *, torn: bool) -> Iterator[Fingerprint]:
    """``torn``: a line that a kill cut short is passed over, since the file is only ever appended to."""
    import numpy as np

    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            sketch = np.frombuffer(base64.b64decode(row["sketch"], validate=True), dtype="<u4")
            if row["schema_version"] != SCHEMA_VERSION or len(sketch) != PERMUTATIONS:
                raise ValueError(f"schema {row['schema_version']}, {len(sketch)} values")
            values = tuple(int(v) for v in sketch)
            yield Fingerprint(row["question"], values, row["reference"], row["artifact"], row["at"])
        except (ValueError, KeyError, TypeError) as e:
            if not torn:
                raise SeatrialError(f"{path}:{number}: not a fingerprint ({e}); restore the file") from e


def own_outputs(items: Sequence[Item], known: Sequence[Fingerprint]) -> list[str]:
    """References that were added after a matching generation to the same question."""
    by_question: dict[str, list[Fingerprint]] = defaultdict(list)
    for p in known:
        by_question[p.question].append(p)
    found = []
    for item in items:
        lines = by_question.get(question_digest(item), [])
        texts = [t for t in reference_texts(item) if len(leaks.words(t)) >= MIN_WORDS]
        if not lines or not texts:
            continue
        now = _reference_digest(item)
        since = min((p.at for p in lines if p.reference == now), default=None)
        for text in texts:
            sketch = sketch_of(text)
            earlier = [p for p in lines if p.reference != now and (since is None or p.at < since)]
            best = max(earlier, key=lambda p: p.alike(sketch), default=None)
            if best is not None and (alike := best.alike(sketch)) >= ALIKE:
                found.append(
                    f"{item.id} and the generation of {best.artifact} at {best.at}: the reference is {alike:.0%} like "
                    "it and is younger"
                )
    return found
