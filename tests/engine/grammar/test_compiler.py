"""Grammars in the core: a function of the request's own output, whatever happens around it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.grammar import check
from engine.grammar.check import probe
from engine.grammar.compiler import GrammarCompiler, Matcher, MatchError
from engine.grammar.sources import Grammar, GrammarError, prepare
from engine.protocol import AddRequest, Output
from engine.request import RequestError, SamplingParams
from tests.engine.fake_runner import FakeRunner
from tests.tiny import EOS_ID, SPECIALS, write_byte_tokenizer

VOCAB = 272  # the tokenizer's 260, and ids that no text has
GRAMMARS: list[Grammar] = [
    ("regex", "[a-z]{3,9}(-[a-z]{3,9}){2}"),
    ("choice", json.dumps(["harbour", "harbour master", "quay", "ärger"])),
    ("json_schema", json.dumps({"type": "array", "items": {"enum": [1, "a", None]}, "minItems": 3, "maxItems": 6})),
    ("json_schema", json.dumps({"type": "object", "properties": {"id": {"type": "string", "pattern": "^[0-9]{6}$"}},
                                "required": ["id"], "additionalProperties": False})),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS_ID, 256]}))
    return AtOnce(directory, VOCAB)


@dataclass
class AtOnce(GrammarCompiler):
    """Compiles in the caller's thread, so that a test does not depend on when a thread gets its turn."""

    def compile_in_thread(self, grammar: Grammar) -> Future[Matcher]:
        future: Future[Matcher] = Future()
        try:
            future.set_result(self.compile(grammar))
        except GrammarError as e:
            future.set_exception(e)
        return future


def make_core(compiler: GrammarCompiler | None, num_blocks: int = 256, **changes: Any) -> EngineCore:
    defaults = {"block_size": 4, "max_num_seqs": 24, "max_num_batched_tokens": 64, "prefill_chunk_tokens": 16}
    config = EngineConfig(**{**defaults, **changes})
    return EngineCore(FakeRunner(num_blocks, 4, VOCAB, 400), config, grammars=compiler)


def ask(name: str, i: int, *more: str, **params: Any) -> AddRequest:
    prompt = [(7 * k + i) % 250 for k in range(3 + 11 * (i % 5))]
    defaults = {"max_tokens": 60, "grammar": GRAMMARS[i % 4], "stop_token_ids": (256, EOS_ID), "seed": i,
                "temperature": (0.0, 1.0, 1.4)[i % 3]}  # fmt: skip
    return AddRequest([name, *more], prompt, SamplingParams(**{**defaults, **params}).to_wire())


def run(core: EngineCore, *asks: AddRequest) -> dict[str, tuple[list[int], Output]]:
    """Tokens and last output of each request."""
    for arrival in asks:
        core.submit(arrival)
    tokens, ends = dict[str, list[int]](), dict[str, Output]()
    for _ in range(3000):
        if not core.has_work:
            core.pool.check_idle()
            return {name: (tokens.get(name, []), end) for name, end in ends.items()}
        for output in core.step():
            if output.token is not None:
                tokens.setdefault(output.id, []).append(output.token)
            if output.finish_reason or output.refusal:
                ends[output.id] = output
    raise AssertionError("work left after 3000 steps")


def text_of(tokens: list[int]) -> str:
    return bytes(t for t in tokens if t < 256).decode()


def matches(grammar: Grammar, text: str) -> bool:
    if grammar[0] == "regex":
        return re.fullmatch(grammar[1], text) is not None
    if grammar[0] == "choice":
        return text in json.loads(grammar[1])
    value = json.loads(text)
    if isinstance(value, list):
        return 3 <= len(value) <= 6 and all(v in (1, "a", None) for v in value)
    return value.keys() == {"id"} and re.fullmatch("[0-9]{6}", value["id"]) is not None


def test_outputs_match_and_end(compiler: GrammarCompiler) -> None:
    found = run(make_core(compiler), *(ask(str(i), i) for i in range(24)))
    assert len(found) == 24
    for i in range(24):
        tokens, end = found[str(i)]
        assert end.finish_reason == "stop"
        assert matches(GRAMMARS[i % 4], text_of(tokens)), text_of(tokens)
        assert all(t < 256 for t in tokens[:-1])
        assert tokens[-1] < 256 or tokens[-1] in (256, EOS_ID)
    assert len({text_of(t) for t, _ in found.values()}) > 12


def test_nothing_around_a_request_changes_it(compiler: GrammarCompiler) -> None:
    alone = [run(make_core(compiler), ask("x", i))["x"][0] for i in range(16)]
    plain = [ask(f"p{i}", i, grammar=None, max_tokens=30) for i in range(5)]
    together = run(make_core(compiler), *plain, *(ask(str(i), i) for i in reversed(range(16))))
    assert [together[str(i)][0] for i in range(16)] == alone
    without = run(make_core(None), *plain)
    assert all(together[f"p{i}"][0] == without[f"p{i}"][0] for i in range(5))
    for chunk in (4, 8, 32):
        core = make_core(compiler, prefill_chunk_tokens=chunk, prefix_caching=False)
        assert [run(core, ask(str(i), i))[str(i)][0] for i in range(6)] == alone[:6]


