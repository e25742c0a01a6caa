"""Parameters that clients send without meaning anything by it: taken at the value that changes nothing, only there.

A client library may send its defaults, a framework the whole OpenAI or vLLM vocabulary. At the value below each of
these asks for what this server does anyway; at any other it is refused by name, as is what no body knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # OpenAI
    "audio": (),
    "best_of": (1,),  # and the value of n
    "echo": (False,),
    "function_call": ("none",),
    "logprobs": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),  # of no calls
    "prediction": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),  # without tools, auto is none
    # vLLM and its relatives
    "add_generation_prompt": (True,),
    "bad_words": ([],),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "length_penalty": (1.0, 1),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
}
# In a message or an option: what OpenAI's client gives back of an answer of ours.
NEUTRAL_NESTED: Mapping[str, tuple[Any, ...]] = {"include_obfuscation": (False,), "tool_calls": ([],)}


def without_neutral(data: dict[str, Any], known: Mapping[str, Any], table: Mapping[str, tuple[Any, ...]]) -> Any:
    """``data`` without nulls, which mean the default, and without what changes nothing; ``known`` are the body's own
    parameters."""
    kept = {k: v for k, v in data.items() if v is not None}
    if kept.get("best_of") == kept.get("n", 1) and "best_of" not in known:
        kept.pop("best_of", None)
    return {k: v for k, v in kept.items() if k in known or not _is_one_of(v, table.get(k, ()))}


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)


def described(name: str) -> str:
    """The values at which a parameter is taken, in words; empty if there is none."""
    values = NEUTRAL.get(name) or NEUTRAL_NESTED.get(name) or ()
    return " or ".join(repr(v) for v in values)
