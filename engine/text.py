"""Tokens to text and back: the tokenizer of an artifact, streaming decoding, stop strings, chat templates.

Loads no torch and no transformers, so that the server stays small.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from engine.artifact import ArtifactError

REPLACEMENT = "\ufffd"
CACHED_WORDS = 256


CHARS_TO_COUNT_FIRST = 16  # a token; a text that has more of them is likely to be too long, which is found out quickly


class TooManyTokensError(ValueError):
    """A text that is longer than was asked for."""

    def __init__(self, count: int) -> None:
        super().__init__(f"the text has {count} tokens")
        self.count = count


class TemplateError(ValueError):
    """Messages that the chat template cannot render, or no template."""


class Detokenizer(Protocol):
    def push(self, token: int) -> str:
        """Text that is certain now. All pushes and the flush together are the decoding of all tokens."""

    def flush(self) -> str:
        """What is left at the end, for instance of a character that never became complete."""


class ByteDetokenizer:
    """For byte-level tokenizers, where a text's bytes are those of its tokens: exact, and constant work a token."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._bytes(token))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For other tokenizers, whose decoding of a token depends on its neighbours (leading spaces, byte fallback).

    Decodes a window that starts one stable piece back and returns what is new, but not the beginning of a character.
    ``byte_tokens`` are the tokens that stand for one byte each, of tokenizers that fall back to bytes; without them, a
    replacement character at the end may be such a beginning, for at most ``_PATIENCE`` tokens (a character has four
    bytes).
    """

    _PATIENCE = 4

    def __init__(self, decode: Callable[[list[int]], str], byte_tokens: Mapping[int, int] | None = None) -> None:
        self._decode, self._byte_tokens = decode, byte_tokens or {}
        self._stable: list[int] = []
        self._new: list[int] = []

    def push(self, token: int) -> str:
        self._new.append(token)
        known, text = self._decode(self._stable), self._decode(self._stable + self._new)
        if self._is_open(text):
            return ""
        if len(text) > len(known):
            self._stable, self._new = self._new, []
        return text[len(known) :]

    def _is_open(self, text: str) -> bool:
        if not self._byte_tokens:
            return text.endswith(REPLACEMENT) and len(self._new) < self._PATIENCE
        run = list(takewhile(lambda b: b is not None, (self._byte_tokens.get(t) for t in reversed(self._new))))
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            decoder.decode(bytes(b for b in reversed(run) if b is not None))
        except UnicodeDecodeError:
            return False
        return bool(decoder.getstate()[0])

    def flush(self) -> str:
        return self._decode(self._stable + self._new)[len(self._decode(self._stable)) :] if self._new else ""


class StopFilter:
    """Ends a text before the first stop string (after it if ``include_stop``), however it is spread over pieces, and
    lets no part of one out before that is decided.

    Of several the one that is complete first counts, of these the longest: so the result does not depend on how the
    text was cut into tokens.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        self._stops, self._include = [s for s in stops if s], include_stop
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        if self.stopped:
            return ""
        self._held += text
        found = [(at + len(s), at) for s in self._stops if (at := self._held.find(s)) >= 0]
        if found:
            self.stopped = True
            end, start = min(found)
            out, self._held = self._held[: end if self._include else start], ""
            return out
        keep = max((_overlap(self._held, s) for s in self._stops), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out

    def flush(self) -> str:
        out, self._held = self._held, ""
        return out


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``stop``."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return len(text) - at if at >= 0 else 0


@dataclass(frozen=True)
class TextRules:
    """What of an output's tokens becomes its text. Stop strings are looked for behind the first ``min_tokens`` tokens,
    which always belong to the output."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0


class TextStream:
    """Text of one output: token in, text out, up to a stop string."""

    def __init__(self, detokenizer: Detokenizer, rules: TextRules = TextRules()) -> None:
        self._detokenizer, self._filter = detokenizer, StopFilter(rules.stops, rules.include_stop)
        self._unfiltered_tokens = rules.min_tokens
        self.num_decoded_chars = 0  # of all tokens so far, held back or not

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._filter.stopped

    def push(self, token: int) -> str:
        text = self._detokenizer.push(token)
        if self._unfiltered_tokens > 0:
            self._unfiltered_tokens -= 1
            self.num_decoded_chars += len(text)
            return text
        return self._take(text)

    def finish(self) -> str:
        """The rest, when no token follows."""
        return self._take(self._detokenizer.flush()) + self._filter.flush()

    def _take(self, text: str) -> str:
        self.num_decoded_chars += len(text)
        return self._filter.push(text)


class TextCodec:
    """The tokenizer, the end-of-sequence ids and the chat template of a model directory. Safe to use from threads."""

    def __init__(self, directory: Path) -> None:
        """
        Raises:
            ArtifactError: no ``tokenizer.json``, or a file that does not parse.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ArtifactError(
                f"{path} not found; expected the tokenizer beside the weights; build the artifact again"
            )
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
            spec = json.loads(path.read_bytes())
        except Exception as e:  # the library raises bare Exception
            raise ArtifactError(f"{path} is not a tokenizer that can be read: {e}") from e
        _bound_cache(self.tokenizer)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._settings = _read_json(directory / "tokenizer_config.json")
        self._special_ids = {t["id"] for t in spec.get("added_tokens", []) if t.get("special")}
        self._byte_level = _is_byte_level(spec.get("decoder"))
        self._byte_tokens = self._fallback_tokens()
        self._anchor = self.tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        self._chars_to_bytes = {char: byte for byte, char in enumerate(_byte_chars())}
        self.eos_ids = self._eos_ids(directory)
        self._template = self._compile_template(directory)

    # Encoding

    def encode(
        self, text: str, add_special_tokens: bool = True, most: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Token ids, and for each the number of characters of ``text`` before it.

        Raises:
            TooManyTokensError: there are more than ``most``. Known before Python has an object for each of them, which
                for a text of a megabyte would be more than 100 MiB.
        """
        # The calls for batches let other threads run meanwhile; the one for a single text does not.
        if most is not None and len(text) > CHARS_TO_COUNT_FIRST * most:
            (counted,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            if len(counted) > most:
                raise TooManyTokensError(len(counted))
        (encoding,) = self.tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        if most is not None and len(encoding) > most:
            raise TooManyTokensError(len(encoding))
        offsets, end = [], 0
        for (start, stop), added in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
            if added and stop == 0:
                offsets.append(end)
            else:
                offsets.append(min(start, end))  # a tokenizer may count the space before a word as nobody's
                end = max(end, stop)
        return encoding.ids, offsets

    # Decoding

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        if self._byte_level:
            return ByteDetokenizer(
                lambda t: b"" if skip_special_tokens and t in self._special_ids else self.bytes_of(t)
            )
        return WindowDetokenizer(lambda ids: self._decode(ids, skip_special_tokens), self._byte_tokens)

    def _fallback_tokens(self) -> dict[int, int]:
        found = {self.tokenizer.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
        return {token: byte for token, byte in found.items() if token is not None} if len(found) == 256 else {}

    def stream(self, rules: TextRules) -> TextStream:
        return TextStream(self.detokenizer(rules.skip_special_tokens), rules)

    def _decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def bytes_of(self, token: int) -> bytes:
        """The token's own bytes; of a tokenizer that is not byte-level, what it adds to a text. Empty for an unused
        id."""
        if token in self._byte_tokens:
            return bytes([self._byte_tokens[token]])
        if not self._byte_level:
            before = self._decode(self._anchor, skip_special_tokens=False)
            return self._decode([*self._anchor, token], skip_special_tokens=False).removeprefix(before).encode()
        piece = self.tokenizer.id_to_token(token) or ""
        try:
            return bytes(self._chars_to_bytes[c] for c in piece)
        except KeyError:
            return str(piece).encode()

    def token_string(self, token: int) -> str:
        """A name for a token: its text, or ``bytes:\\xe2\\x82`` where it is no text by itself."""
        data = self.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{b:02x}" for b in data)

    # Ends and templates

    def _eos_ids(self, directory: Path) -> tuple[int, ...]:
        """The union of what model config, generation config and tokenizer call the end."""
        found: set[int] = set()
        vocab = _read_json(directory / "config.json").get("vocab_size")
        for name in ("config.json", "generation_config.json"):
            value = _read_json(directory / name).get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            for token in ids:
                if type(token) is not int or token < 0 or (isinstance(vocab, int) and token >= vocab):
                    raise ArtifactError(
                        f"{directory / name}: eos_token_id has {token!r}; expected ids of the vocabulary of {vocab}"
                    )
            found.update(ids)
        token = self.tokenizer.token_to_id(self._special("eos_token") or "")
        return tuple(sorted(found | ({token} if token is not None else set())))

    def _special(self, name: str) -> str | None:
        value = self._settings.get(name)
        return value.get("content") if isinstance(value, dict) else value

    def _compile_template(self, directory: Path) -> Any:
        path = directory / "chat_template.jinja"
        source = path.read_text(encoding="utf-8") if path.is_file() else self._settings.get("chat_template")
        if isinstance(source, list):
            source = next((t["template"] for t in source if t.get("name") == "default"), None)
        if not source:
            return None
        if not isinstance(source, str):
            raise ArtifactError(f"the chat template of {directory} is {source!r:.80}; expected a text")
        import jinja2
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
        try:
            return environment.from_string(source)
        except jinja2.TemplateError as e:
            raise ArtifactError(f"the chat template of {directory} does not compile: {e}") from e

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt for the next assistant turn. Encode it without adding special tokens: the template has them.

        Raises:
            TemplateError: no template, or one that refuses the messages.
        """
        if self._template is None:
            raise TemplateError("this model has no chat template; use /v1/completions")
        special = {k: self._special(k) or "" for k in ("bos_token", "eos_token", "unk_token", "pad_token")}
        import jinja2

        try:
            return str(self._template.render(messages=messages, add_generation_prompt=True, **special))
        except (jinja2.TemplateError, TypeError, ValueError) as e:
            raise TemplateError(f"the chat template cannot render these messages: {e}") from e


def _bound_cache(tokenizer: Tokenizer) -> None:
    """The library keeps 10,000 words with their tokens, each of up to 256 bytes: 40 MB where a text has few blanks."""
    resize = getattr(tokenizer.model, "_resize_cache", None)  # not of every kind of model
    if resize is not None:
        resize(CACHED_WORDS)


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    return all(part.get("type") == "ByteLevel" for part in parts) and bool(parts)


def _byte_chars() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE (Radford et al. 2019, GPT-2's encoder)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as e:
        raise ArtifactError(f"{path} is not JSON: {e}; build the artifact again") from e
    if not isinstance(found, dict):
        raise ArtifactError(f"{path} holds a {type(found).__name__}; expected an object")
    return found


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise ValueError(message)
