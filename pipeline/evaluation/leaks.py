"""Does a regression set share text with what the build has seen: calibration text, or the solved examples of a prompt?

Texts are compared as words: compatibility forms, case folded, runs of letters and digits. Three ways of sharing are
looked for, each on the question's own text (for a chat the last user turn, for a choice the prompt with its right
ending):

exact            the whole of one, if it has at least ``EXACT_WORDS`` words, stands in the other
n-gram           some ``NGRAM`` words in a row are the same, the length that Brown et al. 2020 (appendix C) use
near-duplicate   passages of like length whose three-word shingles have a Jaccard similarity of ``SIMILAR`` or more;
                 found with MinHash and locality-sensitive hashing (Broder 1997), then computed exactly
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import Item
from pipeline.params import Params

CALIBRATION = Path("pipeline/quantize/calibration")
EXACT_WORDS = 8
NGRAM = 13
SHINGLE = 3
SIMILAR = 0.5
PERMUTATIONS = 128
PASSAGES = (15, 30, 60)  # words; a text is cut into the longest passages that it can fill
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Text:
    """Words and where they come from."""

    where: str
    words: tuple[str, ...]

    @property
    def joined(self) -> str:
        return f" {' '.join(self.words)} "


@dataclass(frozen=True)
class Overlap:
    item: str
    where: str
    shared: str

    def __str__(self) -> str:
        return f"{self.item} and {self.where}: {self.shared}"


def words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def question_of(item: Item) -> str:
    """The text that makes the item this item: no system prompt, no solved examples."""
    if item.messages:
        return next((m.content for m in reversed(item.messages) if m.role == "user"), "")
    text = item.prompt or ""
    if item.choices and isinstance(item.reference, int) and 0 <= item.reference < len(item.choices):
        text += item.choices[item.reference]
    return text


def texts_of(items: Iterable[Item]) -> list[Text]:
    return [Text(item.id, words(question_of(item))) for item in items]


def calibration_texts(params: Params, folder: Path = CALIBRATION) -> list[Text]:
    """Every calibration text that the build could use; empty only if no tier calibrates and the folder has none.

    Raises:
        SeatrialError: a tier names a text that is not there, or a line that is not an object with text or messages.
    """
    paths = sorted(folder.glob("*.jsonl"))
    for tier in params.tiers:
        name = params.recipe_of(tier).get("calibration")
        if name is not None and name not in {p.stem for p in paths}:
            raise SeatrialError(
                f"tier {tier} calibrates on {name!r}, but {folder} has "
                f"{', '.join(p.stem for p in paths) or 'no text'}; "
                "without it no leak can be ruled out. Restore the file or change the tier"
            )
    return [text for path in paths for text in read_texts(path)]


def corpus_texts(path: Path) -> list[Text]:
    """A declared corpus: JSONL as calibration text is, or plain text by its paragraphs.

    Raises:
        SeatrialError: there is no such file, or it is neither.
    """
    if not path.is_file():
        raise SeatrialError(f"{path} of evaluation.corpora not found; without it no leak can be ruled out")
    if path.suffix == ".jsonl":
        return list(read_texts(path))
    if path.suffix != ".txt":
        raise SeatrialError(f"{path} of evaluation.corpora: expected a .jsonl or a .txt file")
    text = path.read_text(encoding="utf-8", errors="replace")
    paragraphs = [(n, words(p)) for n, p in enumerate(re.split(r"\n\s*\n", text), 1)]
    return [Text(f"{path.name}, paragraph {n}", w) for n, w in paragraphs if w]


def read_texts(path: Path) -> Iterator[Text]:
    """The texts of a JSONL file with the key ``text`` or ``messages``.

    Raises:
        SeatrialError: a line that is neither, as file:line.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry: Any = json.loads(line)
            text = entry["text"] if "text" in entry else "\n".join(m["content"] for m in entry["messages"])
            yield Text(f"{path.name}:{number}", words(text))
        except (ValueError, KeyError, TypeError) as e:
            raise SeatrialError(
                f"{path}:{number}: expected a JSON object with `text` or `messages` ({type(e).__name__}: {e}); "
                "mend or remove that line"
            ) from e


