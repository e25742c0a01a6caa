"""The record that a load test leaves: one row per request, every token's arrival in it.

All times are seconds on one monotonic clock since the run's start (``RunInfo.started_at`` is that moment in UTC).
"""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict

# abandoned: its user left, as the profile wanted; what had come until then is in the record.
Status = Literal["ok", "error", "refused", "timeout", "censored", "abandoned"]

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
    "arrival": pl.Int64,  # number of the arrival in its stage; with the stage and the seed it names the content
    "session": pl.String,  # conversation that it is a turn of; null: the only request of its user's visit
    "turn": pl.Int64,  # 0, 1, ... in its session
    "leave_after_s": pl.Float64,  # the user's patience, from when it was sent; null: stays to the end
    "worker": pl.Int64,  # which of the load clients sent it, from 0
    "server_id": pl.String,  # the answer's id, by which the server's own log knows it
    "queued_s": pl.Float64,  # from the server's own log: from arrival to its first step; null: not known
    "text_digest": pl.String,  # of the answer's text, by which two answers to one prompt are compared
}
# Columns that older files lack: read as nulls.
ADDED = ("arrival", "session", "turn", "leave_after_s", "worker", "server_id", "queued_s", "text_digest")


def complete(records: pl.DataFrame) -> pl.DataFrame:
    """Records of an older version with the columns of this one, in its order; columns of no version stay at the end."""
    missing = [pl.lit(None, SCHEMA[name]).alias(name) for name in ADDED if name not in records.columns]
    whole = records.with_columns(missing)
    known = [name for name in SCHEMA if name in whole.columns]
    return whole.select(*known, *(name for name in whole.columns if name not in SCHEMA))


class ClientHealth(BaseModel):
    """Whether the instrument can be believed."""

    model_config = ConfigDict(extra="forbid")
    lag_p99_ms: float | None  # sent - due over sent requests
    lag_limit_ms: float | None  # max(5 ms, 10 % of the median TTFT)
    loop_lag_p99_ms: float | None = None  # how late the client's loop woke from short sleeps
    short_slices: bool | None = None  # whether the kernel was asked to wake it before whoever computes (slices.py)
    cpu_share: float | None  # of one core, of the client process, mean over the stage where it was highest
    void: bool
    void_reason: str | None


class WorkerInfo(BaseModel):
    """One of several load clients. Its times in the records are the master's.

    The offset is what is added to the master's monotonic clock to get its own.
    """

    model_config = ConfigDict(extra="forbid")
    worker: int
    name: str  # host and process
    requests: int
    same_clock: bool  # on the master's machine: the offset is zero by construction
    clock_offset_s: float  # when it was last measured
    clock_error_s: float  # how far off its times in the records may be (``clocks.Offset.error_s``)
    clock_moved_s: float  # how far the offset moved over the run; the records follow it
    lost: str | None = None  # why its records are missing
    client: ClientHealth | None  # null: lost


class RunInfo(BaseModel):
    """``run.json`` beside ``records.parquet`` as the load client writes it."""

    model_config = ConfigDict(extra="forbid")
    schema_version: Literal[1] = 1
    profile: str
    workload_digest: str
    base_url: str
    model: str
    started_at: str  # UTC, RFC 3339
    clock_zero_s: float | None = None  # the same moment on the machine's monotonic clock (the master's, of several)
    duration_s: float
    stages: list[dict[str, Any]]  # name, start_s, end_s, warmup_s, requests, and the profile's settings
    client: ClientHealth  # of several workers, the worst
    workers: list[WorkerInfo] = []
