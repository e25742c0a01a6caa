"""The record that a load test leaves: one row per request, every token's arrival in it.

All times are seconds on one monotonic clock since the run's start (``RunInfo.started_at`` is that moment in UTC).
"""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict

Status = Literal["ok", "error", "refused", "timeout", "censored"]

SCHEMA: dict[str, Any] = {
    "request_id": pl.String,
    "stage": pl.String,  # short_burst, long_context, mixed_random, ...
    "phase": pl.String,  # "warmup" or "measured": by due time
    "seed": pl.Int64,
    "due_s": pl.Float64,  # when the request should have been sent
    "sent_s": pl.Float64,  # when the client sent it; null: never sent
    "first_byte_s": pl.Float64,
    "first_token_s": pl.Float64,  # null: no token came
    "end_s": pl.Float64,
    "token_times_s": pl.List(pl.Float64),  # arrival of each output token, one entry a token
    "status": pl.String,  # Status; anything but ok counts as +inf in the tail
    "reason": pl.String,  # why not ok; null when ok
    "http_status": pl.Int64,
    "finish_reason": pl.String,  # stop, length, abort
    "prompt_tokens": pl.Int64,  # from the server's usage
    "output_tokens": pl.Int64,  # from the server's usage
    "cached_tokens": pl.Int64,  # from usage.prompt_tokens_details.cached_tokens; null: not reported
    "max_tokens": pl.Int64,
    "concurrency": pl.Int64,  # requests of this client in flight when it was sent, itself included
}


class ClientHealth(BaseModel):
    """Whether the instrument can be believed."""

    model_config = ConfigDict(extra="forbid")
    lag_p99_ms: float | None  # sent - due over sent requests
    lag_limit_ms: float | None  # max(5 ms, 10 % of the median TTFT)
    loop_lag_p99_ms: float | None = None  # how late the client's loop woke from short sleeps
    cpu_share: float | None  # of one core, of the client process, mean over the run
    void: bool
    void_reason: str | None


class RunInfo(BaseModel):
    """``run.json`` beside ``records.parquet`` as the load client writes it."""

    model_config = ConfigDict(extra="forbid")
    schema_version: Literal[1] = 1
    profile: str
    workload_digest: str
    base_url: str
    model: str
    started_at: str  # UTC, RFC 3339
    duration_s: float
    stages: list[dict[str, Any]]  # name, start_s, end_s, warmup_s, requests, and the profile's settings
    client: ClientHealth