def exact(items: Iterable[Text], others: Iterable[Text]) -> list[Overlap]:
    """Items of which the whole stands in another text, or in which the whole of another text stands."""
    seen = [(o, o.joined) for o in others]
    found = []
    for item in items:
        text = item.joined
        for other, joined in seen:
            if len(item.words) >= EXACT_WORDS and text in joined:
                found.append(Overlap(item.where, other.where, "the whole question stands in that text"))
            elif len(other.words) >= EXACT_WORDS and joined in text:
                found.append(Overlap(item.where, other.where, "the whole of that text stands in the question"))
    return found


def ngrams(items: Iterable[Text], others: Iterable[Text], n: int = NGRAM) -> list[Overlap]:
    """Items that share ``n`` words in a row with another text; one overlap per pair."""
    index: dict[tuple[str, ...], str] = {}
    for other in others:
        for gram in _windows(other.words, n, 1):
            index.setdefault(gram, other.where)
    found: dict[tuple[str, str], Overlap] = {}
    for item in items:
        for gram in _windows(item.words, n, 1):
            where = index.get(gram)
            if where is not None:
                found.setdefault((item.where, where), Overlap(item.where, where, f'"{" ".join(gram)}"'))
    return list(found.values())


def near_duplicates(items: Iterable[Text], others: Iterable[Text], threshold: float = SIMILAR) -> list[Overlap]:
    """Items with a passage that is nearly one of another text; one overlap per pair, its most similar passage."""
    passages: dict[tuple[int, str], tuple[Text, frozenset[str]]] = {}
    indexes = {size: index_of(threshold) for size in PASSAGES}
    for o, other in enumerate(others):
        for size in PASSAGES:
            for n, passage in enumerate(_windows(other.words, size, size // 3)):
                key = (size, f"{o}#{n}")
                passages[key] = (other, shingles(passage))
                indexes[size].insert(key, minhash(passages[key][1]))
    best: dict[tuple[str, str], float] = {}
    looked: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for item in items:
        size = max((s for s in PASSAGES if s <= len(item.words)), default=PASSAGES[0])
        for passage in _windows(item.words, size, size // 3) or [item.words]:
            if passage not in looked:
                mine = shingles(passage)
                looked[passage] = [
                    (passages[key][0].where, alike)
                    for key in (indexes[size].query(minhash(mine)) if mine else [])
                    if (alike := jaccard(mine, passages[key][1])) >= threshold
                ]
            for where, alike in looked[passage]:
                best[item.where, where] = max(alike, best.get((item.where, where), 0.0))
    return [Overlap(item, where, f"passages {alike:.0%} alike") for (item, where), alike in best.items()]


def shingles(passage: tuple[str, ...]) -> frozenset[str]:
    return frozenset(" ".join(s) for s in _windows(passage, SHINGLE, 1))


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a or b else 0.0


def _windows(values: tuple[str, ...], size: int, stride: int) -> list[tuple[str, ...]]:
    """Runs of ``size`` values at multiples of ``stride``, and the last one, so that no end is left out."""
    last = len(values) - size
    if last < 0:
        return []
    starts = [*range(0, last, stride), last]
    return [values[i : i + size] for i in starts]


@cache
def _bands(threshold: float, permutations: int) -> tuple[int, int]:
    """Bands and rows of an index. Found once: the library integrates numerically for it, for each index anew."""
    from datasketch import MinHashLSH

    made = MinHashLSH(threshold=threshold, num_perm=permutations)
    return made.b, made.r


def index_of(threshold: float, permutations: int = PERMUTATIONS) -> Any:
    """An empty index of sketches, asked for those that are likely as similar as ``threshold``."""
    from datasketch import MinHashLSH

    return MinHashLSH(num_perm=permutations, params=_bands(threshold, permutations))


@cache
def _empty_minhash(permutations: int) -> Any:
    """Made once and copied: to draw the permutations costs as much as to hash a passage."""
    from datasketch import MinHash

    return MinHash(num_perm=permutations, seed=1)


def minhash(of: frozenset[str], permutations: int = PERMUTATIONS) -> Any:
    """The sketch of a set of texts (Broder 1997); the same set has the same sketch on every machine."""
    m = _empty_minhash(permutations).copy()
    m.update_batch([s.encode() for s in sorted(of)])
    return m
