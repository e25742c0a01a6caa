"""The tokenizer of a GGUF file as ``tokenizer.json`` and ``tokenizer_config.json``.

GGUF stores vocabulary and merges of a byte-level BPE in full, but the splitting before it only by name
(``tokenizer.ggml.pre``). Readers that ignore the name split, for instance, digits and runs of white space otherwise
than the model was trained with, which costs accuracy without any error; so an unknown name is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import SeatrialError
from pipeline.fetch.gguf_file import GgufFile

CONTROL, USER_DEFINED = 3, 4  # token types of the GGUF specification
# Llama 3's pattern: contractions, words with one leading separator, at most three digits, punctuation, white space.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama3() -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# name -> (pre-tokenizer, whether a piece that is a token is taken whole, whether a BOS is added by default)
PRE_TOKENIZERS: dict[str, tuple[Callable[[], Any], bool, bool]] = {
    "gpt-2": (_gpt2, False, False),
    "smollm": (_smollm, False, False),
    "llama-bpe": (_llama3, True, True),
}


def write_tokenizer(gguf: GgufFile, directory: Path) -> None:
    """
    Raises:
        SeatrialError: a tokenizer that is not a byte-level BPE, or a splitting that is not in the table.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    model, pre = gguf.need("tokenizer.ggml.model"), gguf.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in PRE_TOKENIZERS:
        raise SeatrialError(
            f"{gguf.path}: tokenizer {model!r} with pre-tokenizer {pre!r} is not read from GGUF (read: 'gpt2' with "
            f"{', '.join(map(repr, PRE_TOKENIZERS))}); use an hf: or path: source of this model"
        )
    build, ignore_merges, default_bos = PRE_TOKENIZERS[pre]
    tokens: list[str] = gguf.need("tokenizer.ggml.tokens")
    types: list[int] = gguf.need("tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ", 1)) for m in gguf.need("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(
        models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, ignore_merges=ignore_merges)
    )
    tokenizer.pre_tokenizer = build()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=True) if k == CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t, k in zip(tokens, types, strict=True) if k == USER_DEFINED]
    )
    special = {
        role: tokens[token_id]
        for role, key in _ROLES.items()
        if (token_id := gguf.get(f"tokenizer.ggml.{key}_token_id")) is not None
    }
    add_bos = bool(gguf.get("tokenizer.ggml.add_bos_token", default_bos)) and "bos_token" in special
    if add_bos:
        bos = special["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[(bos, tokens.index(bos))]
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        # The class that takes tokenizer.json as it is; model-specific classes build their own pre-tokenizer.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "add_bos_token": add_bos,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.need("llama.context_length"),
    }
    if template := gguf.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
