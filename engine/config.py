"""Engine settings: one frozen model, shared by the server, the pipeline's params.yaml and provenance."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.isa import IsaLimit, within

Backend = Literal["cpu", "cuda"]
ComputeDtype = Literal["auto", "bfloat16", "float32"]
KvDtype = Literal["auto", "bfloat16", "float32", "int8", "fp8", "int4"]
Batching = Literal["continuous", "static"]
Prefill = Literal["mixed", "separate"]
KvReservation = Literal["paged", "contiguous"]
BF16_CAPABILITY = (8, 0)  # of a CUDA device


class EngineConfig(BaseModel):
    """What is asked of an engine. What is derived from it (resolved dtype, pool size) is reported, not stored here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Backend = Field(
        "cpu", description="what computes; nothing but this makes a GPU be used. Also called device"
    )
    isa: IsaLimit = Field(
        "auto", description="instructions that the C kernels may use, at most, to stand for another CPU; auto: all"
    )
    compute_dtype: ComputeDtype = Field("auto", description="auto: bfloat16 where the ISA has it, else float32")
    kv_dtype: KvDtype = Field(
        "auto",
        description="auto: bfloat16, or the compute dtype where that is asked for by name; int8: one float32 scale a "
        "token and KV head; fp8 (e4m3): the same, with backend cuda only; int4: two bfloat16 for every 16 values of a "
        "key and 64 of a value",
    )
    block_size: int = Field(16, ge=1, le=256, description="tokens per KV block")
    max_model_len: int = Field(2048, ge=2, description="tokens of prompt + output that one request may have")
    max_num_seqs: int = Field(16, ge=1, description="requests that run at once")
    max_num_batched_tokens: int = Field(512, ge=1, description="token budget of one step")
    prefill_chunk_tokens: int = Field(256, ge=1, description="chunk ends lie at absolute multiples of this")
    max_queue: int = Field(256, ge=1, description="waiting requests beyond which 429 is answered")
    batching: Batching = Field("continuous", description="static: a batch ends as a whole before the next one starts")
    prefill: Prefill = Field("mixed", description="separate: a step holds prefill or decodes, never both")
    decode_gap_tokens: int | None = Field(
        None, ge=1, description="prefill tokens between two tokens of a running request; null: the step budget"
    )
    kv_reservation: KvReservation = Field(
        "paged", description="contiguous: adjacent blocks for prompt + max_tokens from the start, nothing shared"
    )
    kv_pool_bytes: int | None = Field(None, ge=1, description="bytes of KV blocks; null: from memory_limit_bytes")
    memory_limit_bytes: int = Field(2 * 1024**3, ge=1, description="weights + activations + KV of the engine core")
    prefix_caching: bool = True
    threads: int | None = Field(
        None, ge=1, description="compute threads; null: as many as the process was given CPUs, by affinity and quota"
    )
    pin_threads: bool = Field(
        False,
        description="bind compute threads to CPUs; false: the system moves them away from a CPU that others use, "
        "such as a load generator on the same machine",
    )
    seed: int = 0

    @model_validator(mode="before")
    @classmethod
    def _device_is_the_backend(cls, given: Any) -> Any:
        """``device: cuda`` is what other engines call it."""
        if not isinstance(given, dict) or "device" not in given:
            return given
        if "backend" in given and given["backend"] != given["device"]:
            raise ValueError(
                f"device is {given['device']!r} and backend is {given['backend']!r}; they are one setting: give one"
            )
        return {k: v for k, v in given.items() if k != "device"} | {"backend": given["device"]}

    @model_validator(mode="after")
    def _chunk_fits_budget(self) -> Self:
        if self.prefill_chunk_tokens > self.max_num_batched_tokens:
            raise ValueError(
                f"prefill_chunk_tokens is {self.prefill_chunk_tokens} but the step budget max_num_batched_tokens is "
                f"{self.max_num_batched_tokens}; a chunk must fit one step: lower the first or raise the second"
            )
        if self.prefill_chunk_tokens % self.block_size:
            raise ValueError(
                f"prefill_chunk_tokens is {self.prefill_chunk_tokens}, not a multiple of block_size {self.block_size}; "
                "chunks must end on block edges"
            )
        return self

    @model_validator(mode="after")
    def _backend_has_kv_dtype(self) -> Self:
        if self.kv_dtype == "fp8" and self.backend != "cuda":
            raise ValueError(
                f"kv_dtype is fp8 but backend is {self.backend}; 8-bit floats are for GPUs: set device to cuda, or "
                "kv_dtype to int8, which is as small"
            )
        return self

    @model_validator(mode="after")
    def _policies_agree(self) -> Self:
        if self.decode_gap_tokens is not None and self.decode_gap_tokens < self.prefill_chunk_tokens:
            raise ValueError(
                f"decode_gap_tokens is {self.decode_gap_tokens} but prefill_chunk_tokens is "
                f"{self.prefill_chunk_tokens}; a chunk is computed whole: raise the first or lower the second"
            )
        if self.kv_reservation == "contiguous" and self.prefix_caching:
            raise ValueError(
                "kv_reservation is contiguous but prefix_caching is true; contiguous runs of blocks share nothing: set "
                "prefix_caching to false"
            )
        return self


def resolve_dtypes(
    config: EngineConfig, isa: list[str], capability: tuple[int, int] | None = None
) -> tuple[str, str, str]:
    """(compute dtype, KV dtype, reason) on a CPU with these features, as far as ``config.isa`` lets them be used, or on
    a CUDA device of this compute capability (None: not known here, taken to be a current one).

    Without bf16 instructions bf16 would be widened to float32 for every product, so `auto` takes float32 there. Keys
    and values are read for each token that is drawn, at the speed of memory: `auto` keeps them in bf16 on every
    machine, and a pool holds as many tokens on one as on the other.
    """
    if config.compute_dtype != "auto":
        compute, reason = config.compute_dtype, "as requested"
    elif config.backend == "cuda":
        older = capability is not None and capability < BF16_CAPABILITY
        compute, reason = (
            ("float32", f"bf16 -> f32: compute capability {capability}, bf16 products need {BF16_CAPABILITY}")
            if older
            else ("bfloat16", "cuda")
        )
    else:
        found = next((f for f in ("amx_bf16", "avx512_bf16") if f in within(config.isa, isa)), None)
        limit = "" if config.isa == "auto" else f" (isa limited to {config.isa})"
        compute, reason = (
            ("bfloat16", f"{found} found") if found else ("float32", f"bf16 -> f32: no avx512_bf16, no amx_bf16{limit}")
        )
    kv = "bfloat16" if config.compute_dtype == "auto" else compute
    return compute, kv if config.kv_dtype == "auto" else config.kv_dtype, reason