def test_preemption_changes_nothing(compiler: GrammarCompiler) -> None:
    alone = [run(make_core(compiler), ask("x", i))["x"][0] for i in range(12)]
    core = make_core(compiler, num_blocks=27)
    found = run(core, *(ask(str(i), i) for i in range(12)))
    assert core.scheduler.num_preemptions >= 2
    assert [found[str(i)][0] for i in range(12)] == alone


def test_each_sample_has_a_matcher_of_its_own(compiler: GrammarCompiler) -> None:
    names = [f"n{k}" for k in range(6)]
    together = run(make_core(compiler), ask(names[0], 0, *names[1:], temperature=1.2))
    assert run(make_core(compiler), ask("x", 0, temperature=1.2))["x"][0] == together["n0"][0]
    assert all(matches(GRAMMARS[0], text_of(together[n][0])) for n in names)
    assert len({tuple(together[n][0]) for n in names}) == 6
    squeezed = run(make_core(compiler, num_blocks=18, max_num_seqs=3), ask(names[0], 0, *names[1:], temperature=1.2))
    assert {n: squeezed[n][0] for n in names} == {n: together[n][0] for n in names}


def test_a_user_s_stop_token_ends_it_early(compiler: GrammarCompiler) -> None:
    found = run(make_core(compiler), ask("x", 0, stop_token_ids=(ord("-"),), temperature=0.0))
    tokens, end = found["x"]
    assert tokens[-1] == ord("-")
    assert end.finish_reason == "stop"


def test_an_abort_while_it_compiles_leaves_nothing(compiler: GrammarCompiler) -> None:
    core = make_core(GrammarCompiler(compiler.artifact, VOCAB))  # with a thread
    core.submit(ask("a", 0, "b"))
    core.abort(["a"])
    ends = {o.id: o.finish_reason for o in core.step()}
    assert ends == {"a": "abort", "b": "abort"}
    assert run(core) == {}
    assert not core.requests
    assert run(core, ask("a", 0))["a"][1].finish_reason == "stop"


def test_refusals_of_the_core(compiler: GrammarCompiler) -> None:
    core = make_core(compiler, max_num_seqs=2, max_queue=1)
    found = run(core, ask("bad", 0, grammar=("regex", "(")), ask("long", 0, max_tokens=1000), ask("good", 0))
    assert (found["bad"][1].refusal, found["long"][1].refusal) == ("invalid", "too_long")
    assert "unclosed group" in str(found["bad"][1].error)
    assert found["good"][1].finish_reason == "stop"
    many = run(core, ask("0", 0, "1"), ask("2", 0, "3"))
    assert {name: o.refusal for name, (_, o) in many.items()} == dict.fromkeys("01") | dict.fromkeys("23", "queue_full")
    assert not core.requests
    none = run(make_core(None), ask("x", 0))["x"][1]
    assert "without a compiler of grammars" in str(none.error)
    for params in ({"ignore_eos": True}, {"min_tokens": 3}):
        with pytest.raises(RequestError, match=f"{next(iter(params))} is .* beside a grammar"):
            SamplingParams(9, grammar=GRAMMARS[0], **params)


def test_too_much_work_in_a_step_ends_the_request_alone(compiler: GrammarCompiler) -> None:
    class Broken:
        def allowed(self) -> Any:
            raise MatchError("too many states")

        def accept(self, token: int) -> bool:
            raise AssertionError(token)

    core = make_core(compiler)
    core.submit(ask("x", 0))
    core.submit(ask("y", 1))
    while not core.scheduler.waiting and not core.scheduler.running:
        core.step()
    core.requests["x"].matcher = Broken()
    found = run(core)
    assert (found["x"][1].finish_reason, found["x"][1].refusal) == ("error", "invalid")
    assert found["x"][1].error == "too many states"
    assert found["y"][1].finish_reason == "stop"


def walk(matcher: Matcher, text: str) -> bool:
    """Whether the bytes can be followed to a place where the text may end."""
    for byte in text.encode():
        if byte not in matcher.allowed():
            return False
        if matcher.accept(byte):
            return True
    return EOS_ID in matcher.allowed()


def test_end_tokens_are_all_of_the_models(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(("regex", "a*"))
    assert matcher.allowed().tolist() == [ord("a"), 256, EOS_ID]
    assert not matcher.accept(ord("a"))
    assert matcher.accept(EOS_ID)
    fixed = compiler.compile(("regex", "ab"))
    assert fixed.allowed().tolist() == [ord("a")]
    assert [fixed.accept(ord("a")), fixed.accept(ord("b"))] == [False, True]
    anything = compiler.compile(("regex", r"(.|\n)+")).allowed().tolist()
    assert [t for t in anything if t >= 256] == []  # special tokens are no text
    assert len(SPECIALS) == 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), min_size=1, max_size=5))
