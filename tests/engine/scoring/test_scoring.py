"""Scores against transformers and the formula; references on disk; the same bytes however the prompt was cut."""

from __future__ import annotations

import fcntl
import math
import random
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.process import build
from engine.protocol import AddRequest, Output
from engine.request import RequestError, SamplingParams
from engine.scoring.prompt_score import PromptScore, ScoringError, divergence, log_probabilities, open_score
from engine.scoring.references import ReferenceStore, StorageError, tokens_digest
from tests.engine.fake_runner import FakeRunner, fake_logits
from tests.tiny import make_tiny_artifact

VOCAB = 50
IDENTITY = {"model": "fake", "model_digest": "0" * 64}
TOKENS = random.Random(3).choices(range(VOCAB), k=37)


def logits_of(tokens: list[int]) -> torch.Tensor:
    return torch.stack([fake_logits(tokens[:i], VOCAB) for i in range(1, len(tokens))])


def store_at(directory: Path, limit_bytes: int = 1 << 20, vocab: int = VOCAB, **identity: str) -> ReferenceStore:
    return ReferenceStore(directory, limit_bytes, vocab, IDENTITY | identity)


def stored(store: ReferenceStore, name: str, tokens: list[int]) -> Path:
    score = open_score(store, tokens, name, None)
    assert score is not None
    score.take(logits_of(tokens))
    score.finish()
    score.close()
    return store.path(name, tokens)


def compared(store: ReferenceStore, name: str, tokens: list[int], logits: torch.Tensor) -> list[float]:
    score = open_score(store, tokens, None, name)
    assert score is not None
    try:
        score.take(logits)
        found = score.finish()["kl"]
    finally:
        score.close()
    assert isinstance(found, list)
    return found


