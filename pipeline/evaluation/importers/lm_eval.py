"""Samples as ``lm-eval --log_samples`` writes them: ``doc_id``, ``target`` and the requests in ``arguments``.

Several log-likelihood requests with one context are a choice; a single generation is an extraction against the target.
The prompt is the request's own, few-shot head included, so that the same question is asked. Answers of the logged model
(``resps``) are not read.
"""

from __future__ import annotations

import json
from typing import Any

from pipeline.evaluation.importers.base import Question, Row, Unsuitable, need

_DEFAULT_TOKENS = 256


def _requests(row: Row) -> list[list[Any]]:
    """Each request as its positional arguments, from the form of lists and from the newer one of named entries."""
    given = need(row, "arguments")
    if isinstance(given, dict):
        given = [[r[k] for k in sorted(r)] for r in given.values() if isinstance(r, dict)]
    if not isinstance(given, list) or not given or any(not isinstance(r, list) or len(r) < 2 for r in given):
        raise Unsuitable("`arguments` holds no requests of two arguments or more")
    return given


def sample(row: Row) -> Question:
    requests, key = _requests(row), str(need(row, "doc_id"))
    contexts = {r[0] for r in requests if isinstance(r[0], str)}
    if len(contexts) != 1:
        raise Unsuitable("its requests have different contexts, which one prompt cannot stand for")
    context = contexts.pop()
    if all(isinstance(r[1], str) for r in requests):
        return _choice(context, [r[1] for r in requests], need(row, "target"), key)
    if len(requests) > 1:
        raise Unsuitable("several generations for one item")
    return _generation(context, requests[0][1], need(row, "target"), key)


def _choice(context: str, options: list[str], target: Any, key: str) -> Question:
    if len(options) < 2:
        raise Unsuitable("a single continuation (perplexity or greedy match), nothing to choose from")
    try:
        gold = int(target)
    except (TypeError, ValueError):
        matching = [i for i, o in enumerate(options) if o.strip() == str(target).strip()]
        if len(matching) != 1:
            raise Unsuitable("the target is neither an index nor one of the continuations") from None
        gold = matching[0]
    return Question(
        kind="choice",
        grader="choice.loglikelihood",
        key=key,
        params={"normalise": "none"},
        prompt=context,
        choices=options,
        reference=gold,
    )


def _generation(context: str, settings: Any, target: Any, key: str) -> Question:
    if isinstance(settings, str):
        settings = json.loads(settings)
    wanted = settings.get("max_gen_toks") if isinstance(settings, dict) else None
    answers = target if isinstance(target, list) else [target]
    if not answers or any(not isinstance(a, str | int | float) or isinstance(a, bool) for a in answers):
        raise Unsuitable("the target is not a text or a list of texts")
    return Question(
        kind="extract",
        grader="extract.match",
        key=key,
        prompt=context,
        reference=[str(a) for a in answers],
        max_tokens=wanted if isinstance(wanted, int) and wanted > 0 else _DEFAULT_TOKENS,
    )
