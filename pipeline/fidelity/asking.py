"""Scores and greedy generations of a running server of the bundled engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from pipeline.errors import SeatrialError
from pipeline.fidelity.figures import Scored
from pipeline.targets.target import Target

TIMEOUT_S = 1800.0  # of one long sequence on a slow machine


class Asker:
    """``store``: keep the distributions under ``reference``; otherwise compare with what is kept there."""

    def __init__(
        self, target: Target, reference: str, store: bool, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.target, self.extra = target, {"store" if store else "reference": reference}
        self._http = httpx.Client(base_url=target.base_url, timeout=TIMEOUT_S, transport=transport)

    def close(self) -> None:
        self._http.close()

    def score(self, ids: Sequence[int]) -> Scored:
        """
        Raises:
            SeatrialError: the server refuses, or answers in another form.
        """
        body = {"model": self.target.model_name, "prompt": list(ids), "top_logprobs": 1, **self.extra}
        answer = self._post("/score", body)
        try:
            entry = answer["data"][0]
            kl = entry["kl"]
            return Scored(
                logprobs=entry["logprobs"][1:],
                best=[top[0]["id"] for top in entry["top"][1:]],
                kl=None if kl is None else kl[1:],
            )
        except (KeyError, IndexError, TypeError, ValueError) as e:
            raise SeatrialError(f"{self.target.base_url}/score: {type(e).__name__}: {e}; expected scores") from e

    def generate(self, ids: Sequence[int], tokens: int) -> list[str]:
        """The greedy continuation, token by token.

        Raises:
            SeatrialError: the server refuses, or answers in another form.
        """
        body = {
            "model": self.target.model_name, "prompt": list(ids), "max_tokens": tokens, "temperature": 0, "logprobs": 0,
        }  # fmt: skip
        answer = self._post("/v1/completions", body)
        try:
            return [str(token) for token in answer["choices"][0]["logprobs"]["tokens"]]
        except (KeyError, IndexError, TypeError) as e:
            raise SeatrialError(
                f"{self.target.base_url}/v1/completions: {type(e).__name__}: {e}; expected tokens beside logprobs"
            ) from e

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        try:
            answer = self._http.post(path, json=body)
            answer.raise_for_status()
            return answer.json()
        except httpx.HTTPStatusError as e:
            raise SeatrialError(
                f"{self.target.base_url}{path}: {e.response.status_code} {e.response.text[:300]}"
            ) from e
        except (httpx.HTTPError, ValueError) as e:
            self.target.check_alive()
            raise SeatrialError(f"{self.target.base_url}{path}: {type(e).__name__}: {e}") from e
