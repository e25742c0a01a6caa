"""Personal data and secrets by pattern: finding them, and putting ``[KIND]`` in their place.

Two groups. What identifies by its form alone (``HARD``: mail, phone, cards, accounts, ids, secrets) has no place in
any item. Names and postal addresses (``SOFT``) stand in every invented story as well, so they are looked for in
production requests and imported text. A name is found by its frame ("my name is", "Mr", a signature), not by a list.

``tests/pipeline/evaluation/personal_cases.py`` is the recall set; whoever adds a kind adds its cases there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


def luhn(digits: str) -> bool:
    """The check digit of card numbers (ISO/IEC 7812-1, annex B)."""
    total = 0
    for i, d in enumerate(map(int, reversed(digits))):
        total += d if i % 2 == 0 else sum(divmod(2 * d, 10))
    return total % 10 == 0


def iban(text: str) -> bool:
    """The check digits of bank accounts (ISO 13616, by ISO/IEC 7064 mod 97-10)."""
    plain = re.sub(r"\s", "", text).upper()
    return int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _is_phone(text: str) -> bool:
    """Nine digits or more; not a run of years or of equal groups, as number series are, and not a dotted quad."""
    groups = re.findall(r"\d+", text)
    if len(groups) == 4 and text.count(".") == 3 and all(int(g) <= 255 for g in groups):
        return False  # a network address, possibly a private one or with zeroes in front
    series = len(groups) > 2 and not text.startswith(("+", "(", "0")) and len({len(g) for g in groups}) == 1
    return 9 <= len(_digits(text)) <= 15 and not series


def _is_secret(text: str) -> bool:
    """A value with letters and digits mixed, as keys have and words do not."""
    value = re.split(r"[\s:=\"'`]+", text)[-1]
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


@dataclass(frozen=True)
class Kind:
    """``really`` confirms a match, where the pattern alone is too wide."""

    pattern: re.Pattern[str]
    really: Callable[[str], bool] = lambda _: True


_NAME = r"[A-ZÀ-ÖØ-Þ][\w'’-]*[a-zß-ÿ]"
_STREET = (
    r"(?:Street|St|Road|Rd|Avenue|Ave|Lane|Ln|Drive|Dr|Boulevard|Blvd|Court|Ct|Square|Terrace|Close|Crescent|Parkway|"
    r"Pkwy|Highway|Hwy|Alley|Way|Place|Row)"
)
# In the order in which a text is searched: what one kind took, a later one does not see.
HARD: dict[str, Kind] = {
    "secret": Kind(re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
        r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
        r"|\b(?:ghp|gho|ghs|ghu|github_pat|glpat|xox[abprs]|hf|npm|pypi)[_-][A-Za-z0-9_-]{16,}"
        r"|\b[srp]k[_-](?:live|test|proj|ant)?[_-]?[A-Za-z0-9_-]{16,}"
        r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"
        r"|\bAIza[\w-]{30,}"
        r"|(?<=://)[\w.-]+:[^\s:@/]{4,}(?=@)"
    )),
    "credential": Kind(re.compile(
        r"\b(?:password|passwd|passwort|pwd|passcode|api[ _-]?key|secret(?:[ _-]?key)?|(?:access|auth)[ _-]?token|"
        r"token|bearer)[\"'`]?\s*(?:is\b|[:=]|\s)\s*[\"'`]?[^\s\"'`,;]{6,}", re.IGNORECASE), _is_secret),
    "email": Kind(re.compile(
        r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}"
        r"|\b[\w.+-]+\s?[\[(]at[\])]\s?[\w-]+(?:\s?(?:\.|[\[(]dot[\])])\s?[\w-]+)+", re.IGNORECASE)),
    "account": Kind(re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), iban),
    "id": Kind(re.compile(
        r"\b(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}\b"
        r"|\b[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]\b"
        r"|(?i:\b(?:passport|driver'?s licen[cs]e|licen[cs]e plate|national id|identity card|id card|tax id|social "
        r"security|ssn|nhs|insurance)\s*(?:number|no\.?|nr\.?|#)?\s*(?:is|:)?\s*)"
        r"(?=(?:[A-Z -]*\d){4})[A-Z0-9][A-Z0-9 -]{5,17}\b"
    )),
    "card": Kind(re.compile(r"(?<![\d.])(?=[2-6])\d(?:[ -]?\d){12,18}(?![\d.]\d)"), lambda m: luhn(_digits(m))),
    "network": Kind(re.compile(
        r"(?<!ersion )(?<![\w.])(?!(?:10|127|0|255)\.|192\.168\.|169\.254\.|172\.(?:1[6-9]|2\d|3[01])\.)"
        r"(?:0{0,2}(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}0{0,2}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b(?!\.\d)"
        r"|\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b")),
    "phone": Kind(re.compile(
        r"(?<![\w.$€£/-])(?:\+\d{8,15}|(?:\+\d{1,3}[ ./-]?)?(?:\(\d{1,5}\)|\d{2,5})(?:[ ./-]{1,2}\d{2,5}){2,4})"
        r"(?![\w/]|[.-]\d)"
        r"|(?<![\w.$€£/-])(?:0\d{9,11}|(?:\+|00)\d{1,3}(?:[ ./-]\d{1,5}){3,6})(?![\w/]|[.-]\d)"
    ), _is_phone),
}  # fmt: skip
SOFT: dict[str, Kind] = {
    "address": Kind(re.compile(
        rf"\b\d{{1,5}}[a-z]? (?:{_NAME} ){{1,3}}{_STREET}\b\.?(?:,? (?:Apt|Flat|Unit|Suite)\.? ?\w+)?"
        r"|\b[A-ZÄÖÜ][\wäöüß-]+(?:straße|strasse|str\.|gasse|platz|weg|allee) \d{1,4}[a-z]?\b"
        r"|\b\d{1,4}(?:,| bis,?)? (?:rue|avenue|boulevard|place|chemin) [\w'’ -]{3,30}"
        r"|\b(?:P\.? ?O\.? Box|Postfach) \d{1,6}\b"
        r"|\b[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2}\b")),
    "name": Kind(re.compile(
        rf"\b(?:Mr|Mrs|Ms|Miss|Mx|Dr|Prof|Herr|Frau|Sir|Madam|Mme|Señora?)\.? (?:{_NAME}|[A-Z]\.)(?: {_NAME})?"
        rf"|(?i:\b(?:my (?:full )?name is|my name's|i am called|this is|i'm|i am|ich bin|ich heiße|je m'appelle|"
        rf"signed,?|name\s*[:=]|customer\s*[:=]|patient\s*[:=]|contact\s*[:=])) {_NAME}(?: [A-Z]\.)? {_NAME}"
        rf"|(?i:\b(?:my (?:full )?name is|my name's|i am called|ich heiße|je m'appelle)) {_NAME}"
        rf"|(?i:\b(?:dear|hi|hello|regards|cheers|sincerely|thanks|yours)),?\s+{_NAME}(?:[ ]{_NAME})?(?=\s*(?:,|$))",
        re.MULTILINE)),
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    kind: str
    text: str

    def __str__(self) -> str:
        """Never the whole of it: a report is read by more people than the item."""
        return f"{self.kind} {self.text[:4]}... ({len(self.text)} characters)"


def find(text: str, *, soft: bool = False) -> list[Found]:
    """What looks like personal data; with ``soft`` names and addresses too."""
    found: list[Found] = []
    _replace(text, soft, found)
    return found


def scrub(text: str, *, soft: bool = True) -> str:
    """The text with ``[KIND]`` in the place of each finding."""
    return _replace(text, soft, [])


def _replace(text: str, soft: bool, found: list[Found]) -> str:
    for name, kind in {**HARD, **(SOFT if soft else {})}.items():

        def put(m: re.Match[str], name: str = name, kind: Kind = kind) -> str:
            if not kind.really(m[0]):
                return m[0]
            found.append(Found(name, m[0]))
            return f"[{name.upper()}]"

        text = kind.pattern.sub(put, text)
    return text


def texts_in(value: Any) -> Iterable[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from texts_in(v)
    elif isinstance(value, list):
        for v in value:
            yield from texts_in(v)
