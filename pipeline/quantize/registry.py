"""Recipes by name, and the check of a params.yaml entry against one."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from pipeline.errors import SeatrialError
from pipeline.quantize.recipe import Recipe, RecipeParams
from pipeline.quantize.recipes.awq_int4 import RECIPE as AWQ_INT4
from pipeline.quantize.recipes.bf16 import RECIPE as BF16
from pipeline.quantize.recipes.fp8 import RECIPE as FP8
from pipeline.quantize.recipes.gptq_int4 import RECIPE as GPTQ_INT4
from pipeline.quantize.recipes.int4 import RECIPE as INT4
from pipeline.quantize.recipes.int8 import RECIPE as INT8
from pipeline.quantize.recipes.int8_weight_only import RECIPE as INT8_WEIGHT_ONLY

RECIPES: dict[str, Recipe[Any]] = {r.name: r for r in (BF16, INT8, INT8_WEIGHT_ONLY, FP8, INT4, AWQ_INT4, GPTQ_INT4)}


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
