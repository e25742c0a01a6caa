"""What each figure on the page means: one entry a metric, to which the figures link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.load.figures import FIGURES


@dataclass(frozen=True)
class Term:
    key: str
    name: str
    unit: str
    better: Literal["lower", "higher", ""]
    meaning: str
    source: str = ""


def _figure(key: str, figure: str, unit: str | None = None) -> Term:
    """A term whose meaning the load test owns."""
    f = FIGURES[figure]
    return Term(key, f.name, unit or f.unit, f.better, f.formula, f.source)


TERMS = [
    _figure("ttft", "ttft_ms"),
    _figure("itl", "itl_ms"),
    Term(
        "percentile",
        "P50, P95, P99",
        "",
        "",
        "The value that 50, 95 or 99 % of the samples do not exceed, from raw records. A percentile that the number "
        "of samples cannot carry is not given.",
    ),
    _figure("tokens_per_s", "output_tokens_per_s"),
    Term(
        "accuracy",
        "Accuracy",
        "%",
        "higher",
        "Share of the evalset's items graded correct. An item that errors or is cut off counts as wrong. The interval "
        "beside it is Wilson's at 95 % for the single tier; the paired comparison with the reference is in the gates.",
        "Wilson, JASA 22 (1927)",
    ),
    Term(
        "flip",
        "Flip",
        "items",
        "lower",
        "An item that one tier answers correctly and the reference does not, or the other way round. Decoding is "
        "greedy and the engine deterministic, so a flip is an effect of the change under test, not noise of sampling.",
    ),
    Term(
        "kl",
        "KL divergence",
        "nats a token",
        "lower",
        "How far the next-token distribution of a tier is from the reference's where both are given the same text: the "
        "sum of p log(p / q) over the vocabulary, p the reference's. Mean and 99th percentile over tokens.",
        "Kullback and Leibler, Annals of Mathematical Statistics 22 (1951)",
    ),
    Term(
        "weights",
        "Weights",
        "MiB",
        "lower",
        "Bytes of all tensors of the model as the engine holds them: planned from the artifact, measured in "
        "the server.",
    ),
    Term(
        "kv",
        "KV bytes per token, KV pool",
        "bytes, MiB",
        "",
        "Keys and values of one token over all layers, and the memory set aside for them in blocks.",
        "Kwon et al., SOSP 2023, section 3",
    ),
    Term(
        "rss",
        "Resident memory",
        "MiB",
        "lower",
        "Memory that the server's processes hold (front end and engine core), at its highest during the load test.",
    ),
    _figure("goodput", "goodput_share", "%"),
    _figure("prefix", "prefix_hit_share", "%"),
    Term(
        "n_effective",
        "Effective samples",
        "",
        "",
        "Neighbouring requests share a queue and are correlated; n effective is the number of independent samples that "
        "carry the same information. Percentile rules are judged on it.",
    ),
    Term(
        "interval",
        "Interval and outcome",
        "",
        "",
        "A rule passes if the bad end of the interval is inside the limit, fails if the good end is outside, and is "
        "undecided in between. No data is never a pass.",
    ),
    Term(
        "occupancy",
        "Blocks in use",
        "share of the pool",
        "",
        "KV blocks that requests or the prefix cache hold, of all blocks of the pool, in the fullest of the samples "
        "that were taken once a second; a peak between two samples is not seen.",
        "Kwon et al., SOSP 2023, section 4",
    ),
    Term(
        "alpha",
        "Agreement of raters",
        "",
        "higher",
        "Krippendorff's alpha on the ordinal scale: 1 is perfect agreement, 0 what chance would give.",
        "Krippendorff, Content Analysis, 2004",
    ),
    Term(
        "false_alarm",
        "False holds",
        "share of comparisons",
        "lower",
        "Comparisons of a build with itself that the gate held. The interval is that of Clopper and Pearson at 95 %.",
        "Clopper and Pearson, Biometrika 26 (1934)",
    ),
    Term(
        "four_tuple",
        "Four-tuple",
        "",
        "",
        "Model, engine, quantisation, and evalset or workload, each with a digest. If more than one of them differs "
        "between two results, a difference cannot be attributed to one cause: the comparison is confounded.",
    ),
    Term(
        "sliding",
        "Latency over time",
        "ms",
        "",
        "TTFT: one dot a request, and the P95 of the latest 20 requests as a line. ITL: P95 of all gaps that ended in "
        "each time step of at least 20 gaps.",
    ),
]
