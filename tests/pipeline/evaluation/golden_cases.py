"""Inputs whose graded outputs are fixed for a grader's version, in ``goldens/NAME@VERSION.json``.

    python -m tests.pipeline.evaluation.golden_cases

writes the file of each version that has none, and prints its digest for test_graders_golden.py. It overwrites nothing:
other behaviour is another version.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.evaluation.graders import GRADERS, Answer, check_item, grade
from pipeline.evaluation.items import Item
from tests.pipeline.evaluation.ifeval_cases import CASES as INSTRUCTIONS
from tests.pipeline.evaluation.make import chat_item, choice_item, code_item

FOLDER = Path(__file__).with_name("goldens")

_CHOICES = [
    [[-1.0], [-2.0], [-3.0]],
    [[-2.0], [-0.5, -0.5], [-0.9]],
    [[-1.0, -1.0], [-2.0], [-1.5, -0.5]],  # a tie of all three sums: the lowest index
    [[-3.0], [-1.0, -1.0, -1.0, -0.1], [-2.5]],
]
_EXTRACT = [
    (["Paris"], "Paris"), (["Paris"], "  \n\n**Paris.**\nIt lies on the Seine."), (["Paris"], "Answer: paris"),
    (["Paris"], "The final answer is: \"Paris\""), (["Paris"], "The capital of France is Paris, a city."),
    (["Paris"], "I have read the passage with great care and I think that after all the thing asked for is Paris"),
    (["Paris"], "Parisian"), (["Paris"], "London"), (["Paris"], ""), (["Paris"], "Berlin\nParis"),
    (["the lantern", "a lamp"], "lantern"), (["the lantern", "a lamp"], "Lamp!"), (["1,200"], "It costs $1200."),
    (["1200 euros"], "€1,200"), (["3.5"], "3.5 km"), (["35"], "3.5"), (["10:30"], "at 10:30."), (["10:30"], "10 30"),
    (["O'Brien's inn"], "O’Brien’s Inn"), (["well-known"], "well known"), (["7"], "17"), (["ﬁne"], "fine"),
    ("The Hague", "Hague"), (["N-17"], "locker N-17"), (["café"], "CAFÉ"), (["no"], "No, it is not."),
]  # fmt: skip
_NUMBERS = [
    (42, "The answer is 42."), (1234.5, "1,234.50 dollars"), (-5, "x = -5"), (-7, "−7 degrees"), (7, "12-5=7"),
    (3, "5 - 3"), (0.75, "3/4"), (1.75, "1 3/4 cups"), (0.75, r"\(\frac{3}{4}\)"), (50, "50%"), (1200, "**$1,200**"),
    (-5, "-$5"), (2e3, "2e3"), (0.5, ".5"), (12, "12 apples, said x2"), (31, "2024/12/31"), (8, "8 of them; not 3/0"),
    (5, "no digits"), (5, ""), (5, "H2O"),
    (30, "3 + 27 = 30\n\nSo 30 birds."), (3.14, "3.14159"), (6, "6."), (3, "1,2,3"),
    (15, "10-15"), (-4, "x=-4"), (1000000, "1,000,000"), (9, "(9)"), (4, "9 − 5 = 4"),
    (16, "She has 16 left over 2 days"),
]  # fmt: skip
_CODE = [
    "def f(x): return 2 * x", "Sure!\n```python\ndef f(x):\n    return 2 * x\n```\nIt doubles.",
    "```\ndef g(x):\n    return 0\n```\n```py\ndef f(x):\n    return x + x\n```",
    "```python\ndef f(x):\n    return 2 * x",
    "    def f(x):\n        return 2 * x", "def f(x): return 3 * x", "I would use a loop.", "", "f = lambda x: x * 2",
    "def g(x): return 2 * x", "def f(x): return undefined", "import sys\nsys.exit(0)",
    "- item\n  ```python\n  def f(x):\n      return 2 * x\n  ```", "class f:\n    def __new__(cls, x): return 2 * x",
]  # fmt: skip
_CONSTRAINTS: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([{"type": "contains", "text": "Sea"}], ["by the SEA", "sear it", "the land", ""]),
    ([{"type": "contains", "text": "sea", "whole_word": True}], ["by the sea.", "sear it"]),
    ([{"type": "contains", "text": "Sea", "ignore_case": False}], ["Sea", "sea"]),
    ([{"type": "not_contains", "text": "cat", "whole_word": True}], ["education", "a cat", "  "]),
    ([{"type": "not_contains", "text": "cat"}], ["education", "a dog"]),
    ([{"type": "starts_with", "text": "Dear"}], [" dear friend", "My dear"]),
    ([{"type": "ends_with", "text": "the end."}], ["It is The End.\n", "the end"]),
    ([{"type": "word_count_between", "min": 2, "max": 3}], ["one", "well-known, it's", "a b c", "a - b c d"]),
    ([{"type": "line_count", "count": 2}], ["a\n\nb", "a", "a\nb\nc"]),
    ([{"type": "bullet_count", "count": 2}], ["- a\n* b", "• a\n+ b\ntext", "-a\n- b", "**a**\n- b\n- c"]),
    ([{"type": "sentence_count", "count": 2}], ["One. Two!", "It is 3.5 m. Yes", "One", "What?! \"No.\" Yes."]),
    ([{"type": "numbered_list", "count": 2}], ["1. a\n2) b", "1. a\n3. b", "2. a\n1. b", "Here:\n1. a\n2. b\nend"]),
    ([{"type": "all_lower"}], ["abc 1.", "Abc", "123"]),
    ([{"type": "all_upper"}], ["ABC 1.", "ABc", "123"]),
    ([{"type": "no_commas"}], ["a b", "a, b"]),
    ([{"type": "repeat_word", "word": "Tea", "count": 2}], ["tea and TEA", "tea", "tea tea tea", "team tea"]),
    ([{"type": "repeat_word", "word": "tea", "count": 2, "exact": True}], ["tea, tea", "tea tea tea"]),
    ([{"type": "quoted"}], ['"all of it"', "“curly”", '"open', 'a "b" c', '"']),
    ([{"type": "json_valid"}], ['{"a": 1}', "```json\n[1]\n```", "Here: {}", "{'a': 1}", "NaN", "[" * 5000]),
    ([{"type": "json_keys", "keys": ["a", "b"]}], ['{"a": 1, "b": 2, "c": 3}', '{"a": 1}', "[1]", "nothing"]),
    ([{"type": "json_keys", "keys": ["a"], "only": True}], ['{"a": 1}', '{"a": 1, "b": 2}']),
    ([{"type": "all_lower"}, {"type": "no_commas"}], ["fine", "no, Not fine", "not, fine"]),
]  # fmt: skip


def _instruct(constraints: list[dict[str, Any]]) -> Item:
    grader = {"name": "instruct.constraints", "params": {"constraints": constraints}}
    return chat_item(reference=None, kind="instruct", grader=grader)


def _public(name: str) -> list[tuple[Item, Answer]]:
    kwargs, obeying, others = INSTRUCTIONS[name]
    grader = {"name": "instruct.ifeval", "params": {"instructions": [{"id": name, "kwargs": kwargs}]}}
    item = chat_item(reference=None, kind="instruct", grader=grader)
    return [(item, Answer(text)) for text in [*obeying, *others]]


def inputs() -> dict[str, list[tuple[Item, Answer]]]:
    """Cases by grader."""
    number = {"name": "math.last_number", "params": {"tolerance": 0.001}}
    return {
        "choice.loglikelihood": [
            (
                choice_item(grader={"name": "choice.loglikelihood", "params": {"normalise": how}}),
                Answer(choice_logprobs=x),
            )
            for how in ("none", "tokens")
            for x in _CHOICES
        ],
        "extract.match": [(chat_item(reference=accepted), Answer(text)) for accepted, text in _EXTRACT],
        "math.last_number": [
            (chat_item(reference=x, kind="math", grader=number), Answer(text)) for x, text in _NUMBERS
        ],
        "code.unit_tests": [(code_item(), Answer(text)) for text in _CODE],
        "instruct.constraints": [(_instruct(c), Answer(text)) for c, texts in _CONSTRAINTS for text in texts],
        "instruct.ifeval": [case for name in INSTRUCTIONS for case in _public(name)],
    }


def output(item: Item, answer: Answer) -> dict[str, Any]:
    """One case as it stands in a golden file: what was judged and how."""
    check_item(item)
    g = grade(item, answer)
    return {
        "params": item.grader.params,
        "reference": item.reference,
        "answer": answer.text if answer.choice_logprobs is None else answer.choice_logprobs,
        "correct": g.correct,
        "status": g.status,
        # Reasons of code quote the messages of Python, which change from version to version.
        "reason": None if item.kind == "code" else g.reason,
        "shown": g.shown,
        "detail": json.loads(json.dumps(g.detail)),
    }


def path_of(name: str) -> Path:
    return FOLDER / f"{name}@{GRADERS[name].version}.json"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, cases in inputs().items():
        path = path_of(name)
        if not path.exists():
            rows = [json.dumps(output(*case), ensure_ascii=False, sort_keys=True) for case in cases]
            path.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
        print(f'    "{path.stem}": "{hashlib.sha256(path.read_bytes()).hexdigest()}",')


if __name__ == "__main__":
    main()
