"""Request bodies. Every field is honoured; one that is not listed is refused by name, unless it has a value that asks
for what is done anyway (``engine.server.neutral``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.grammar.sources import Grammar, prepare
from engine.request import RequestError, SamplingParams
from engine.server.neutral import NEUTRAL, NEUTRAL_NESTED, without_neutral
from engine.text import TextRules

INT64 = 2**63
MAX_STOPS = 32
Stop = Annotated[str, Field(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, lt=INT64)]
Tokens = Annotated[list[TokenId], Field(min_length=1)]
Offset = Annotated[int, Field(ge=0, lt=INT64)]
Prompts = str | Tokens | Annotated[list[str], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)]


def each_prompt(prompt: Prompts) -> list[str | list[int]]:
    """One or several, each as text or as token ids."""
    single = isinstance(prompt, str) or isinstance(prompt[0], int)
    return cast(list[str | list[int]], [prompt] if single else prompt)


class Strict(BaseModel):
    """Knows every parameter or refuses it. ``null`` means the default, as with OpenAI."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL_NESTED

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        known = {f.alias or name: f for name, f in cls.model_fields.items()}
        return without_neutral(data, known, cls.neutral) if isinstance(data, dict) else data


class StreamOptions(Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(Strict):
    name: str = Field(min_length=1, max_length=64)
    of: dict[str, Any] = Field(alias="schema")
    strict: bool = Field(True, description="an output always matches its schema, so false asks for no less")


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_with_its_type(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema is expected with type 'json_schema', and only there")
        return self

    @property
    def source(self) -> tuple[str, Any] | None:
        if self.json_schema is not None:
            return "json_schema", self.json_schema.of
        return ("json_schema", {"type": "object"}) if self.type == "json_object" else None


class StructuredOutputs(Strict):
    """vLLM's name and form."""

    schema_: dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[Annotated[str, Field(min_length=1)]] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(x is not None for x in (self.schema_, self.regex, self.choice)) != 1:
            raise ValueError("expected exactly one of json, regex and choice")
        return self

    @property
    def source(self) -> tuple[str, Any]:
        if self.schema_ is not None:
            return "json_schema", self.schema_
        return ("regex", self.regex) if self.regex is not None else ("choice", self.choice)


class _Body(Strict):
    """What both endpoints share."""

    neutral = NEUTRAL
    model: str
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=INT64, description="0 or -1: off")
    min_p: float = Field(0.0, ge=0, le=1)
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] = []
    stop_token_ids: list[TokenId] = Field([], max_length=MAX_STOPS)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] = {}
    min_tokens: int = Field(0, ge=0, lt=INT64)
    ignore_eos: bool = Field(False, description="of the model's own end tokens; stop_token_ids still count")
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="a lower one runs sooner")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @model_validator(mode="after")
    def _options_need_stream(self) -> Self:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is set but stream is not")
        return self

    @property
    def text_rules(self) -> TextRules:
        return TextRules(
            (self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            self.include_stop_str_in_output,
            self.skip_special_tokens,
            self.min_tokens,
        )

    @property
    def grammar_param(self) -> str:
        return "structured_outputs" if self.structured_outputs else "response_format"

    def grammar(self) -> Grammar | None:
        """
        Raises:
            engine.request.RequestError: two grammars, or one that cannot be used.
        """
        sources = [x.source for x in (self.response_format, self.structured_outputs) if x is not None and x.source]
        if not sources:
            return None
        name = self.grammar_param
        if len(sources) > 1:
            raise RequestError("response_format and structured_outputs both say what the output is; set one", name)
        if self.ignore_eos:
            raise RequestError(f"ignore_eos is set beside {name}, which says where the output ends", "ignore_eos")
        kind, source = sources[0]
        try:
            return prepare(kind, source if kind == "regex" else json.dumps(source, ensure_ascii=False))
        except RequestError as e:
            raise RequestError(str(e), name) from e

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
            stop_token_ids=(*self.stop_token_ids, *(() if self.ignore_eos else eos_ids)),
            seed=self.seed,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            grammar=self.grammar(),
        )


class CompletionBody(_Body):
    prompt: Prompts
    max_tokens: int = Field(16, ge=0, lt=INT64, description="0 only with echo: scores the prompt")
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    prompt_logprobs_from: Offset | list[Offset] | None = Field(
        None, description="with echo and logprobs: characters of the prompt, or of each, that are left out of both"
    )
    add_special_tokens: bool = True

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Each prompt that was given as text, in the API's form."""
        return [{"prompt": p, "max_tokens": self.max_tokens} for p in each_prompt(self.prompt) if isinstance(p, str)]

    @model_validator(mode="after")
    def _zero_needs_echo(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is 0 without echo, so there is nothing to answer; expected 1 or more")
        return self

    @model_validator(mode="after")
    def _offsets_need_echo(self) -> Self:
        offsets, prompts = self.prompt_logprobs_from, each_prompt(self.prompt)
        if offsets is not None and not (self.echo and self.logprobs is not None):
            raise ValueError("prompt_logprobs_from says what is echoed with log-probabilities; set echo and logprobs")
        if isinstance(offsets, list) and len(offsets) != len(prompts):
            raise ValueError(
                f"prompt_logprobs_from has {len(offsets)} offsets for {len(prompts)} prompts; "
                "expected one for each, or one number for all"
            )
        return self

    @property
    def echoed_from(self) -> list[int]:
        """Of each prompt the characters that are not echoed."""
        found = self.prompt_logprobs_from or 0
        return found if isinstance(found, list) else [found] * len(each_prompt(self.prompt))


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Message(Strict):
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
    add_special_tokens: bool = Field(False, description="a chat template has its own")

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The conversation, in the API's form."""
        limit = self.max_tokens or self.max_completion_tokens
        messages = [m.plain() for m in self.messages]
        return [{"messages": messages} | ({"max_tokens": limit} if limit else {})]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is set but logprobs is not")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise ValueError("max_tokens and max_completion_tokens are the same; set one of them")
        return self
