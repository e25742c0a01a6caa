"""What serving engines tell of themselves in Prometheus form: one table of names, and the figures of a stage by it.

An engine exports gauges (how many run and wait, how full the KV pool is), counters and histograms that only grow. Over
a stage a gauge is what was seen of it; of what grows, the difference between the last look before the stage's measured
part and the first one after it. A histogram gives a mean; its buckets give no percentile (they are rounded, and come
from all requests there ever were).

Names: vLLM's ``vllm/v1/metrics/loggers.py`` and "Production metrics" (older names of a figure behind the newer one; the
client library adds ``_total`` to a counter), SGLang's ``srt/observability/metrics_collector.py`` and "Production
metrics", llama.cpp's ``tools/server/README.md``. The bundled engine has vLLM's under a prefix of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, Protocol

Kind = Literal["count", "share", "counter", "histogram"]


class Looked(Protocol):
    """One look at a server: :class:`pipeline.load.metrics.Scrape`."""

    @property
    def at_unix_s(self) -> float: ...
    @property
    def values(self) -> dict[str, float] | None: ...


@dataclass(frozen=True)
class Figure:
    """``count``: a gauge of things, summed over replicas; ``share``: a gauge of 0 to 1, of the fullest replica;
    ``counter``; ``histogram``: seconds, of which the mean is taken.
    """

    kind: Kind
    words: str


FIGURES: dict[str, Figure] = {
    "running": Figure("count", "requests in the batch"),
    "waiting": Figure("count", "requests that wait"),
    "kv_blocks_used": Figure("count", "KV blocks in use"),
    "kv_blocks_total": Figure("count", "KV blocks"),
    "kv_usage_share": Figure("share", "how full the KV pool is"),
    "preemptions": Figure("counter", "preemptions"),
    "prompt_tokens": Figure("counter", "prompt tokens"),
    "generation_tokens": Figure("counter", "output tokens"),
    "prefix_queries": Figure("counter", "prompt tokens looked up in the prefix cache"),
    "prefix_hits": Figure("counter", "prompt tokens found there"),
    "queue_s": Figure("histogram", "time in the queue"),
    "prefill_s": Figure("histogram", "time from the first step to the first token"),
    "decode_s": Figure("histogram", "time from the first token to the last"),
    "ttft_s": Figure("histogram", "time to first token, in the server"),
    "itl_s": Figure("histogram", "time between two tokens, in the server"),
}


def _vllm(prefix: str) -> dict[str, tuple[str, ...]]:
    names = {
        "running": ("num_requests_running",),
        "waiting": ("num_requests_waiting",),
        "kv_usage_share": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        "preemptions": ("num_preemptions_total",),
        "prompt_tokens": ("prompt_tokens_total",),
        "generation_tokens": ("generation_tokens_total",),
        "prefix_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
        "prefix_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
        "queue_s": ("request_queue_time_seconds",),
        "prefill_s": ("request_prefill_time_seconds",),
        "decode_s": ("request_decode_time_seconds",),
        "ttft_s": ("time_to_first_token_seconds",),
        "itl_s": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    }
    return {figure: tuple(prefix + n for n in known) for figure, known in names.items()}


FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "seatrial": _vllm("seatrial_")
    | {"kv_blocks_used": ("seatrial_kv_blocks_used",), "kv_blocks_total": ("seatrial_kv_blocks_total",)},
    "vllm": _vllm("vllm:"),
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_usage_share": ("sglang:token_usage",),
        "preemptions": ("sglang:num_retracted_requests_total",),  # num_retracted_reqs is of the last batch alone
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
        "prefix_queries": ("sglang:prompt_tokens_total",),
        "prefix_hits": ("sglang:cached_tokens_total",),
        "queue_s": ("sglang:queue_time_seconds",),
        "ttft_s": ("sglang:time_to_first_token_seconds",),
        "itl_s": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    },
    "llama.cpp": {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "kv_usage_share": ("llamacpp:kv_cache_usage_ratio",),
        "prompt_tokens": ("llamacpp:prompt_tokens_total",),
        "generation_tokens": ("llamacpp:tokens_predicted_total",),
    },
}
FULL_SHARE = 0.95  # of the KV pool: from here on it is full
_PREFIXES = {"seatrial": "seatrial_", "vllm": "vllm:", "sglang": "sglang:", "llama.cpp": "llamacpp:"}
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# Ranks of one replica, each of which may tell the same figure; and where a total stands beside its parts.
_RANKS, _PART = ("tp_rank", "pp_rank", "moe_ep_rank"), "priority"


def family_of(values: Mapping[str, float]) -> str | None:
    """Whose names these are; None: of no engine that is known here."""
    return next((f for f, prefix in _PREFIXES.items() if any(k.startswith(prefix) for k in values)), None)


def read(values: Mapping[str, float], name: str, kind: Kind = "count") -> float | None:
    """The metric ``name`` over all its labels; None where it is not exported.

    Replicas (``engine``, ``dp_rank``, and what labels split) are summed, of a share the fullest counts. Of the ranks of
    one replica the largest counts, and where a total (``priority=""``) stands beside its parts they are left out.
    """
    rows = [(dict(_LABEL.findall(k[len(name) :])), v) for k, v in values.items() if k.partition("{")[0] == name]
    if any(labels.get(_PART) == "" for labels, _ in rows):
        rows = [(labels, v) for labels, v in rows if not labels.get(_PART)]
    replicas: dict[frozenset[tuple[str, str]], float] = {}
    for labels, value in rows:
        which = frozenset((k, v) for k, v in labels.items() if k not in _RANKS)
        replicas[which] = max(replicas.get(which, value), value)
    if not replicas:
        return None
    return max(replicas.values()) if kind == "share" else sum(replicas.values())


def gauge(values: Mapping[str, float], figure: str) -> float | None:
    """A figure that is no histogram, as one look has it; None where no name for it is exported."""
    for family in FAMILIES.values():
        for name in family.get(figure, ()):
            found = read(values, name, FIGURES[figure].kind)
            if found is not None:
                return found
    return None


def _grown(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    """By how much a metric grew; None: not exported, or it went down, so that no difference can be taken."""
    end = read(after, name)
    if end is None:
        return None
    grown = end - (read(before, name) or 0.0)  # a server may export a counter from its first count on
    return grown if grown >= 0 else None


def _mean_s(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    total, count = (_grown(before, after, f"{name}_{part}") for part in ("sum", "count"))
    return total / count if total is not None and count else None


def of_span(looks: Sequence[Looked], from_unix_s: float, to_unix_s: float, family: str) -> dict[str, Any]:
    """Figures of one span: ``samples``, of each gauge the mean and the peak, ``waiting_share`` of the samples with a
    queue, of each counter the growth, of each histogram the mean in seconds; ``prefix_hit_share``. What is not told is
    null, and its names stand in ``missing``.
    """
    names = FAMILIES[family]
    known = [(x.at_unix_s, x.values) for x in looks if x.values is not None]
    inside = [v for t, v in known if from_unix_s <= t <= to_unix_s]
    before = [v for t, v in known if t <= from_unix_s][-1:] or inside[:1]
    after = [v for t, v in known if t >= to_unix_s][:1] or inside[-1:]
    out: dict[str, Any] = {"samples": len(inside), "family": family}
    for key, figure in FIGURES.items():
        wanted = names.get(key, ())
        if figure.kind in ("count", "share"):
            seen = [x for v in inside for x in [_first(v, wanted, figure.kind)] if x is not None]
            out[f"{key}_mean"], out[f"{key}_peak"] = (fmean(seen), max(seen)) if seen else (None, None)
            if key == "waiting":
                out["waiting_share"] = sum(x > 0 for x in seen) / len(seen) if seen else None
            continue
        how = _grown if figure.kind == "counter" else _mean_s
        found = [how(before[0], after[0], n) for n in wanted] if before and after else []
        out[key] = next((x for x in found if x is not None), None)
    hits, asked = out["prefix_hits"], out["prefix_queries"]
    if hits is None and asked is not None and family == "sglang":
        hits = 0.0  # counted from the first hit on
    out["prefix_hit_share"] = min(1.0, hits / asked) if hits is not None and asked else None
    exported = {k.partition("{")[0] for v in (*before, *inside, *after) for k in v}
    out["missing"] = _missing(names, exported)
    return out


def _first(values: Mapping[str, float], names: Sequence[str], kind: Kind) -> float | None:
    return next((x for n in names if (x := read(values, n, kind)) is not None), None)


def _missing(names: Mapping[str, tuple[str, ...]], exported: set[str]) -> dict[str, str]:
    """Figure -> the names under which it was looked for and not found. What was not counted once is not missing."""
    absent = {}
    for key, figure in FIGURES.items():
        known = names.get(key, ())
        there = any(n in exported or f"{n}_count" in exported for n in known)
        if not there and not key.startswith("kv_blocks"):
            absent[key] = f"{figure.words}: " + (f"no {' or '.join(known)}" if known else "it has no metric of that")
    return absent