# The figure


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 400), st.floats(0.0, 30.0), st.floats(0.0, 3.0), st.integers(0, 2**32 - 1))
def test_divergence_is_the_formula(vocab: int, spread: float, distance: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    p = log_probabilities(torch.from_numpy(draw.standard_normal((1, vocab)) * spread).float())[0]
    q = log_probabilities(torch.from_numpy(p + draw.standard_normal((1, vocab)) * distance).float())[0]
    sums = [math.fsum(math.exp(v) for v in x.tolist()) for x in (p, q)]
    shares = [(math.exp(a) / sums[0], math.exp(b) / sums[1]) for a, b in zip(p.tolist(), q.tolist(), strict=True)]
    exact = math.fsum(a * math.log(a / b) for a, b in shares if a)
    assert divergence(p, q) == pytest.approx(exact, abs=1e-9)
    assert divergence(p, q) >= 0
    assert divergence(p, p) == 0.0


def test_a_row_that_is_no_distribution_is_refused() -> None:
    fine = log_probabilities(torch.zeros(1, 9))[0]
    with pytest.raises(ScoringError, match=r"sums to 9, expected 1"):
        divergence(np.zeros(9, np.float32), fine)
    with pytest.raises(ScoringError, match="not finite"):
        divergence(fine, np.where(np.arange(9) == 4, -np.inf, fine))


def test_transformers_gives_the_same_log_probabilities_and_divergence(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    artifacts = [make_tiny_artifact(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    tokens = random.Random(5).choices(range(256), k=90)
    theirs = []
    for artifact in artifacts:
        model = AutoModelForCausalLM.from_pretrained(artifact, dtype=torch.float32).eval()
        with torch.inference_mode():
            theirs.append(model(torch.tensor([tokens])).logits[0, :-1].double().log_softmax(-1))
    config = EngineConfig(compute_dtype="float32", threads=1, max_model_len=128, prefill_chunk_tokens=32)
    found: list[dict[str, Any]] = []
    for artifact, names in zip(artifacts, ({"store": "first"}, {"reference": "first"}), strict=True):
        core, about = build(artifact, config, tmp_path / "references", 0.01)
        assert about["vocab_size"] == 272
        (output,) = run(core, tokens, prompt_logprobs=3, **names)
        expected = theirs[len(found)]
        assert output.prompt_logprobs is not None
        for i, scored in enumerate(output.prompt_logprobs):
            assert scored.logprob == pytest.approx(float(expected[i, tokens[i + 1]]), abs=1e-4)
            assert scored.top_logprobs == pytest.approx(expected[i].topk(3).values.tolist(), abs=1e-4)
            assert scored.top_ids == expected[i].topk(3).indices.tolist()
        assert output.score is not None
        found.append(output.score)
    exact = (theirs[0].exp() * (theirs[0] - theirs[1])).sum(-1)
    assert found[1]["kl"] == pytest.approx(exact.tolist(), abs=1e-4, rel=1e-4)
    assert min(found[1]["kl"]) > 0.1
    assert found[1]["reference"]["model"] == "tiny-bf16"
    assert found[0]["kl"] is None


def run(core: EngineCore, tokens: list[int], name: str = "a", **params: Any) -> list[Output]:
    core.submit(AddRequest([name], tokens, SamplingParams(**{"max_tokens": 0, **params}).to_wire()))
    outputs = []
    while core.has_work:
        outputs += core.step()
    core.pool.check_idle()
    return outputs


# Through the core


def core_with(store: ReferenceStore | None, num_blocks: int = 64, **settings: Any) -> EngineCore:
    config = EngineConfig(**{"block_size": 4, "max_num_batched_tokens": 16, "prefill_chunk_tokens": 8, **settings})
    return EngineCore(FakeRunner(num_blocks, 4, VOCAB), config, references=store)


@pytest.mark.parametrize("chunk", [4, 8, 16, 40])
def test_a_stored_file_is_the_same_for_every_chunk_size(tmp_path: Path, chunk: int) -> None:
    store = store_at(tmp_path)
    whole = stored(store, "whole", TOKENS)
    core = core_with(store, prefill_chunk_tokens=chunk, max_num_batched_tokens=40)
    run(core, TOKENS, "warm")  # the prefix cache has it, and every row is computed all the same
    (output,) = run(core, TOKENS, prompt_logprobs=0, store="cut")
    assert output.score is not None
    assert output.score["stored"] == {"name": "cut", "bytes": whole.stat().st_size}
    assert store.path("cut", TOKENS).read_bytes() == whole.read_bytes()
    (output,) = run(core, TOKENS, prompt_logprobs=0, reference="whole", store="again")
    assert output.score is not None
    assert output.score["kl"] == [0.0] * 36
    assert core.scores == {}


def test_storing_survives_a_preemption(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    tokens = (TOKENS * 2)[:50]
    whole = stored(store, "whole", tokens)
    core = core_with(store, num_blocks=57, prefill_chunk_tokens=4, max_num_batched_tokens=32, prefix_caching=False)
    for i in range(4):
        core.submit(AddRequest([f"grows{i}"], (tokens * 2)[i : i + 40], SamplingParams(30).to_wire()))
    for _ in range(9):
        core.step()
    core.submit(AddRequest(["s"], tokens, SamplingParams(0, prompt_logprobs=0, store="again").to_wire()))
    preempted = 0
    while core.has_work:
        request = core.requests.get("s")
        core.step()
        if request is not None:
            preempted = max(preempted, request.num_preemptions)
    assert preempted > 0
    assert store.path("again", tokens).read_bytes() == whole.read_bytes()


def test_an_aborted_or_failed_request_leaves_nothing(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    core = core_with(store, prefill_chunk_tokens=4)
    core.submit(AddRequest(["a"], TOKENS, SamplingParams(0, prompt_logprobs=0, store="x").to_wire()))
    core.step()
    assert [p.suffix for p in (tmp_path / "x").iterdir()] == [".tmp"]
    core.abort(["a"])
    assert [o.finish_reason for o in core.step()] == ["abort"]
    assert list((tmp_path / "x").iterdir()) == []
    assert isinstance(core.runner, FakeRunner)
    core.runner.poison = {20}
    (output,) = run(core, TOKENS, prompt_logprobs=0, store="x")
    assert output.finish_reason == "error"
    assert output.error == ("the model's logits at position 21 are not finite; the weights or their scales are damaged")
    assert list((tmp_path / "x").iterdir()) == []
    assert store.writer("x", TOKENS).num_bytes > 0  # nothing is promised to them any more


@pytest.mark.parametrize("names", [{"store": "x"}, {"reference": "x"}])
def test_without_a_directory_the_names_are_refused(names: dict[str, str]) -> None:
    (output,) = run(core_with(None), TOKENS, prompt_logprobs=0, **names)
    assert output.refusal == "invalid"
    assert output.error == f"{next(iter(names))} needs a directory of references; start the server with --reference-dir"


def test_what_is_not_there_is_refused_and_holds_nothing(tmp_path: Path) -> None:
    core = core_with(store_at(tmp_path))
    (output,) = run(core, TOKENS, prompt_logprobs=0, reference="base")
    assert output.refusal == "invalid"
    assert "reference 'base' has no log-probabilities of these 37 tokens" in str(output.error)
    core.submit(AddRequest(["a", "b"], TOKENS, SamplingParams(0, prompt_logprobs=0, store="x").to_wire()))
    assert {o.error for o in core.step()} == {"store and reference are for one sample of a prompt, found 2"}
    assert not core.has_work
    with pytest.raises(RequestError, match="reference is x, expected null unless it is scored without output"):
        SamplingParams(3, prompt_logprobs=0, reference="x")


def test_a_single_token_has_an_empty_file(tmp_path: Path) -> None:
    core = core_with(store_at(tmp_path))
    for names, kl in (({"store": "x"}, None), ({"reference": "x"}, [])):
        (output,) = run(core, [7], prompt_logprobs=0, **names)
        assert output.finish_reason == "length"
        assert output.prompt_logprobs == []
        assert output.score is not None
        assert output.score["kl"] == kl


def test_a_full_directory_is_a_refusal_of_its_own(tmp_path: Path) -> None:
    core = core_with(store_at(tmp_path, limit_bytes=10_000))
    (fits,) = run(core, TOKENS, prompt_logprobs=0, store="x")
    assert fits.finish_reason == "length"
    (output,) = run(core, TOKENS[::-1], prompt_logprobs=0, store="x")
    assert output.refusal == "no_space"
    assert "37 tokens need 7" in str(output.error)
    assert "of the limit of 10000 bytes 7" in str(output.error)
    for path in (tmp_path / "x").iterdir():
        path.unlink()
    (output,) = run(core, TOKENS[::-1], prompt_logprobs=0, store="x")
    assert output.finish_reason == "length"


# Files


def test_other_programs_can_read_a_file(tmp_path: Path) -> None:
    path = stored(store_at(tmp_path), "x", TOKENS)
    assert path.name == f"{tokens_digest(TOKENS)}.safetensors"
    found = load_file(path)
    assert found["tokens"].tolist() == TOKENS
    assert np.array_equal(found["logprobs"], torch.log_softmax(logits_of(TOKENS), -1).numpy())


@pytest.mark.parametrize("cuts", [[1] * 36, [36], [5, 31], [32, 4], [33, 3], [17, 1, 18]])
def test_rows_in_any_portions_give_the_same_bits(tmp_path: Path, cuts: list[int]) -> None:
    store = store_at(tmp_path)
    whole = stored(store, "whole", TOKENS).read_bytes()
    logits = logits_of(TOKENS)
    moved = logits + torch.linspace(-1, 1, VOCAB)
    expected = compared(store, "whole", TOKENS, moved)
    score = open_score(store, TOKENS, "cut", "whole")
    assert score is not None
    for part in moved.split(cuts):
        score.take(part)
    assert score.finish()["kl"] == expected
    score.close()
    assert min(expected) > 0
    score = PromptScore(36, store.writer("cut", TOKENS), None)
    for part in logits.split(cuts):
        score.take(part)
    score.finish()
    assert store.path("cut", TOKENS).read_bytes() == whole


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\n", "x" * 65, "..", "a\0"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    for ask in (store_at(tmp_path).writer, store_at(tmp_path).reader):
        with pytest.raises(RequestError, match="expected 1 to 64 letters, digits"):
            ask(name, TOKENS)


def test_a_name_holds_the_rows_of_one_model(tmp_path: Path) -> None:
    stored(store_at(tmp_path), "x", TOKENS)
    other = store_at(tmp_path, model="other")
    with pytest.raises(RequestError, match=r"holds the rows of another model \(model fake there and other here\)"):
        other.writer("x", TOKENS[:5])
    assert compared(other, "x", TOKENS, logits_of(TOKENS)) == [0.0] * 36


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    stored(store_at(tmp_path), "x", TOKENS)
    with pytest.raises(RequestError, match=r"over a vocabulary of 50 \(model fake\), this model has 51"):
        store_at(tmp_path, vocab=51).reader("x", TOKENS)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    path = stored(store, "x", TOKENS)
    whole = path.read_bytes()
    size = len(whole)
    for content, words in [
        (whole[:-4], f"has {size - 4} bytes, expected {size}"),
        (whole + b"\0", f"has {size + 1} bytes, expected {size}"),
        (b"", "is not a reference file"),
        (b"\xff" * 100, "its header claims"),
        ((2).to_bytes(8, "little") + b"{}", "is not a reference file"),
        ((10**5).to_bytes(8, "little") + b"[" * 10**5, "is not a reference file"),
        (whole.replace(b'"shape": [37]', b'"shape": [-1]'), "holds -1 tokens, not the 37 asked for"),
        (whole.replace(b'"shape": [36, 50]', b'"shape":[3,1e999]'), "is not a reference file"),
        (stored(store, "y", TOKENS[::-1]).read_bytes(), "holds 37 other tokens than the 37 asked for"),
    ]:
        path.write_bytes(content)
        with pytest.raises(RequestError, match=words):
            store.reader("x", TOKENS)
    path.write_bytes(whole[: -VOCAB * 4] + bytes(VOCAB * 4))  # the last row never reached the disk
    with pytest.raises(ScoringError, match="sums to 50, expected 1; store the reference again"):
        compared(store, "x", TOKENS, logits_of(TOKENS))
    path.write_bytes(whole)
    reader = store.reader("x", TOKENS)
    path.write_bytes(whole[:500])
    with pytest.raises(ScoringError, match="was cut while it was read"):
        PromptScore(36, None, reader).take(logits_of(TOKENS))


def test_what_a_killed_server_left_is_removed_but_not_what_another_one_writes(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    left, live = tmp_path / "x" / ".a.1.0.tmp", tmp_path / "x" / ".b.2.0.tmp"
    for path in (left, live):
        path.write_bytes(b"half")
    with live.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store_at(tmp_path)
        assert [p.name for p in (tmp_path / "x").iterdir()] == [live.name]


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("engine.scoring.references.shutil.disk_usage", lambda _: usage(10**6, 10**6 - 8000, 8000))
    store = store_at(tmp_path)
    first = store.writer("x", TOKENS[:20])
    with pytest.raises(StorageError, match=rf"has 8000 free and {first.num_bytes} promised; make room"):
        store.writer("x", TOKENS[10:])
    first.discard()
    first.discard()
    store.writer("x", TOKENS[10:])


def test_a_directory_that_has_gone_is_a_refusal(tmp_path: Path) -> None:
    store = store_at(tmp_path / "references")
    (tmp_path / "references").rmdir()
    with pytest.raises(StorageError, match="references cannot be used: No such file or directory; make it again"):
        store.writer("x", TOKENS)
    with pytest.raises(RequestError, match="has no log-probabilities of these 37 tokens"):
        store.reader("x", TOKENS)


def test_a_disk_error_ends_the_request_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.scoring.references.os.posix_fallocate", full)
    core = core_with(store_at(tmp_path))
    core.submit(AddRequest(["other"], TOKENS[:9], SamplingParams(3).to_wire()))
    outputs = run(core, TOKENS, prompt_logprobs=0, store="x")
    ends = {o.id: o for o in outputs if o.finish_reason}
    assert ends["a"].finish_reason == "error"
    assert "cannot be written: No space left on device" in str(ends["a"].error)
    assert ends["other"].finish_reason == "length"
    assert list((tmp_path / "x").iterdir()) == []
