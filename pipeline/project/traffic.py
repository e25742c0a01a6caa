"""The load profile of a new project: Seatrial's `ci`, or one with shorter prompts where the model's context is short.

Profiles count words, and how many tokens a word is depends on the tokenizer: one or a little more in a usual
vocabulary, five or six where bytes are tokens. Requests beyond the context would all be refused, which says nothing of
the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import SeatrialError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from loadtests.workload import Profile

USUAL, SHORT, FILE = "ci", "ci-short", "load-short.yaml"
FACTORS = (0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)  # of the lengths of `ci`, the longest that fits is taken
USABLE = 0.9  # of the context: words differ in length, and chat templates bring some of their own
MARKS = "<|im_start|>assistant\n<|im_end|>\n"  # around a message, about
KEEPS_SYSTEM = 0.5  # below this factor a system message that all share, of some 60 words, is left out
LEAST_WORDS = 4
COUNTED_WORDS, COUNTED_SYSTEMS = 2000, 10
TOP = 1 - 1e-12  # the share below which the longest length lies


def short_profile(model: Path, context: int) -> str | None:
    """YAML of the profile that suits a model directory; None where `ci` does, or where there is no tokenizer to count.

    Raises:
        SeatrialError: its tokenizer.json is none, or the context is too short for any request.
    """
    if not (model / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    from loadtests.workload import Profile, load_profile

    try:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    except Exception as e:  # the library raises a bare Exception
        raise SeatrialError(
            f"--model {model}: tokenizer.json: {e}; expected one that the library tokenizers reads"
        ) from e
    usual = load_profile(USUAL)
    if _longest(usual, tokenizer) <= context * USABLE:
        return None
    for factor in FACTORS:
        value = _shortened(usual.model_dump(mode="json", exclude_none=True), factor)
        if _longest(Profile.model_validate(value), tokenizer) <= context * USABLE:
            return _text(value, context, factor)
    raise SeatrialError(
        f"--model {model}: a context of {context} tokens (max_position_embeddings) is too short for a load test: even "
        f"prompts of {FACTORS[-1]:.0%} of the usual lengths do not fit. Take a model with a longer context"
    )


def _longest(profile: Profile, tokenizer: Tokenizer) -> int:
    """Tokens of the longest request that the profile allows, about, its answer included."""
    from loadtests.distributions import length_at
    from loadtests.traffic import prompt_of
    from loadtests.words import about_tokens, rng_of, story_of

    def tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    story = story_of(rng_of(0, "tokens a word"), COUNTED_WORDS)
    a_word, marks, longest = tokens(story) / about_tokens(story), tokens(MARKS), 0.0
    for spec in profile.stages:
        if spec.prompt_tokens is None or spec.output_tokens is None:
            raise TypeError(f"profile {profile.name} replays a trace in {spec.name}")  # `ci` does not
        others = [prompt_of(spec, 0, i).messages[:-1] for i in range(COUNTED_SYSTEMS)]
        system = max(sum(tokens(text) + marks for _, text in messages) for messages in others)
        asked, answered = (length_at(lengths, TOP) for lengths in (spec.prompt_tokens, spec.output_tokens))
        longest = max(longest, system + asked * a_word + 2 * marks + answered)
    return round(longest)


def _shortened(value: dict[str, Any], factor: float) -> dict[str, Any]:
    stages = []
    for stage in value["stages"]:
        lengths = stage["prompt_tokens"]
        scaled = {k: max(LEAST_WORDS, round(v * factor)) for k, v in lengths.items() if k in {"min", "median", "max"}}
        system = "none" if stage["system"] == "shared" and factor < KEEPS_SYSTEM else stage["system"]
        stages.append(stage | {"prompt_tokens": lengths | scaled, "system": system})
    return value | {"name": SHORT, "stages": stages}


def _text(value: dict[str, Any], context: int, factor: float) -> str:
    import yaml

    return (
        f"# Made by `seatrial init` for a context of {context} tokens: Seatrial's profile {USUAL} with prompts of "
        f"{factor:.0%} of its\n# lengths. `seatrial load plan {FILE}` says what it sends; a release needs stages of 30 "
        "minutes (kind: release).\n" + yaml.safe_dump(value, sort_keys=False)
    )
