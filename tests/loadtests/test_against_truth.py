"""The client as a process of its own beside the simulator's: its stamps against the truth log, on one monotonic clock.

Both run on a machine that may be busy. A stamp can never come before its token was sent; how long after is asked of the
nearest of a stream's stamps, not of each, and of the best of several streams: a pause of the machine makes stamps late,
never early, and what the client itself adds it adds to all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtests.client import Endpoint, Exchange, StreamClient, encoded
from loadtests.simulator.process import simulator
from loadtests.simulator.scenario import Scenario
from loadtests.simulator.truth import Truth

NEAR_S = 0.002
TOKENS = 12
STREAMS = 20  # at most; the first is as a rule enough
ODDITIES: dict[str, dict[str, Any]] = {
    "role first": {"form": {"role": "own_chunk"}},
    "several tokens in a chunk": {"form": {"tokens_per_chunk": 3}},
    "split characters": {"form": {"unicode": True, "piece_bytes": 5}},
    "keep-alives, CRLF, several data lines": {"form": {"comment_every": 2, "newline": "crlf", "split_data": True}},
    "end token without text": {"form": {"eos": True, "silent_every": 4}},
    "a body without framing": {"form": {"framing": "until_close"}},
    "slow head": {"faults": [{"kind": "slow_head", "delay_ms": 60, "when": {"first": 0}}]},
    "stall": {"faults": [{"kind": "stall", "at_s": 0.05, "for_s": 0.3}]},
    "no [DONE]": {"faults": [{"kind": "omit", "what": "done", "when": {"first": 0}}]},
    "reset": {"faults": [{"kind": "break", "how": "reset", "after_tokens": 5, "when": {"first": 0}}]},
}


def measured(scenario: dict[str, Any], folder: Path) -> Iterator[tuple[Exchange, Truth]]:
    """Streams of one simulator, each with its truth."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": TOKENS, "stream": True}
    with simulator(Scenario.model_validate({"ttft_ms": 30, "itl_ms": 15, **scenario}), folder) as sim:
        for i in range(STREAMS):
            client = StreamClient(Endpoint(sim.url), 240)
            exchange = Exchange(f"r-{i}", "s", "measured", 0, time.monotonic(), TOKENS)
            client.send(exchange, encoded({**body, "stream_options": options}))
            client.close()
            deadline = time.monotonic() + 240
            while len(found := sim.truth()) <= i:  # written when the simulator, too, is done with it
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert found[i].request_id == f"r-{i}"
            yield exchange, found[i]


@pytest.mark.parametrize("oddity", ODDITIES)
def test_stamps_are_the_servers_truth(oddity: str, tmp_path: Path) -> None:
    nearest_s = []
    for exchange, truth in measured(ODDITIES[oddity], tmp_path):
        theirs, mine = truth.token_times_s, exchange.token_times_s.tolist()
        assert exchange.status == ("error" if oddity == "reset" else "ok"), exchange.reason
        assert len(mine) == len(theirs) == (5 if oddity == "reset" else TOKENS)
        assert all(m >= t for m, t in zip(mine, theirs, strict=True))
        first = truth.sent[0][1]
        assert exchange.sent_s is not None
        assert exchange.sent_s <= truth.received_s <= first <= mine[0]
        # A pause of a busy machine can only make a stamp later; the one that none has touched shows the way itself.
        nearest_s.append(min(m - t for m, t in zip(mine, theirs, strict=True)))
        if nearest_s[-1] <= NEAR_S:
            return
    raise AssertionError(f"in each of {STREAMS} streams all stamps were late: by {nearest_s} s at least")
