"""lm-eval's own command line, with the time that its ``hf`` model takes to answer, and what it answers.

    PYTHON timed_lm_eval.py OUT.json run --model hf ...

Runs in lm-eval's environment, so it imports nothing of this project. Loading the model, building the requests and
grading are outside of what is timed; tokenising, batching and the forward passes are inside.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.models.huggingface import HFLM

    out = Path(sys.argv.pop(1))
    answer = HFLM.loglikelihood

    def timed(self: Any, requests: list[Any], *rest: Any, **named: Any) -> Any:
        began_s = time.monotonic()
        found = answer(self, requests, *rest, **named)
        took_s = time.monotonic() - began_s
        rows = [[*request.args, value] for request, (value, _) in zip(requests, found, strict=True)]
        out.write_text(json.dumps({"answering_s": took_s, "loglikelihoods": rows}), encoding="utf-8")
        return found

    HFLM.loglikelihood = timed
    cli_evaluate()


if __name__ == "__main__":
    main()
