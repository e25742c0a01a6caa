"""An artifact that is not what it says is refused with found, expected and what to do; an odd but sound one works."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.artifact import ArtifactError, list_files, read_manifest, write_manifest
from engine.config import EngineConfig
from engine.process import build
from engine.protocol import AddRequest, Output
from engine.request import SamplingParams
from engine.text import TextCodec
from tests.tiny import Tier, make_tiny_artifact

WEIGHTS = "model.safetensors"
LAYER = "model.layers.0"
Q, O_WEIGHT = f"{LAYER}.self_attn.q_proj", f"{LAYER}.self_attn.o_proj.weight"
Change = Callable[[Path], object]


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def apply(artifact: Path) -> None:
        stored = load_file(artifact / WEIGHTS)
        change(stored)
        save_file(stored, artifact / WEIGHTS, metadata={"format": "pt"})

    return apply


def put(name: str, tensor: torch.Tensor) -> Change:
    return tensors(lambda t: t.update({name: tensor}))


def drop(name: str) -> Change:
    return tensors(lambda t: t.pop(name))


def fill(name: str, value: float) -> Change:
    return tensors(lambda t: t[name].fill_(value))


def field(file: str, **values: Any) -> Change:
    def apply(artifact: Path) -> None:
        found = json.loads((artifact / file).read_text())
        (artifact / file).write_text(json.dumps(found | values))

    return apply


def cut(size: int) -> Change:
    return lambda a: (a / WEIGHTS).write_bytes((a / WEIGHTS).read_bytes()[:size])


def text(file: str, content: str) -> Change:
    return lambda a: (a / file).write_text(content)


def a_folder_named(file: str) -> Change:
    return lambda a: ((a / file).unlink(), (a / file).mkdir())


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def attempt(directory: Path, tier: Tier, change: Change, sign: bool = True, **config: Any) -> tuple[TextCodec, Output]:
    """Loads the changed artifact and generates; the last word of the core."""
    artifact = make_tiny_artifact(directory, tier, **config)
    change(artifact)
    if sign:
        signed = read_manifest(artifact).model_copy(update={"files": list_files(artifact)})
        write_manifest(artifact, signed)
    core, _ = build(artifact, EngineConfig(threads=1, max_model_len=64))
    codec = TextCodec(artifact)
    core.submit(AddRequest(["a"], [1, 2, 3], SamplingParams(3, prompt_logprobs=0).to_wire()))
    outputs = []
    while core.has_work:
        outputs += core.step()
    return codec, outputs[-1]


REFUSED: list[tuple[str, Tier, Change, str]] = [
    ("truncated", "bf16", cut(9000), "cannot be read as safetensors: .*build the artifact again"),
    ("empty", "bf16", cut(0), "cannot be read as safetensors"),
    ("a folder for weights", "bf16", a_folder_named(WEIGHTS), "cannot be read as safetensors"),
    ("integers", "bf16", put(f"{Q}.weight", zeros(64, 64, dtype=torch.int32)), "expected one dtype"),
    ("float64", "bf16", put(O_WEIGHT, zeros(64, 64, dtype=torch.float64)), "is torch.float64"),
    ("norm of integers", "bf16", put("model.norm.weight", zeros(64, dtype=torch.int32)), "expected floating point"),
    ("too few outputs", "bf16", put(f"{Q}.weight", zeros(32, 64)), r"stored as \[32, 64\]; expected \[64, 64\]"),
    ("wrong inputs", "bf16", put(f"{Q}.weight", zeros(64, 32)), r"stored as \[64, 32\]; expected \[64, 64\], as"),
    ("transposed", "bf16", put(f"{LAYER}.mlp.down_proj.weight", zeros(160, 64)), r"expected \[64, 160\]"),
    ("narrow gate", "bf16", put(f"{LAYER}.mlp.gate_proj.weight", zeros(80, 64)), r"expected \[160, 64\]"),
    ("three dimensions", "bf16", put(f"{Q}.weight", zeros(64, 64, 1)), r"stored as \[64, 64, 1\]"),
    ("narrow norm", "bf16", put(f"{LAYER}.input_layernorm.weight", zeros(32)), r"\[32\]; config.json says \[64\]"),
    ("norm in 2d", "bf16", put("model.norm.weight", zeros(64, 1)), r"shape \[64, 1\]"),
    ("small embedding", "bf16", put("model.embed_tokens.weight", zeros(260, 64)), r"config.json says \[272, 64\]"),
    ("another head", "bf16", put("lm_head.weight", zeros(272, 64)), "lm_head.weight differs from"),
    ("missing", "bf16", drop(f"{Q}.weight"), "has no tensor 'model.layers.0.self_attn.q_proj.weight'"),
    ("a layer too many", "bf16", field("config.json", num_hidden_layers=2), "9 tensors that neither .* model.layers.2"),
    ("a layer too few", "bf16", field("config.json", num_hidden_layers=4), "has no tensor 'model.layers.3"),
    ("unasked bias", "bf16", put(f"{Q}.bias", zeros(64)), "without a bias"),
    ("twice", "bf16", lambda a: save_file({f"{Q}.weight": zeros(64, 64)}, a / "z.safetensors"), "has .* again"),
    ("int8 in floats", "int8", put(O_WEIGHT, zeros(64, 64)), "expected torch.int8"),
    ("int8 scale rows", "int8", put(f"{Q}.weight_scale", torch.ones(32, 1)), "weight_scale has 32 rows; expected 64"),
    ("int4 shape", "int4", put(f"{Q}.weight_shape", torch.tensor([64, 128])), r"says \[64, 128\], weight_packed holds"),
    ("int4 zeros", "int4", put(f"{Q}.weight_zero_point", zeros(8, 1, dtype=torch.int32)), "one dtype and number"),
    ("vocabulary", "bf16", field("config.json", vocab_size=400), r"\[272, 64\]; config.json says \[400, 64\]"),
    ("eos of text", "bf16", field("config.json", eos_token_id="x"), "has 'x'; expected ids of the vocabulary"),
    ("eos outside", "bf16", field("generation_config.json", eos_token_id=[1, 272]), "eos_token_id has 272"),
    ("config is a list", "bf16", text("config.json", "[]"), "holds a list; expected an object"),
    ("config is a folder", "bf16", a_folder_named("config.json"), "Is a directory; expected a file"),
    ("generation config is a list", "bf16", text("generation_config.json", "[]"), "holds a list; expected an object"),
    ("generation config is empty", "bf16", text("generation_config.json", ""), "is not JSON"),
    ("template is a number", "bf16", field("tokenizer_config.json", chat_template=3), "is 3; expected a text"),
    ("no tokenizer", "bf16", lambda a: (a / "tokenizer.json").unlink(), "expected the tokenizer beside the weights"),
]  # fmt: skip


@pytest.mark.parametrize(("tier", "change", "words"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_refused(tmp_path: Path, tier: Tier, change: Change, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        attempt(tmp_path, tier, change)


UNSIGNED: list[tuple[str, Change, str]] = [
    ("changed weights", fill(f"{Q}.weight", 1.0), f"{WEIGHTS}: found .* the manifest says"),
    ("changed config", field("config.json", rope_theta=500.0), "config.json: found"),
    ("an extra file", text("notes.txt", "x"), "notes.txt: found .* no such file"),
    ("a file less", lambda a: (a / "generation_config.json").unlink(), "generation_config.json: found no file"),
]


@pytest.mark.parametrize(("change", "words"), [c[1:] for c in UNSIGNED], ids=[c[0] for c in UNSIGNED])
def test_what_the_manifest_does_not_say_is_not_served(tmp_path: Path, change: Change, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        attempt(tmp_path, "bf16", change, sign=False)


NOT_FINITE: list[tuple[Tier, str]] = [
    ("bf16", f"{Q}.weight"), ("bf16", "model.norm.weight"), ("int8", f"{Q}.weight_scale"),
    ("int4", f"{Q}.weight_scale"),
]  # fmt: skip


@pytest.mark.parametrize(("tier", "name"), NOT_FINITE)
def test_weights_that_are_not_finite_fail_requests_by_name(tmp_path: Path, tier: Tier, name: str) -> None:
    _, last = attempt(tmp_path, tier, fill(name, float("nan")))
    assert last.finish_reason == "error"
    assert last.error == "the model's logits at position 1 are not finite; the weights or their scales are damaged"


def without_eos(artifact: Path) -> None:
    field("config.json", eos_token_id=None)(artifact)
    field("tokenizer_config.json", eos_token=None)(artifact)
    (artifact / "generation_config.json").unlink()


def test_a_model_without_an_end(tmp_path: Path) -> None:
    codec, last = attempt(tmp_path, "bf16", without_eos)
    assert codec.eos_ids == ()
    assert last.finish_reason == "length"


@pytest.mark.parametrize(
    ("change", "config"),
    [
        (lambda a: None, {"vocab_size": 400}),
        (text("generation_config.json", "{}"), {}),
        (lambda a: (a / "tokenizer_config.json").unlink(), {}),
        (field("config.json", head_dim=None), {}),
        (tensors(lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()})), {}),
        (put(f"{LAYER}.self_attn.rotary_emb.inv_freq", torch.ones(8)), {}),
    ],
    ids=[
        "rows without a token",
        "empty generation config",
        "no tokenizer config",
        "no head_dim",
        "equal head",
        "inv_freq",
    ],
)
def test_odd_but_sound(tmp_path: Path, change: Change, config: dict[str, Any]) -> None:
    codec, last = attempt(tmp_path, "bf16", change, **config)
    assert last.finish_reason in ("length", "stop")
    assert codec.eos_ids == (258,)
