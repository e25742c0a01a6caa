"""Runs the Great Expectations suite of an evalset (``evalsets/expectations/``) on tables made from its items.

The suite is in the library's own form. Each expectation's ``meta`` says which table it is about (``frame``), its
``name``, ``what`` it demands in a sentence, and whether it is ``blocking``. The tables:

items      one row an item
choice     the items with choices         generated   the items that are answered in text
pinned     the items of origin pinned     scenarios   one row a scenario, what the manifest says beside what is there
curated    the items that are no production requests
written    the scenarios without production requests: those come and go, and have no pinned cases

Great Expectations is imported here alone and only when a suite is run: that takes seconds. Its telemetry is off. What
it warns about concerns its own code, so its warnings are not shown.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import SeatrialError
from pipeline.evaluation.items import Evalset, Manifest

SUITES = "expectations"
FRAMES = ("items", "choice", "generated", "pinned", "scenarios", "written", "curated")
EXAMPLES = 5


class _Meta(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    frame: str
    name: str
    what: str
    blocking: bool = True
    if_any: bool = False  # holds where the table has no rows: a set without choices has none out of balance


class _Expectation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    type: str
    kwargs: dict[str, Any]
    meta: _Meta


class Suite(BaseModel):
    """A file below ``evalsets/expectations/``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    expectations: list[_Expectation]
    meta: dict[str, Any] = {}


def suite_path(folder: Path, manifest: Manifest) -> Path:
    """Suites stand together beside the sets, since several imported sets share one."""
    return folder.parent / SUITES / f"{manifest.suite or manifest.name}.json"


def load_suite(path: Path) -> Suite:
    """
    Raises:
        SeatrialError: no suite, one that does not parse, is empty, names a check twice or a table that there is not.
    """
    if not path.is_file():
        raise SeatrialError(f"{path} not found; an evalset needs a suite of expectations there (manifest: `suite`)")
    try:
        suite = Suite.model_validate_json(path.read_bytes())
    except ValidationError as e:
        first = e.errors()[0]
        raise SeatrialError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from e
    if not suite.expectations:
        raise SeatrialError(f"{path} has no expectations; a suite that demands nothing is no check")
    for name, times in Counter(x.meta.name for x in suite.expectations).items():
        if times > 1:
            raise SeatrialError(f"{path}: {times} expectations are named {name!r}; each needs a name of its own")
    for x in suite.expectations:
        if x.meta.frame not in FRAMES:
            raise SeatrialError(f"{path}: {x.meta.name}: unknown frame {x.meta.frame!r}; there are {', '.join(FRAMES)}")
    return suite


def week_number(week: str) -> int:
    """2026-W48 -> 202648, which orders weeks as a number."""
    return int(week.replace("-W", ""))


def rows_of(evalset: Evalset) -> dict[str, list[dict[str, Any]]]:
    """The tables by name, as rows."""
    items: list[dict[str, Any]] = []
    for item in evalset.items:
        choice = isinstance(item.reference, int) and item.choices is not None
        asked = item.prompt if item.messages is None else "".join(m.content for m in item.messages)
        items.append(
            {
                "id": item.id,
                "id_scenario": item.id.partition("-")[0],
                "scenario": item.scenario,
                "kind": item.kind,
                "origin": item.origin,
                "week": item.week,
                "week_number": week_number(item.week),
                "source": item.source,
                "grader": item.grader.name,
                "forms": (item.prompt is not None) + (item.messages is not None),
                "characters": len(asked or ""),
                "n_choices": len(item.choices or ()),
                "reference_index": item.reference if choice else -1,
                "right_is_first": float(choice and item.reference == 0),
                "max_tokens": item.max_tokens,
                "watches_for": item.watches_for,
            }
        )
    scenarios = _scenario_rows(evalset)
    return {
        "items": items,
        "choice": [r for r in items if r["kind"] == "choice"],
        "generated": [r for r in items if r["kind"] != "choice"],
        "pinned": [r for r in items if r["origin"] == "pinned"],
        "scenarios": scenarios,
        "curated": [r for r in items if r["origin"] != "production"],
        "written": [r for r in scenarios if not r["production"]],
    }


def _scenario_rows(evalset: Evalset) -> list[dict[str, Any]]:
    rows = []
    for name in sorted({x.scenario for x in evalset.items} | evalset.manifest.scenarios.keys()):
        have = [x for x in evalset.items if x.scenario == name]
        said = evalset.manifest.scenarios.get(name, {})
        sources = Counter(x.source for x in have)
        rows.append(
            {
                "id": name,
                "items": len(have),
                "items_in_manifest": said.get("items", 0),
                "production": sum(x.origin == "production" for x in have),
                "pinned": sum(x.origin == "pinned" for x in have),
                "pinned_in_manifest": said.get("pinned", 0),
                "kind": "+".join(sorted({x.kind for x in have})) or "none",
                "kind_in_manifest": said.get("kind", "none"),
                "largest_source_share": max(sources.values()) / len(have) if have else 1.0,
            }
        )
    return rows


