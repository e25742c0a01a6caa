"""Recipes by name, and the check of a params.yaml entry against one."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from pipeline.errors import SeatrialError
from pipeline.quantize.recipe import Recipe, RecipeParams
from pipeline.quantize.recipes import awq_int4, bf16, int4, int8

RECIPES: dict[str, Recipe[Any]] = {r.name: r for r in (bf16.RECIPE, int8.RECIPE, int4.RECIPE, awq_int4.RECIPE)}


def parse_entry(tier: str, entry: dict[str, Any]) -> tuple[Recipe[Any], RecipeParams]:
    """``quantization.TIER`` of params.yaml -> recipe and parameters.

    Raises:
        SeatrialError: unknown recipe, unknown parameter, or a value that does not fit.
    """
    where = f"params.yaml: quantization.{tier}"
    name = entry.get("recipe")
    recipe = RECIPES.get(name) if isinstance(name, str) else None
    if recipe is None:
        raise SeatrialError(f"{where}.recipe is {name!r}; known recipes: {', '.join(RECIPES)}")
    given = {k: v for k, v in entry.items() if k != "recipe"}
    known = ", ".join(recipe.params.model_fields) or "no parameters"
    try:
        return recipe, recipe.params.model_validate(given)
    except ValidationError as e:
        problems = []
        for x in e.errors():
            key = ".".join(map(str, x["loc"]))
            unknown = x["type"] == "extra_forbidden"
            problems.append(
                f"{where}.{key}: unknown parameter; recipe {name} takes {known}"
                if unknown
                else f"{where}.{key} is {x['input']!r}: {x['msg']}"
            )
        raise SeatrialError("\n".join(problems)) from e
