"""lm-eval's own command line, with the time that its ``hf`` model takes to answer, and what it answers.

    PYTHON timed_lm_eval.py OUT.json CHOICES_BATCH GENERATED_BATCH run --model hf ...

Runs in lm-eval's environment, so it imports nothing of this project. Loading the model, building the requests and
grading are outside of what is timed; tokenising, batching and the forward passes are inside. Choices and texts are
asked with a batch size each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.models.huggingface import HFLM

    out, *sizes = sys.argv.pop(1), int(sys.argv.pop(1)), int(sys.argv.pop(1))
    told: dict[str, Any] = {"seconds": {}, "loglikelihoods": [], "texts": []}

    def timed(answer: Callable[..., list[Any]], kind: str, batch_size: int, note: Callable[..., None]) -> Any:
        def answered(self: Any, requests: list[Any], *rest: Any, **named: Any) -> list[Any]:
            self.batch_size_per_gpu = batch_size
            began_s = time.monotonic()
            found = answer(self, requests, *rest, **named)
            told["seconds"][kind] = time.monotonic() - began_s
            for request, value in zip(requests, found, strict=True):
                note(request, value)
            Path(out).write_text(json.dumps(told), encoding="utf-8")
            return found

        return answered

    def scored(request: Any, value: tuple[float, bool]) -> None:
        told["loglikelihoods"].append([*request.args, value[0]])

    def written(request: Any, value: str) -> None:
        told["texts"].append([request.doc["id"], value])

    HFLM.loglikelihood = timed(HFLM.loglikelihood, "choices", sizes[0], scored)
    HFLM.generate_until = timed(HFLM.generate_until, "generated", sizes[1], written)
    cli_evaluate()


if __name__ == "__main__":
    main()
