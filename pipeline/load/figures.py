"""What each figure of a load test means: one entry a figure, printed beside it and shown on the scorecard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Figure:
    """``key`` is where the figure stands in ``load.json``; ``formula`` says in words how it comes from the records."""

    key: str
    name: str
    unit: str
    better: Literal["lower", "higher", ""]
    formula: str
    source: str


_OWN = "records of the load client"
FIGURES: dict[str, Figure] = {
    f.key: f
    for f in (
        Figure(
            "ttft_ms",
            "Time to first token (TTFT)",
            "ms",
            "lower",
            "From the moment a request was due to the arrival of its first output token at the client. A request that "
            "was due while the client was busy counts from its due time, so a stalled server cannot hide. Failed, "
            "refused and timed-out requests count as infinitely late; so does one that its user left before any token.",
            "vLLM and MLPerf Inference use the same definition, the latter from the scheduled arrival",
        ),
        Figure(
            "itl_ms",
            "Inter-token latency (ITL)",
            "ms",
            "lower",
            "The gap between two neighbouring output tokens of one request as seen by the client. All gaps of all "
            "requests are pooled; a mean for each request would hide stalls. Tokens that came in one chunk are zero "
            "apart. A request that failed adds one infinite gap, the token that never came.",
            _OWN,
        ),
        Figure(
            "tpot_ms",
            "Time per output token (TPOT)",
            "ms",
            "lower",
            "Of one answer: from its first token to its last, divided by the number of tokens after the first. One "
            "sample an answer of two tokens or more; failed requests are infinite.",
            "DistServe, OSDI 2024, section 2.1",
        ),
        Figure(
            "e2e_ms",
            "End to end latency (E2E)",
            "ms",
            "lower",
            "From the moment a request was due to the end of its answer. Failed requests are infinite; one that its "
            "user left has none.",
            _OWN,
        ),
        Figure(
            "queue_ms",
            "Queue time",
            "ms",
            "lower",
            "From a request's arrival in the engine to its first step, from the engine's own request log, joined "
            "by the answer's id. One that ended while it waited counts with the time until then. Without such a log "
            "(another server's) there is none.",
            "the engine's request log",
        ),
        Figure(
            "goodput_share",
            "Goodput share",
            "share",
            "higher",
            "Share of all requests, failed ones included, that ended well and kept the profile's limits on TTFT and "
            "TPOT. One that its user left after it had begun counts by what had come.",
            "DistServe, OSDI 2024, section 3.1",
        ),
        Figure(
            "output_tokens_per_s",
            "Output tokens per second",
            "tok/s",
            "higher",
            "Output tokens that arrived during the measured part of a stage, over all requests, divided by its length. "
            "At an arrival rate below saturation it follows the rate, not the engine.",
            _OWN,
        ),
        Figure(
            "prompt_tokens_per_s",
            "Prompt tokens per second",
            "tok/s",
            "higher",
            "Prompt tokens of the requests whose first token arrived during the measured part, divided by its length.",
            _OWN,
        ),
        Figure(
            "requests_per_s",
            "Requests per second",
            "1/s",
            "higher",
            "Requests that ended well during the measured part, divided by its length.",
            _OWN,
        ),
        Figure(
            "error_share",
            "Error share",
            "share",
            "lower",
            "Share of all requests that broke off, timed out, or still ran when the stage's drain was over (censored).",
            _OWN,
        ),
        Figure(
            "refused_share",
            "Refused share",
            "share",
            "lower",
            "Share of all requests that the server turned away (429, 503).",
            _OWN,
        ),
        Figure(
            "abandoned_share",
            "Abandoned share",
            "share",
            "",
            "Share of all requests whose user left before the end, as the profile asked for.",
            _OWN,
        ),
        Figure(
            "cut_off_share",
            "Cut-off share",
            "share",
            "lower",
            "Share of the answers that ended at their token limit; only where the model may end them itself.",
            "the server's finish_reason",
        ),
        Figure(
            "prefix_hit_share",
            "Prefix hit share",
            "share",
            "",
            "Share of the prompt tokens whose keys and values were found in the prefix cache.",
            "the server's usage",
        ),
        Figure("output_tokens_mean", "Mean answer", "tokens", "", "Mean output tokens of an answer.", "the usage"),
        Figure("asked_tokens_mean", "Mean limit", "tokens", "", "Mean of max_tokens of the answered.", _OWN),
        Figure("prompt_tokens_mean", "Mean prompt", "tokens", "", "Mean prompt tokens of the answered.", "the usage"),
    )
}


def definitions(keys: Iterable[str] = FIGURES) -> dict[str, dict[str, Any]]:
    """The entries as JSON, by key.

    Raises:
        KeyError: a figure without a definition.
    """
    return {k: {x: v for x, v in asdict(FIGURES[k]).items() if x != "key"} for k in keys}
