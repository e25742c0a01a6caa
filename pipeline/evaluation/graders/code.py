"""``code.unit_tests``: does the function pass the asserts?

The program is the fenced block of the answer that defines ``entry_point`` (else the first block, else the whole text;
a fence that was never closed runs to the end). It runs in the sandbox, then the tests run in the same namespace. Where
the machine offers no isolation the item is an error, "not measurable here": nothing is ever run unprotected.
"""

from __future__ import annotations

import ast
import re
import textwrap

from pydantic import Field

from pipeline.evaluation import sandbox
from pipeline.evaluation.graders.base import (
    Answer,
    Grade,
    GraderParams,
    GraderSpec,
    need_generation,
    need_no_reference,
)
from pipeline.evaluation.items import Item

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


class Params(GraderParams):
    entry_point: str = Field(pattern=r"^[A-Za-z_]\w*$")
    tests: str = Field(description="Python source with asserts that call entry_point")
    timeout_s: float = Field(5.0, gt=0, le=60, description="CPU seconds of program and tests together")


def extract_program(text: str, entry_point: str) -> str:
    """The code that is meant in an answer."""
    blocks = [m[1] for m in _FENCE.finditer(text)]
    defines = re.compile(rf"^\s*(?:async\s+)?(?:def|class)\s+{entry_point}\b|^{entry_point}\s*=", re.MULTILINE)
    chosen = next((b for b in blocks if defines.search(b)), blocks[0] if blocks else text)
    return textwrap.dedent(chosen).strip("\n") + "\n"


def check(item: Item, params: Params) -> None:
    need_generation(item)
    need_no_reference(item)
    if item.messages is None:
        raise ValueError("expected `messages`: the answer is read as a whole program, not as the rest of a raw prompt")
    try:
        tree = ast.parse(params.tests)
    except (SyntaxError, ValueError) as e:
        raise ValueError(f"`tests` is not Python: {e}") from e
    if not any(isinstance(n, ast.Assert) for n in ast.walk(tree)):
        raise ValueError("`tests` has no assert; every answer that defines the function would pass")
    if not any(isinstance(n, ast.Name) and n.id == params.entry_point for n in ast.walk(tree)):
        raise ValueError(f"`tests` never uses entry_point {params.entry_point!r}")


def grade(item: Item, params: Params, answer: Answer) -> Grade:
    program = extract_program(answer.text, params.entry_point)
    if not program.strip():
        return Grade(False, "the answer is empty", "")
    result = sandbox.run(program, params.entry_point, params.tests, cpu_s=params.timeout_s)
    if result.outcome == "not_measurable":
        return Grade(False, f"not measurable here: {result.reason}", status="error")
    return Grade(result.outcome == "passed", result.reason, detail={"outcome": result.outcome})


SPEC = GraderSpec("code.unit_tests", "1", Params, grade, check, needs_process=True)
