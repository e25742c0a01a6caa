"""The weekly rotation of production requests: this week's sample comes in, the oldest week goes out.

In order: drop what the log says was asked in another week; scrub personal data; drop what still has some afterwards, or
lost too much of its text to placeholders; drop what is too short or too long to judge; drop what repeats an item of the
set or an earlier request; then take ``items_per_week`` of the rest, as evenly over scenario and length as the log
allows. The draw depends on week, seed and log alone.

A log has no right answers, so production items are for people to judge (``people.rubric``): they are in no accuracy,
their answers are compared by ``seatrial review``. The answers that the log holds go into the own-output ledger, so
that none of them becomes a reference later.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import SeatrialError
from pipeline.evaluation import leaks, outputs, personal
from pipeline.evaluation.duplicates import ALIKE, PERMUTATIONS, features
from pipeline.evaluation.graders import people
from pipeline.evaluation.health import ROTATION, week_index
from pipeline.evaluation.items import Evalset, Grader, Item, Message, is_week, load_evalset, to_line
from pipeline.evaluation.requests import Logged
from pipeline.evaluation.versions import next_version, record
from pipeline.files import atomic_write
from pipeline.provenance import utc_now

MIN_WORDS, MAX_CHARACTERS = 4, 8000
MAX_TOKENS = 128
MAX_PLACEHOLDER_SHARE = 0.2
LENGTHS = (15, 60, 250)  # words: short, medium, long, very long
_PLACEHOLDER = re.compile(r"\[(?:" + "|".join(k.upper() for k in {**personal.HARD, **personal.SOFT}) + r")\]")


@dataclass
class Rotated:
    """What a rotation did."""

    week: str
    version: str
    taken: list[Item]
    dropped: Counter[str] = field(default_factory=Counter)
    retired: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        said = [f"{n} dropped: {why}" for why, n in self.dropped.most_common()]
        strata = Counter(i.source for i in self.taken)
        return [
            *said,
            f"{len(self.taken)} in for {self.week}: {', '.join(f'{s} {n}' for s, n in sorted(strata.items()))}",
            f"{len(self.retired)} weeks out{': ' if self.retired else ''}{', '.join(self.retired)}",
            f"version {self.version}",
        ]


def file_of(folder: Path, week: str) -> Path:
    return folder / "items" / f"production-{week}.jsonl"


def stratum(request: Logged) -> str:
    """Scenario and class of length; also the cluster of the item in statistics."""
    n = len(leaks.words(request.text))
    return f"{request.scenario}.{('short', 'medium', 'long', 'very-long')[sum(n > limit for limit in LENGTHS)]}"


def cleaned(requests: Iterable[Logged], dropped: Counter[str]) -> list[Logged]:
    """Scrubbed requests; what cannot be scrubbed or judged is counted and left out."""
    kept = []
    for r in requests:
        scrubbed = Logged(
            r.where,
            tuple((role, personal.scrub(text)) for role, text in r.turns),
            re.sub(r"[^a-z0-9_]+", "_", r.scenario.lower()).strip("_") or "requests",
            min(r.max_tokens, MAX_TOKENS),
            r.response,
        )
        words = max(1, len(leaks.words(scrubbed.text)))
        if personal.find(scrubbed.text, soft=True):
            dropped["personal data that could not be scrubbed"] += 1
        elif len(_PLACEHOLDER.findall(scrubbed.text)) / words > MAX_PLACEHOLDER_SHARE:
            dropped["little left but placeholders"] += 1
        elif words < MIN_WORDS or len(scrubbed.text) > MAX_CHARACTERS:
            dropped[f"shorter than {MIN_WORDS} words or longer than {MAX_CHARACTERS} characters"] += 1
        else:
            kept.append(scrubbed)
    return kept


def of_week(requests: Iterable[Logged], week: str, dropped: Counter[str]) -> list[Logged]:
    """What was asked in that week, or at a time that the log does not tell."""
    kept, others = [], 0
    for r in requests:
        if r.week in (None, week):
            kept.append(r)
        else:
            others += 1
    if others:
        dropped["asked in another week"] += others
    return kept


def unlike(requests: Sequence[Logged], items: Iterable[Item], dropped: Counter[str]) -> list[Logged]:
    """Requests that repeat neither an item nor an earlier request of the log, word for word or nearly."""
    index = leaks.index_of(ALIKE, PERMUTATIONS)
    known: dict[str, frozenset[str]] = {}

    def near(words: tuple[str, ...]) -> bool:
        """Whether there is one like it; if not, it is one from now on."""
        mine = features(words)
        sketch = leaks.minhash(mine, PERMUTATIONS)
        if any(leaks.jaccard(mine, known[k]) >= ALIKE for k in index.query(sketch)):
            return True
        key = str(len(known))
        known[key] = mine
        index.insert(key, sketch)
        return False

    for item in items:
        near(leaks.words(leaks.question_of(item)))
    kept = [r for r in requests if not near(leaks.words(r.turns[-1][1]))]
    if len(kept) < len(requests):
        dropped["near-duplicate of an item or of another request"] += len(requests) - len(kept)
    return kept


def drawn(requests: Sequence[Logged], n: int, rng: random.Random) -> list[Logged]:
    """``n`` requests, one from each stratum in turn, so that no large one crowds out a small one."""
    strata: dict[str, list[Logged]] = defaultdict(list)
    for r in requests:
        strata[stratum(r)].append(r)
    for name in sorted(strata):
        rng.shuffle(strata[name])
    taken: list[Logged] = []
    while len(taken) < n and any(strata.values()):
        for name in sorted(s for s in strata if strata[s]):
            if len(taken) < n:
                taken.append(strata[name].pop())
    return taken


def _item(r: Logged, number: int, week: str) -> Item:
    return Item(
        id=f"production-{week.lower()}-{number:02d}",
        scenario="production",
        kind="chat",
        origin="production",
        week=week,
        source=f"production.{stratum(r)}",
        messages=[Message.model_validate({"role": role, "content": text}) for role, text in r.turns],
        grader=Grader(name=people.NAME),
        max_tokens=r.max_tokens,
    )


def rotate(folder: Path, week: str, requests: Sequence[Logged], seed: int = 0) -> Rotated:
    """Writes the week's file, retires weeks beyond the plan, and records a minor version.

    Raises:
        SeatrialError: the set plans no rotation, the week is not after the last one, or too few requests are left.
    """
    evalset = load_evalset(folder)
    plan = evalset.manifest.rotation
    if plan is None:
        raise SeatrialError(
            f"{folder / 'manifest.yaml'} has no `rotation`; say there how many requests a week it takes"
        )
    earlier = _weeks(evalset)
    if not is_week(week) or (earlier and week_index(week) <= week_index(earlier[-1])):
        raise SeatrialError(f"--week is {week}; expected an ISO week after {earlier[-1] if earlier else '(none yet)'}")
    result = Rotated(week, next_version(evalset.manifest.version, "minor"), [])
    kept = of_week(requests, week, result.dropped)
    kept = unlike(cleaned(kept, result.dropped), evalset.items, result.dropped)
    if len(kept) < plan.items_per_week:
        raise SeatrialError(
            f"{len(kept)} of {len(requests)} requests are left and {plan.items_per_week} are needed "
            f"({'; '.join(f'{n} {why}' for why, n in result.dropped.items()) or 'none was dropped'}); give a longer log"
        )
    chosen = drawn(kept, plan.items_per_week, random.Random(f"{week}/{seed}"))
    result.taken = [_item(r, n, week) for n, r in enumerate(chosen, 1)]
    result.retired = [w for w in earlier if week_index(week) - week_index(w) >= plan.weeks_kept]
    _remember(result.taken, chosen)
    atomic_write(file_of(folder, week), "".join(map(to_line, result.taken)))
    for old in result.retired:
        file_of(folder, old).unlink()
    gone = f", {', '.join(result.retired)} retired" if result.retired else ""
    record(folder, result.version, week, f"{ROTATION} {len(chosen)} production requests of {week}{gone}")
    return result


def _weeks(evalset: Evalset) -> list[str]:
    return sorted({i.week for i in evalset.items if i.origin == "production"}, key=week_index)


def _remember(items: Sequence[Item], requests: Sequence[Logged]) -> None:
    """The logged answers are a model's."""
    prints = [
        outputs.fingerprint(item, r.response, "request log", utc_now())
        for item, r in zip(items, requests, strict=True)
        if r.response
    ]
    outputs.remember(p for p in prints if p)
