"""``long_documents``: one fact out of a document of some 500 to 750 tokens, near its start, its middle or its end.

Two thirds of the questions ask for a notice, a fact that stands alone; the others for one of many facts that are alike.

The questions about a document stand next to each other and after the text, so that the document is read once where the
server shares prefixes. The item's id says where the fact stands. All questions about one document are one cluster.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pipeline.evaluation.authoring.banks.documents import FAMILIES
from pipeline.evaluation.authoring.draft import Draft, Scenario, chat, spread

SYSTEM = "Answer with the shortest phrase from the text. Do not explain."
ASK = "{document}\n\nQuestion: {question}"
SHOTS = [
    (
        ASK.format(document="The ferry leaves from pier 4 at noon.", question="From which pier does the ferry leave?"),
        "pier 4",
    ),
    (
        ASK.format(document="The studio is closed in July. The porter keeps the keys.", question="Who keeps the keys?"),
        "the porter",
    ),
]
ENTRIES = 9
POSITIONS = {"early": 1, "middle": 4, "late": 7}
MAX_TOKENS = 40


@dataclass(frozen=True)
class Document:
    text: str
    facts: list[dict[str, tuple[str, str]]]  # per entry: attribute -> (question, answer)
    notices: dict[str, tuple[str, str]]  # position -> (question, answer)


def compose(rng: random.Random, family: str) -> Document:
    """A document of ``ENTRIES`` entries with a notice after three of them; no value of an attribute occurs twice."""
    f = FAMILIES[family]
    subjects = rng.sample(f.subjects, ENTRIES)
    values = {attribute: rng.sample(bank, ENTRIES) for attribute, (_, _, bank) in f.facts.items()}
    asides = spread(rng, f.asides, 2 * ENTRIES)
    paragraphs, facts = [f"{f.title}\n\n{f.opening}"], []
    after = dict(zip(POSITIONS.values(), rng.sample(f.notices, len(POSITIONS)), strict=True))
    notices = {}
    for i, subject in enumerate(subjects):
        sentences, known = [], {}
        for attribute, (asked, ways, _) in f.facts.items():
            value = values[attribute][i]
            sentence = rng.choice(ways).format(s=subject, v=value)
            sentences.append(sentence[0].upper() + sentence[1:])
            known[attribute] = (asked.format(s=subject), value)
        rng.shuffle(sentences)
        sentences[1:1], sentences[-1:-1] = [asides[2 * i]], [asides[2 * i + 1]]
        paragraphs.append(" ".join(sentences))
        facts.append(known)
        if i in after:
            asked, sentence, bank = after[i]
            notices[i] = (asked, value := rng.choice(bank))
            paragraphs.append(f"Please note: {sentence.format(v=value)}")
    return Document("\n\n".join(paragraphs), facts, {name: notices[i] for name, i in POSITIONS.items()})


def question(
    source: str, document: Document, position: str, asked: str, answers: list[str], watches_for: str | None = None
) -> Draft:
    return Draft(
        source=source,
        grader="extract.match",
        reference=answers,
        messages=chat(SYSTEM, SHOTS, ASK.format(document=document.text, question=asked)),
        max_tokens=MAX_TOKENS,
        watches_for=watches_for,
        tag=position,
    )


def accepted(answer: str) -> list[str]:
    """The phrase; of a measure also the bare number."""
    number, _, unit = answer.partition(" ")
    return [answer, number] if number.isdigit() and unit else [answer]


def write(rng: random.Random, n: int) -> list[Draft]:
    drafts: list[Draft] = []
    per_document = len(POSITIONS)
    families = spread(rng, sorted(FAMILIES), -(-n // per_document))
    for number, family in enumerate(families, 1):
        document = compose(rng, family)
        for turn, (position, entry) in enumerate(POSITIONS.items()):
            known = document.facts[entry]
            one_of_many = known[rng.choice(sorted(known))]
            asked, answer = document.notices[position] if (number + turn) % 3 else one_of_many
            drafts.append(question(f"documents.{family}-{number}", document, position, asked, accepted(answer)))
    return drafts[:n]


def pinned() -> list[Draft]:
    """Questions about one document that no seed changes: its very first entry, its very last, and one in between."""
    document = compose(random.Random("pinned"), "museums")
    (first, keeper), (last, year) = document.facts[0]["keeper"], document.facts[-1]["founded"]
    asked, notice = document.notices["middle"]
    return [
        question("pinned.documents", document, "first", first, accepted(keeper),
                 "loses the start of a long prompt (a window or a truncation that drops the oldest tokens)"),
        question("pinned.documents", document, "last", last, accepted(year),
                 "loses the end of the document to the truncation that keeps the first tokens"),
        question("pinned.documents", document, "amid", asked, accepted(notice),
                 "loses the middle of a long prompt (a block of the cache that is overwritten or skipped)"),
    ]  # fmt: skip


SCENARIO = Scenario("long_documents", "long_context", 30, write, pinned)
