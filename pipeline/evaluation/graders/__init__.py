"""The graders by name. An item names its grader; an unknown grader, parameter or constraint is refused by name."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from pipeline.errors import SeatrialError
from pipeline.evaluation.graders import choice, code, constraints, extract, ifeval, numbers, people
from pipeline.evaluation.graders.base import Answer, Grade, GraderParams, GraderSpec
from pipeline.evaluation.items import Item

__all__ = ["GRADERS", "Answer", "Grade", "check_item", "grade", "grader_of", "params_of", "versions"]

GRADERS: dict[str, GraderSpec] = {
    spec.name: spec
    for spec in (choice.SPEC, extract.SPEC, numbers.SPEC, code.SPEC, constraints.SPEC, ifeval.SPEC, people.SPEC)
}


def grader_of(item: Item) -> GraderSpec:
    """
    Raises:
        SeatrialError: there is no grader of that name.
    """
    spec = GRADERS.get(item.grader.name)
    if spec is None:
        raise SeatrialError(f"item {item.id}: unknown grader {item.grader.name!r}; there are {', '.join(GRADERS)}")
    return spec


def params_of(item: Item) -> GraderParams:
    """The item's grader parameters, checked.

    Raises:
        SeatrialError: unknown grader, or a parameter that is unknown, missing or of the wrong type.
    """
    spec = grader_of(item)
    try:
        return spec.params.model_validate(item.grader.params)
    except ValidationError as e:
        problems = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors())
        raise SeatrialError(f"item {item.id}: {spec.name}: {problems}") from e


def check_item(item: Item) -> None:
    """That the item suits its grader: parameters, reference, choices, messages, max_tokens.

    Raises:
        SeatrialError: it does not; says what was found and what was expected.
    """
    spec, params = grader_of(item), params_of(item)
    try:
        spec.check(item, params)
    except ValueError as e:
        raise SeatrialError(f"item {item.id}: {spec.name}: {e}") from e


def grade(item: Item, answer: Answer) -> Grade:
    """Judges one answer to an item that :func:`check_item` accepts.

    Raises:
        SeatrialError: unknown grader or parameter.
    """
    return grader_of(item).grade(item, params_of(item), answer)


def versions(items: Iterable[Item]) -> dict[str, str]:
    """Name and version of every grader that these items use; part of the identity of a result."""
    return {name: GRADERS[name].version for name in sorted({grader_of(x).name for x in items})}