def run_suite(folder: Path, evalset: Evalset, as_of_week: str) -> list[dict[str, Any]]:
    """The outcome of every expectation, in the form of ``reports/evalset.json``.

    An expectation that cannot be computed (an unknown column, an empty table) has failed; its example says why.

    Raises:
        SeatrialError: see :func:`load_suite`; or an expectation that the library does not know.
    """
    path = suite_path(folder, evalset.manifest)
    suite = load_suite(path)
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            return _run(path, suite, rows_of(evalset), {"as_of_week": week_number(as_of_week)})
        finally:
            logging.disable(before)


def _run(
    path: Path, suite: Suite, frames: dict[str, list[dict[str, Any]]], parameters: dict[str, Any]
) -> list[dict[str, Any]]:
    import great_expectations as gx
    import pandas as pd

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    # One asset for all tables: each that is made writes the whole context anew.
    table = context.data_sources.add_pandas("evalset").add_dataframe_asset("table")
    whole = table.add_batch_definition_whole_dataframe("whole")
    outcomes: dict[str, dict[str, Any]] = {}
    for frame, rows in frames.items():
        wanted = [x for x in suite.expectations if x.meta.frame == frame]
        if not wanted:
            continue
        if not rows:
            nothing = f"the table {frame} has no rows"
            outcomes |= {
                x.meta.name: _check(x, x.meta.if_any, nothing, [] if x.meta.if_any else [nothing]) for x in wanted
            }
            continue
        part = gx.ExpectationSuite(name=f"{suite.name}-{frame}", expectations=[_made(path, x) for x in wanted])
        result = whole.get_batch({"dataframe": pd.DataFrame(rows)}).validate(
            part,
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["id"]},
            expectation_parameters=parameters,
        )
        by_name = {x.meta.name: x for x in wanted}
        for one in result.results:
            outcome = one.to_json_dict()
            x = by_name[outcome["expectation_config"]["meta"]["name"]]
            outcomes[x.meta.name] = _outcome(_filled(x, parameters), outcome)
    return [outcomes[x.meta.name] for x in suite.expectations]


def _made(path: Path, x: _Expectation) -> Any:
    """The library's own object. Made here one by one, since a suite drops what it cannot make and only logs it.

    Raises:
        SeatrialError: the library knows no such expectation, or not with these arguments.
    """
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    try:
        return ExpectationConfiguration(type=x.type, kwargs=x.kwargs, meta=x.meta.model_dump()).to_domain_obj()
    except Exception as e:  # the library raises several unrelated types for an unknown or malformed expectation
        raise SeatrialError(
            f"{path}: {x.meta.name}: Great Expectations does not know {x.type} with {x.kwargs}: {str(e)[:200]}"
        ) from e


def _filled(x: _Expectation, parameters: dict[str, Any]) -> _Expectation:
    """With the values of parameters in place of their names, for a reader."""
    kwargs = {
        k: parameters.get(v["$PARAMETER"], v) if isinstance(v, dict) and "$PARAMETER" in v else v
        for k, v in x.kwargs.items()
    }
    return x.model_copy(update={"kwargs": kwargs})


def _failed(x: _Expectation, why: str) -> dict[str, Any]:
    return _check(x, False, None, [why])


def _check(x: _Expectation, success: bool, observed: Any, examples: list[str]) -> dict[str, Any]:
    demands = {k: v for k, v in x.kwargs.items() if k not in {"column", "column_A", "column_B"}}
    columns = [x.kwargs[k] for k in ("column", "column_A", "column_B") if k in x.kwargs]
    said = x.type.removeprefix("expect_").replace("_", " ")
    return {
        "name": x.meta.name,
        "what": x.meta.what,
        "engine": "great_expectations",
        "success": success,
        "blocking": x.meta.blocking,
        "observed": observed,
        "expected": f"{' and '.join(columns)}: {said}" + (f" {json.dumps(demands)}" if demands else ""),
        "examples": examples[:EXAMPLES],
    }


def _outcome(x: _Expectation, outcome: dict[str, Any]) -> dict[str, Any]:
    result = outcome["result"]
    if not result:
        errors = [e for e in outcome["exception_info"].values() if isinstance(e, dict)] or [outcome["exception_info"]]
        return _failed(x, f"could not be computed: {str(errors[0].get('exception_message'))[:200]}")
    if "observed_value" in result:
        return _check(x, outcome["success"], result["observed_value"], [])
    broken = result.get("unexpected_index_list") or []
    examples = [", ".join(f"{k}={v}" for k, v in sorted(row.items(), key=lambda kv: kv[0] != "id")) for row in broken]
    return _check(x, outcome["success"], f"{len(broken)} of {result['element_count']} rows break it", examples)
