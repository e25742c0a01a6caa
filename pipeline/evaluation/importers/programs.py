"""Code with unit tests: MBPP and HumanEval. The tests of the source are kept as they are."""

from __future__ import annotations

import ast

from pipeline.evaluation.importers.base import Question, Row, Unsuitable, key_of, need_text


def _defined(source: str) -> list[str]:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as e:
        raise Unsuitable("its solution is not Python") from e
    return [n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)]


def _used(source: str) -> set[str]:
    try:
        return {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
    except (SyntaxError, ValueError) as e:
        raise Unsuitable("its tests are not Python") from e


def _question(row: Row, ask: str, entry_point: str, tests: str) -> Question:
    return Question(
        kind="code",
        grader="code.unit_tests",
        key=key_of(row, "task_id"),
        ask=ask,
        params={"entry_point": entry_point, "tests": tests, "timeout_s": 10.0},
        max_tokens=512,
    )


def mbpp(row: Row) -> Question:
    """The function is the last one that the solution defines and the tests use."""
    asserts = row.get("test_list")
    if not isinstance(asserts, list) or not asserts:
        raise Unsuitable("has no test_list")
    imports = row.get("test_imports") or ([row["test_setup_code"]] if row.get("test_setup_code") else [])
    tests = "\n".join([*imports, *asserts]) + "\n"
    used = _used(tests)
    names = [n for n in _defined(need_text(row, "code")) if n in used]
    if not names:
        raise Unsuitable("the tests use nothing that its solution defines")
    ask = (
        f"{need_text(row, 'prompt', 'text').strip()}\n\nAnswer with the Python code alone. It must define "
        f"{names[-1]} and pass this test:\n\n{asserts[0]}"
    )
    return _question(row, ask, names[-1], tests)


def humaneval(row: Row) -> Question:
    entry_point = need_text(row, "entry_point")
    tests = f"{need_text(row, 'test').rstrip()}\n\ncheck({entry_point})\n"
    _used(tests)
    ask = (
        "Complete this function. Answer with the whole of it, imports included, as Python code.\n\n"
        f"```python\n{need_text(row, 'prompt').rstrip()}\n```"
    )
    return _question(row, ask, entry_point, tests)
