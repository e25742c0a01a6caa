from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.artifact import ArtifactError
from engine.memory import status_bytes
from engine.text import (
    StopFilter,
    TemplateError,
    TextCodec,
    TextRules,
    TextStream,
    TooManyTokensError,
    WindowDetokenizer,
)
from tests.tiny import EOS_ID, make_tiny_artifact


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def codec(directory: Path) -> TextCodec:
    return TextCodec(directory)


def streamed(codec: TextCodec, ids: list[int]) -> list[str]:
    stream = TextStream(codec.detokenizer())
    return [*(stream.push(t) for t in ids), stream.finish()]


@settings(max_examples=200)
@given(text=st.text(max_size=30))
def test_deltas_are_the_text(codec: TextCodec, text: str) -> None:
    ids, _ = codec.encode(text)
    assert len(ids) == len(text.encode())  # one token a byte: every code point is split at every position
    assert "".join(streamed(codec, ids)) == text


@settings(max_examples=300)
@given(
    ids=st.lists(
        st.one_of(st.integers(0, 259), st.sampled_from([0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80])), max_size=30
    )
)
def test_deltas_are_the_full_decode_of_any_tokens(codec: TextCodec, ids: list[int]) -> None:
    assert "".join(streamed(codec, ids)) == codec.tokenizer.decode(ids)


def test_no_half_character_goes_out(codec: TextCodec) -> None:
    ids, _ = codec.encode("a€b")
    assert streamed(codec, ids) == ["a", "", "", "€", "b", ""]
    assert streamed(codec, ids[:3]) == ["a", "", "", "\ufffd"]


def byte_fallback_tokenizer() -> Tokenizer:
    pieces = ["▁", "▁he", "llo", "▁wor", "ld", *(f"<0x{b:02X}>" for b in range(256))]
    tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.fixture(scope="module")
def fallback(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    directory = tmp_path_factory.mktemp("fallback")
    byte_fallback_tokenizer().save(str(directory / "tokenizer.json"))
    return TextCodec(directory)


@settings(max_examples=200)
@given(st.lists(st.one_of(st.integers(1, 4), st.sampled_from("€😀é\ufffd")), max_size=12))
def test_window_deltas_are_the_full_decode(fallback: TextCodec, parts: list[int | str]) -> None:
    ids = [i for p in parts for i in ([p] if isinstance(p, int) else [5 + b for b in p.encode()])]
    detokenizer = fallback.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    deltas = [detokenizer.push(i) for i in ids]
    assert "".join([*deltas, detokenizer.flush()]) == fallback.tokenizer.decode(ids)
    assert "".join(deltas) == fallback.tokenizer.decode(ids)  # every character is complete, so nothing waits


def test_half_a_character_at_the_end(fallback: TextCodec) -> None:
    detokenizer = fallback.detokenizer()
    assert [detokenizer.push(t) for t in (1, 5 + 0xE2, 5 + 0x82)] == ["he", "", ""]
    assert detokenizer.flush() == "\ufffd\ufffd"


def test_without_byte_tokens_a_replacement_character_waits_a_little() -> None:
    tokenizer = byte_fallback_tokenizer()
    detokenizer = WindowDetokenizer(tokenizer.decode)
    ids = [1, *(5 + b for b in "€".encode()), 2]
    assert [detokenizer.push(i) for i in ids] == ["he", "", "", "€", "llo"]


def test_tokens_that_are_not_byte_level_have_names(fallback: TextCodec) -> None:
    assert [fallback.token_string(t) for t in (1, 2, 5 + ord("a"), 5 + 0xE2)] == [" he", "llo", "a", "bytes:\\xe2"]


@settings(max_examples=300)
@given(
    text=st.text(alphabet="abc", max_size=20),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 20), max_size=8),
)
def test_stop_strings_whatever_the_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    ends = sorted({min(c, len(text)) for c in cuts} | {len(text)})
    pieces = [text[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    found = StopFilter(stops)
    out = [found.push(p) for p in pieces]
    complete = [(n, text[:n]) for n in range(len(text) + 1) if any(text[:n].endswith(s) for s in stops)]
    if complete:
        first = complete[0][1]
        expected = min((first[: -len(s)] for s in stops if first.endswith(s)), key=len)
        assert found.stopped
        assert "".join(out) == expected
    else:
        assert not found.stopped
        open_starts = [n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])]
        assert len("".join(out)) == len(text) - max(open_starts, default=0)
        assert "".join(out) + found.flush() == text


def test_stop_string_in_the_middle_of_a_token() -> None:
    found = StopFilter(["END"])
    assert [found.push(p) for p in ("on", "e E", "N", "Dtwo")] == ["on", "e ", "", ""]
    assert found.stopped


