"""A server that says ``stop`` of answers that it cut is found; one whose answers end by themselves is not."""

from __future__ import annotations

import random

import polars as pl
import pytest

from loadtests.records import SCHEMA
from pipeline.load.analysis.finish import stop_at_limit
from pipeline.load.analysis.truncation import truncation
from tests.pipeline.gate.factory import records


def _answers(lengths: list[int], limit: int, lies: bool) -> pl.DataFrame:
    """Answers that would end by themselves at ``lengths``, cut at ``limit``."""
    rows = [(min(n, limit), limit, "stop" if lies or n <= limit else "length") for n in lengths]
    return pl.DataFrame(rows, schema=["output_tokens", "max_tokens", "finish_reason"], orient="row")


@pytest.mark.parametrize("seed", range(20))
def test_answers_that_end_by_themselves_are_believed_and_a_liar_is_not(seed: int) -> None:
    lengths = [1 + int(random.Random(f"{seed}/{i}").expovariate(1 / 40)) for i in range(150)]
    assert stop_at_limit(_answers(lengths, 40, lies=False), fixed_output=False) is None
    found = stop_at_limit(_answers(lengths, 40, lies=True), fixed_output=False)
    assert found is not None
    assert found.answers == found.at_limit == sum(n >= 40 for n in lengths)
    assert "cannot be believed" in found.words


def test_a_few_are_chance_unless_the_server_was_told_to_go_on() -> None:
    few = _answers([40, 40, 12, 80], 40, lies=False)
    assert stop_at_limit(few, fixed_output=False) is None
    found = stop_at_limit(few, fixed_output=True)
    assert found is not None
    assert (found.answers, found.at_limit, found.expected) == (2, 3, 0.0)
    assert stop_at_limit(_answers([80, 90], 40, lies=False), fixed_output=True) is None


def test_it_stands_in_the_block_of_load_json() -> None:
    rows = pl.DataFrame(records(1), schema=SCHEMA)
    honest = truncation(rows, [], fixed_output=True, deterministic=False)
    assert (honest["stop_at_limit"], honest["found"]) == (None, False)
    liar = rows.with_columns(finish_reason=pl.lit("stop"))
    block = truncation(liar, [], fixed_output=True, deterministic=False)
    assert block["found"]
    assert block["stop_at_limit"]["words"] in block["words"]