def test_choices_are_taken_literally(compiler: GrammarCompiler, choices: list[str]) -> None:
    matcher = compiler.compile(("choice", json.dumps(choices)))
    for text in choices:
        assert walk(matcher.fork(), text)
    for other in ("", choices[0] + "x", choices[0][:-1], ".", "a"):
        if other not in choices and not any(other.startswith(c) for c in choices):
            assert not walk(matcher.fork(), other)


def test_forks_do_not_share_their_state(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(("regex", "(ab|cd)+"))
    one, two = matcher.fork(), matcher.fork()
    one.accept(ord("a"))
    assert one.allowed().tolist() == [ord("b")]
    assert two.allowed().tolist() == matcher.allowed().tolist() == [ord("a"), ord("c")]
    with pytest.raises(MatchError, match="cannot be followed"):
        two.accept(ord("x"))
    assert matcher.allowed().tolist() == [ord("a"), ord("c")]


def test_a_compiled_grammar_is_used_again_and_stays_as_it_was(compiler: GrammarCompiler) -> None:
    threaded = GrammarCompiler(compiler.artifact, VOCAB)
    one = threaded.compile_in_thread(("regex", "[ab]c")).result(30)
    one.fork().accept(ord("a"))
    assert threaded.compile_in_thread(("regex", "[ab]c")).result(30) is one
    assert one.allowed().tolist() == [ord("a"), ord("b")]
    for i in range(40):
        threaded.compile_in_thread(("regex", f"x{i}")).result(30)
    assert threaded.compile_in_thread(("regex", "[ab]c")).result(30) is not one
    core = make_core(threaded)
    assert (
        run(core, ask("a", 0))["a"][0]
        == run(core, ask("b", 0))["b"][0]
        == run(make_core(compiler), ask("c", 0))["c"][0]
    )


def test_blanks_are_bounded(compiler: GrammarCompiler) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
                         "additionalProperties": False})  # fmt: skip
    matcher = compiler.compile(("json_schema", schema))
    for text in ('{"a":1}', '{"a": 1}', '{ "a" : 1 }', '{\n    "a": 1\n}', json.dumps({"a": 1}, indent=2)):
        assert walk(matcher.fork(), text), text
    for text in ('{"a":  1}', '{\n\n"a": 1}', "{" + "\n" + " " * 33 + '"a": 1}', '{"a": 1, "b": 2}', '{"a":\t1}'):
        assert not walk(matcher.fork(), text), text


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (("regex", "a" * 4097), "4097 bytes, this server takes 4096"),
        (("regex", "\\bword"), "regular expression cannot be used"),
        (("json_schema", json.dumps({"enum": ["x" * 33_000]})), "JSON schema has 330.. bytes"),
        (("json_schema", json.dumps({"not": {"type": "string"}})), 'Unimplemented keys: ."not".'),
        (("json_schema", json.dumps({"type": "string", "format": "nonsense"})), "Unknown format: nonsense"),
        (("json_schema", json.dumps({"oneOf": [{"minimum": 1}, {"maximum": 3}]})), "oneOf.* not supported. Use anyOf"),
        (("json_schema", json.dumps({"minimum": 10**400})), "cannot be used: number out of range"),
        (("json_schema", json.dumps({"$ref": "http://example.org/schema"})), "cannot be used"),
        (("json_schema", '{"a":' * 70 + "1" + "}" * 70), "more than 64 levels"),
        (("choice", json.dumps([str(i) for i in range(1001)])), "1001 choices"),
    ],
)
def test_grammars_that_are_refused(compiler: GrammarCompiler, grammar: Grammar, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        compiler.compile(grammar)


def test_a_schema_cannot_loosen_its_own_reading(compiler: GrammarCompiler) -> None:
    inner = {"type": "object", "properties": {"a": {"x-guidance": {"lenient": True}, "uniqueItems": True}}}
    with pytest.raises(GrammarError, match="Unimplemented keys"):
        compiler.compile(("json_schema", json.dumps(inner)))
    with pytest.raises(GrammarError, match="x-guidance"):
        prepare("json_schema", json.dumps({"x-guidance": {"lenient": True}, "uniqueItems": True}))


def test_the_probe_refuses_what_is_slow_to_follow(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    for grammar in GRAMMARS:
        probe(compiler.compile(grammar))
    monkeypatch.setattr(check, "PROBE_S", 1e-9)
    with pytest.raises(GrammarError, match="16 may take 0 ms"):
        probe(compiler.compile(("regex", "((((a{9}){9}){9}){9}){9}")))


def test_a_tokenizer_that_cannot_be_read(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(GrammarError, match="tokenizer cannot be used with grammars"):
        GrammarCompiler(tmp_path, VOCAB).compile(GRAMMARS[0])


def test_the_library_is_loaded_with_the_first_grammar() -> None:
    code = "import engine.core, engine.process, engine.server.app, sys; print('llguidance' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert found.stdout.strip() == "False"