def test_a_stop_string_of_split_characters(codec: TextCodec) -> None:
    stream = TextStream(codec.detokenizer(), TextRules(("€",)))
    ids, _ = codec.encode("ab€cd")
    assert "".join(stream.push(t) for t in ids) == "ab"
    assert stream.stopped


@settings(max_examples=150)
@given(
    text=st.text(alphabet="ab€", min_size=1, max_size=14),
    stop=st.text(alphabet="ab€", min_size=1, max_size=3),
    min_tokens=st.integers(0, 8),
    include=st.booleans(),
)
def test_stop_strings_behind_the_first_tokens(
    codec: TextCodec, text: str, stop: str, min_tokens: int, include: bool
) -> None:
    ids, _ = codec.encode(text)
    stream = codec.stream(TextRules((stop,), include, min_tokens=min_tokens))
    found = []
    for token in ids:
        found.append(stream.push(token))
        if stream.stopped:
            break
    else:
        found.append(stream.finish())
    free = len("".join(streamed(codec, ids[:min_tokens])[:-1]))  # characters that are complete by then
    at = text.find(stop, free)
    assert stream.stopped == (at >= 0)
    assert "".join(found) == (text if at < 0 else text[: at + len(stop) * include])


def test_special_tokens_as_text(codec: TextCodec) -> None:
    ids = [*b"a", EOS_ID, *b"b"]
    shown, hidden = codec.stream(TextRules(skip_special_tokens=False)), codec.stream(TextRules())
    assert "".join(shown.push(t) for t in ids) == "a<|im_end|>b"
    assert "".join(hidden.push(t) for t in ids) == "ab"


def test_end_ids_are_a_union(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 3]}))
    assert TextCodec(tmp_path).eos_ids == (3, 5, EOS_ID)


def test_offsets(codec: TextCodec) -> None:
    ids, offsets = codec.encode("a€b")
    assert ids == list("a€b".encode())
    assert offsets == [0, 1, 1, 1, 2]


def test_token_names(codec: TextCodec) -> None:
    assert codec.token_string(ord("a")) == "a"
    assert codec.token_string(0xE2) == "bytes:\\xe2"
    assert codec.token_string(EOS_ID) == "<|im_end|>"
    assert codec.token_string(271) == ""


def test_chat_template_as_in_transformers(directory: Path, codec: TextCodec) -> None:
    from transformers import AutoTokenizer

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <&> ü"}]
    reference = AutoTokenizer.from_pretrained(directory)
    text = codec.render_chat(messages)
    assert text == reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids, _ = codec.encode(text, add_special_tokens=False)
    assert ids == reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids.count(257) == 3  # one begin marker for each turn, none doubled


def test_template_file_wins_and_is_sandboxed(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages.append(1) }}")
    with pytest.raises(TemplateError, match="cannot render"):
        TextCodec(tmp_path).render_chat([])
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="roles must alternate"):
        TextCodec(tmp_path).render_chat([])
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ArtifactError, match="does not compile"):
        TextCodec(tmp_path)


def test_no_template(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(TemplateError, match="use /v1/completions"):
        TextCodec(tmp_path).render_chat([])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "not found"),
        ("tokenizer.json", "{", "cannot be read|can be read"),
        ("config.json", "{", "not JSON"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    make_tiny_artifact(tmp_path)
    (tmp_path / name).unlink()
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises(ArtifactError, match=message):
        TextCodec(tmp_path)


def test_truncation_in_the_tokenizer_file_is_off(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(TextCodec(tmp_path).encode("0123456789")[0]) == 10


def test_nothing_heavy_is_imported() -> None:
    import subprocess

    code = "import sys, engine.server.__main__; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_text_that_is_too_long_is_only_counted(codec: TextCodec) -> None:
    assert len(codec.encode("abcde", most=5)[0]) == 5
    with pytest.raises(TooManyTokensError, match="has 5 tokens") as e:
        codec.encode("abcde", most=4)
    assert e.value.count == 5
    with pytest.raises(TooManyTokensError, match="has 70 tokens"):
        codec.encode("a" * 70, most=4)


@pytest.mark.skipif(sys.platform != "linux", reason="proc_pid_status(5)")
def test_many_different_texts_leave_nothing_behind(tmp_path: Path) -> None:
    """In one of several tokenizers at least: the process may grow for reasons of its own meanwhile."""
    artifact, grown = make_tiny_artifact(tmp_path), []
    for _ in range(5):
        codec = TextCodec(artifact)
        before = status_bytes("RssAnon")
        for i in range(8000):  # the tiny tokenizer takes each for one word
            codec.encode(f"{i:05d}" * 40)
        after = status_bytes("RssAnon")
        assert before is not None
        assert after is not None
        grown.append(after - before)
        if grown[-1] < 4 * 2**20:
            return
    raise AssertionError(f"the process grew by {grown} bytes")
