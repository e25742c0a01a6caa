"""Request bodies. Every field is honoured; one that is not listed is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.request import SamplingParams

INT64 = 2**63
Stop = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Body(BaseModel):
    """What both endpoints share. ``null`` means the default, as with OpenAI."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    model: str
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=INT64, description="0 or -1: off")
    min_p: float = Field(0.0, ge=0, le=1)
    stop: list[Stop] | Stop = []
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0)
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] = {}
    min_tokens: int = Field(0, ge=0, lt=INT64)
    ignore_eos: bool = False

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _options_need_stream(self) -> Self:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is set but stream is not")
        return self

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def sampling(
        self, max_tokens: int, eos_ids: tuple[int, ...], logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """
        Raises:
            engine.request.RequestError: values that contradict each other.
        """
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop_token_ids=eos_ids,
            seed=self.seed,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


class CompletionBody(_Body):
    prompt: str | Tokens | Annotated[list[str], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)]
    max_tokens: int = Field(16, ge=0, lt=INT64, description="0 only with echo: scores the prompt")
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False

    @model_validator(mode="after")
    def _zero_needs_echo(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is 0 without echo, so there is nothing to answer; expected 1 or more")
        return self


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]

    def plain(self) -> dict[str, str]:
        parts = [self.content] if isinstance(self.content, str) else [p.text for p in self.content]
        return {"role": self.role, "content": "".join(parts)}


class ChatBody(_Body):
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, lt=INT64, description="none: what the model's length leaves")
    max_completion_tokens: int | None = Field(None, ge=1, lt=INT64, description="OpenAI's newer name of max_tokens")
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is set but logprobs is not")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise ValueError("max_tokens and max_completion_tokens are the same; set one of them")
        return self
