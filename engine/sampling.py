"""Logits to tokens.

A draw depends on the request's own logits, parameters, seed and position, on nothing else: see ``engine.draw``.
Reported log-probabilities are those of the unmodified logits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.draw import draw
from engine.ledger import SLICE_ROWS
from engine.request import DrawError, Request, TokenLogprob


class LogitsError(DrawError):
    """Logits that are not finite: nothing can be drawn from them."""


def sample(rows: Sequence[Tensor], requests: Sequence[Request]) -> list[int | DrawError]:
    """The next token of each request from its row of logits (float32 [vocab], not changed).

    Plain greedy rows share an argmax; the others are drawn one by one, since each has tables of its own and a row fits
    the processor's cache. A request with a grammar draws among the tokens that it allows, whatever a bias says, and
    before any filter. An error stands in the place of the request it belongs to.
    """
    drawn: list[int | DrawError] = [0] * len(rows)
    plain = [i for i, r in enumerate(requests) if is_plain(r)]
    for at in range(0, len(plain), SLICE_ROWS):
        part = plain[at : at + SLICE_ROWS]
        stacked = rows[part[0]].unsqueeze(0) if len(part) == 1 else torch.stack([rows[i] for i in part])
        best = stacked.argmax(dim=-1, keepdim=True)  # [part, 1]; the first, that is lowest, id on ties
        for i, token, value in zip(part, best[:, 0].tolist(), stacked.gather(1, best)[:, 0].tolist(), strict=True):
            drawn[i] = checked(token, value, requests[i])
    for i in set(range(len(rows))) - set(plain):
        drawn[i] = _sample_one(rows[i], requests[i])
    return drawn


def is_plain(request: Request) -> bool:
    """Whether its token is the first of the largest of the model's logits."""
    return request.params.temperature == 0 and not request.params.modifies_logits and request.matcher is None


def checked(token: int, largest: float, request: Request) -> int | DrawError:
    """``token``, where the largest logit (NaN where one is) is a number."""
    return token if math.isfinite(largest) else _not_finite(request)


def _not_finite(request: Request) -> LogitsError:
    return LogitsError(
        f"the model's logits at position {request.num_tokens} are not finite; the weights or their scales are damaged"
    )


def _sample_one(row: Tensor, request: Request) -> int | DrawError:
    params = request.params
    best = row.argmax()
    if not math.isfinite(float(row[best])):
        return _not_finite(request)
    logits = modified(row, request) if params.modifies_logits else row
    if request.matcher is None and params.temperature == 0:
        return int(logits.argmax())
    values, ids = logits.cpu().numpy(), None
    if request.matcher is not None:
        try:
            ids = request.matcher.allowed()
        except DrawError as e:
            return e
        values = values[ids]
        if params.temperature == 0:
            return int(ids[values.argmax()])
    return draw(values, params, request.seed, request.num_tokens, ids)


def modified(row: Tensor, request: Request) -> Tensor:
    """Logits after bias, ``min_tokens`` and penalties, on a copy.

    Repetition penalty as in Keskar et al., "CTRL" (2019), over prompt and output; presence and frequency penalties as
    OpenAI defines them, over the output.
    """
    params, logits = request.params, row.clone()
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(request.tokens)), device=row.device)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    output = request.tokens[request.num_prompt_tokens :]
    if output and (params.presence_penalty or params.frequency_penalty):
        counts = Counter(output)
        ids = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), device=row.device, dtype=row.dtype)
        logits[ids] -= params.presence_penalty + params.frequency_penalty * times
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=row.device)
        logits[ids] += torch.tensor(list(params.logit_bias.values()), device=row.device, dtype=row.dtype)
    if params.stop_token_ids and not params.ignore_eos and request.num_output_tokens < params.min_tokens:
        logits[torch.tensor(params.stop_token_ids, device=row.device)] = -math.inf
    return logits


def token_logprobs(rows: Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """Log-probability of ``token_ids[i]`` under ``rows[i]`` (float32 [rows, vocab]) and the ``top`` most likely ids."""
    found: list[TokenLogprob] = []
    for at in range(0, len(token_ids), SLICE_ROWS):
        ids = torch.tensor(token_ids[at : at + SLICE_ROWS], device=rows.device)
        logprobs = torch.log_softmax(rows[at : at + len(ids)], dim=-1)
        own = logprobs.gather(1, ids.unsqueeze(1))[:, 0].tolist()
        best = logprobs.topk(min(top, rows.shape[1]), dim=-1) if top else None
        for i, value in enumerate(own):
            pairs: list[tuple[float, int]] = []
            if best is not None:
                pairs = sorted(
                    zip((-best.values[i]).tolist(), best.indices[i].tolist(), strict=True)
                )  # equal ones by id
            found.append(TokenLogprob(value, [t for _, t in pairs], [-v for v, _ in pairs]))
    return found
