"""A driver with a known schedule, as a script: ``fake_driver.py [FAULT]``. Token k of every request comes after
(k + 1) x STEP_S; the fault shows at the second line of work."""

from __future__ import annotations

import json
import sys
import time

STEP_S = 0.001


def main(fault: str) -> None:
    if fault == "dies early":
        sys.exit("cannot find my model")
    if fault == "never ready":
        time.sleep(3600)
    print(json.dumps({"ready": True, "engine": "fake", "version": "1", "weights": "none", "rss_bytes": 1}), flush=True)
    for number, line in enumerate(sys.stdin):
        requests = json.loads(line)["requests"]
        answers = [
            {"tokens": [7] * r["max_tokens"], "times": [STEP_S * (k + 1) for k in range(r["max_tokens"])]}
            for r in requests
        ]
        time.sleep(STEP_S * max(r["max_tokens"] for r in requests))
        message = {"requests": answers, "seconds": 0.1}
        if number == 1:
            match fault:
                case "dies":
                    sys.exit("out of luck")
                case "hangs":
                    time.sleep(3600)
                case "garbage":
                    print("loading shards: 100 %", flush=True)
                case "refuses":
                    message = {"error": "too long for me"}
                case "short":
                    del answers[0]["tokens"][-1]
                case "backwards":
                    answers[0]["times"].reverse()
                case "late":
                    answers[0]["times"][-1] = 3600.0
                case "fewer":
                    del answers[0]
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
