"""Every recipe from a base directory to an artifact, on the tiny random Llama."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.artifact import ArtifactError, Manifest, list_files, read_manifest, verify, write_manifest
from pipeline.errors import SeatrialError
from pipeline.quantize.calibrate import calibration_identity, calibration_sequences
from pipeline.quantize.formats import dequantise
from pipeline.quantize.recipes import awq_int4
from pipeline.quantize.registry import RECIPES, parse_entry
from tests.pipeline.quantize.making import (
    AWQ,
    GPTQ,
    INT4,
    SMOOTH,
    bits,
    check_awq_loses_less_than_rounding,
    eight_bit_activations,
    loaded,
    make,
    same,
)
from tests.tiny import make_tiny_artifact


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("tiny") / "base")


# ---- what every recipe gives


@pytest.mark.parametrize(
    "entry",
    [
        {"recipe": "bf16"},
        {"recipe": "int8"},
        {"recipe": "int8-weight-only"},
        {"recipe": "fp8"},
        SMOOTH,
        INT4,
        INT4 | {"symmetric": True},
        AWQ,
        GPTQ,
        GPTQ | {"symmetric": True, "act_order": False},
    ],
    ids=lambda e: e["recipe"],
)
def test_an_artifact_is_whole_and_says_what_it_is(base: Path, tmp_path: Path, entry: dict[str, Any]) -> None:
    made = make(entry, base, tmp_path, "my-tier")
    manifest = verify(made)
    source = verify(base)
    assert (manifest.name, manifest.recipe, manifest.source) == ("my-tier", entry["recipe"], source.source)
    assert entry.items() - {("recipe", entry["recipe"])} <= manifest.parameters.items()
    assert manifest.calibration == (calibration_identity("v1") if "calibration_tokens" in entry else None)
    tensors = bits(made)
    assert manifest.weight_bytes == sum(t.numel() * t.element_size() for t in tensors.values())
    for kept in ("model.embed_tokens.weight", "model.norm.weight"):
        assert torch.equal(tensors[kept], bits(base)[kept])
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert manifest.files[file] == source.files[file]
    config = json.loads((made / "config.json").read_text())
    assert ("quantization_config" in config) is bool(manifest.linears)
    assert not (tmp_path / "work").exists() or not list((tmp_path / "work").iterdir())
    assert same(made, make(entry, base, tmp_path / "again", "my-tier"))


def test_bf16_is_the_base(base: Path, tmp_path: Path) -> None:
    made, want = bits(make({"recipe": "bf16"}, base, tmp_path)), bits(base)
    assert set(made) == set(want)
    assert all(torch.equal(made[n], want[n]) for n in want)


def test_int8_and_int4_round_each_linear(base: Path, tmp_path: Path) -> None:
    want = bits(base)
    module = "model.layers.1.mlp.down_proj"
    for entry, limit in (({"recipe": "int8"}, 0.012), (INT4, 0.12)):
        made = make(entry, base, tmp_path, entry["recipe"])
        manifest, tensors = verify(made), bits(made)
        own = {n.removeprefix(f"{module}."): t for n, t in tensors.items() if n.startswith(f"{module}.")}
        back, weight = dequantise(own, manifest.linears[0]), want[f"{module}.weight"].float()
        assert 0 < float((back - weight).norm() / weight.norm()) < limit
        assert set(manifest.report["weight_error"]) == {"0", "1", "2"}
        assert all(0 < e < limit for e in manifest.report["weight_error"].values())
        assert f"{module}.weight" not in tensors or tensors[f"{module}.weight"].dtype == torch.int8


@pytest.mark.parametrize("recipe", [INT4, AWQ, GPTQ], ids=lambda e: e["recipe"])
def test_8_bit_activations_change_how_the_same_weights_are_met(
    base: Path, tmp_path: Path, recipe: dict[str, Any]
) -> None:
    wide, narrow = make(recipe, base, tmp_path, "a16"), make(recipe | {"activations": "int8"}, base, tmp_path, "a8")
    assert verify(wide).files["model.safetensors"] == verify(narrow).files["model.safetensors"]
    assert [s.scheme for s in verify(narrow).linears] == ["w4a8"]
    assert verify(narrow).linears[0].model_copy(update={"scheme": "w4a16"}) == verify(wide).linears[0]
    assert verify(narrow).digest != verify(wide).digest


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("recipe", [{"recipe": "int8"}, INT4 | {"activations": "int8"}], ids=lambda e: e["recipe"])
def test_an_8_bit_head_is_a_tensor_of_its_own(tmp_path: Path, recipe: dict[str, Any], tied: bool) -> None:
    base = make_tiny_artifact(tmp_path / "base", tie_word_embeddings=tied)
    plain, made = make(recipe, base, tmp_path, "plain"), make(recipe | {"head": "int8"}, base, tmp_path, "h8")
    before, after = bits(plain), bits(made)
    head = {n: after.pop(n) for n in ("lm_head.weight", "lm_head.weight_scale")}
    weight = before["model.embed_tokens.weight"] if tied else before.pop("lm_head.weight")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)
    spec = verify(made).linears[-1]
    assert (spec.pattern, spec.scheme) == ("lm_head", "w8a8")
    back = dequantise({n.removeprefix("lm_head."): t for n, t in head.items()}, spec)
    error = float((back - weight.float()).norm() / weight.float().norm())
    assert verify(made).report["head_error"] == pytest.approx(error, abs=1e-6)
    assert 0 < error < 0.01
    config = json.loads((made / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    foreign = config["quantization_config"]
    assert [g["targets"] for g in foreign["config_groups"].values()] == [["lm_head"], ["Linear"]]
    assert foreign["ignore"] == []


def test_a_head_that_has_been_seen_is_smoothed(tmp_path: Path) -> None:
    """One channel of the last norm is 60 times the others, as in real models: the function of norm and head stays, and
    8-bit activations lose less."""
    base = make_tiny_artifact(tmp_path / "base")
    tensors = bits(base)
    tensors["model.norm.weight"][3] *= 60
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    write_manifest(base, read_manifest(base).model_copy(update={"files": list_files(base)}))
    plain = bits(make({"recipe": "int8", "head": "int8"}, base, tmp_path, "plain"))
    smooth = bits(make(SMOOTH | {"head": "int8"}, base, tmp_path, "smooth"))
    assert torch.equal(plain["model.norm.weight"], tensors["model.norm.weight"])
    x = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    want = (x * tensors["model.norm.weight"].float()) @ tensors["model.embed_tokens.weight"].float().T

    def errors(stored: dict[str, torch.Tensor]) -> list[float]:
        head = stored["lm_head.weight"].float() * stored["lm_head.weight_scale"]
        entering = x * stored["model.norm.weight"].float()
        step = entering.abs().amax(1, keepdim=True) / 127
        found = [entering @ head.T, (entering / step).round() * step @ head.T]
        return [float((f - want).norm() / want.norm()) for f in found]

    exact, rounded = errors(smooth)
    assert exact < 0.01
    assert rounded < 0.5 * errors(plain)[1]


# ---- awq


@pytest.mark.parametrize(
    "config",
    [{}, {"num_key_value_heads": 4}, {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": False}],
    ids=str,
)
def test_awq_keeps_the_function_and_loses_less_than_rounding(tmp_path: Path, config: dict[str, Any]) -> None:
    base = make_tiny_artifact(tmp_path / "base", **config)
    report = check_awq_loses_less_than_rounding(base, tmp_path)
    for layer in report["layers"].values():
        assert len(layer) == 7
        for name, e in layer.items():
            assert 0 < e["awq"] <= e["rounded"] * 1.02, name


def test_the_reported_error_is_that_of_the_layer_on_the_calibration_tokens(base: Path, tmp_path: Path) -> None:
    """v_proj of the first layer sees the same input before and after, but for the folded norm."""
    made = make(AWQ, base, tmp_path)
    seen: dict[str, list[torch.Tensor]] = {}
    for name, artifact in (("want", base), ("got", made)):
        model = loaded(artifact)
        store = seen.setdefault(name, [])
        attention = model.model.layers[0].self_attn  # type: ignore[union-attr]
        attention.q_proj.register_forward_hook(lambda m, i, o, store=store: store.append(o[0].detach()))
        for ids in calibration_sequences("v1", base, 768, 512):
            model(ids[None])
    want, got = torch.cat(seen["want"]), torch.cat(seen["got"])
    measured = float((got - want).norm() / want.norm())
    assert verify(made).report["layers"]["0"]["self_attn.q_proj"]["awq"] == pytest.approx(measured, rel=1e-3)


def test_smoothing_keeps_the_function_and_takes_the_sting_out_of_large_channels(base: Path, tmp_path: Path) -> None:
    """One channel of every layer's input is 60 times the others, as in real models: 8-bit activations then lose
    much, and less once smoothed. The twin is transformers' own forward pass."""
    spiky = tmp_path / "spiky"
    shutil.copytree(base, spiky)
    tensors = bits(base)
    for name, tensor in tensors.items():
        if name.endswith("layernorm.weight"):
            tensor[3] *= 60
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")):
            tensor[:, 3] /= 60
    save_file(tensors, spiky / "model.safetensors", metadata={"format": "pt"})
    manifest = verify(base)
    write_manifest(spiky, manifest.model_copy(update={"files": list_files(spiky)}))
    ids = calibration_sequences("v1", spiky, 512, 512)[0][None]

    def error(model: torch.nn.Module, reference: torch.nn.Module) -> float:
        want = reference(ids).logits
        return float((model(ids).logits - want).norm() / want.norm())

    with torch.no_grad():
        without_spikes = error(loaded(make({"recipe": "int8"}, base, tmp_path, "calm")), loaded(base))
        reference = loaded(spiky)
        plain = loaded(make({"recipe": "int8"}, spiky, tmp_path, "plain"))
        smooth = loaded(make(SMOOTH, spiky, tmp_path, "smooth"))
        assert error(smooth, reference) < 2 * without_spikes  # the scales cancel: only the rounding of weights is left
        eight_bit_activations(plain)
        eight_bit_activations(smooth)
        assert error(smooth, reference) < 0.5 * error(plain, reference)


def test_a_stopped_run_goes_on_at_its_layer(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(AWQ, base, tmp_path / "whole")
    done: list[int] = []
    real = awq_int4.quantise_layer

    def counted(*args: Any, **kwargs: Any) -> Any:
        if len(done) == 2 and not (tmp_path / "go-on").exists():
            raise RuntimeError("power cut")
        done.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(awq_int4, "quantise_layer", counted)
    with pytest.raises(RuntimeError, match="power cut"):
        make(AWQ, base, tmp_path)
    assert not (tmp_path / "artifacts" / "t").exists()
    assert not list((tmp_path / "artifacts").iterdir())
    (tmp_path / "go-on").touch()
    assert same(make(AWQ, base, tmp_path), whole)
    assert len(done) == 3


def test_other_parameters_do_not_take_the_layers_of_a_stopped_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as m:
        m.setattr(awq_int4, "mean_errors", lambda layers: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make(AWQ, base, tmp_path)
    assert len(list((tmp_path / "work").rglob("layer-*.safetensors"))) == 3
    other = AWQ | {"grid": 1}
    assert same(make(other, base, tmp_path), make(other, base, tmp_path / "fresh"))


# ---- refusals


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"recipe": "int3"},
            r"quantization\.t\.recipe is 'int3'; known recipes: bf16, int8, int8-weight-only, fp8, int4, awq-int4, g",
        ),
        ({}, r"quantization\.t\.recipe is None; known recipes"),
        (
            {"recipe": "int8", "group_size": 64},
            r"t\.group_size: unknown parameter; recipe int8 takes head, keep, smoothing, calibration",
        ),
        (
            INT4 | {"grupsize": 1},
            r"t\.grupsize: unknown parameter; recipe int4 takes head, keep, group_size, symmetric",
        ),
        (INT4 | {"group_size": "64"}, r"t\.group_size is '64': Input should be a valid integer"),
        (INT4 | {"group_size": 12}, r"t\.group_size is 12: Input should be a multiple of 8"),
        (INT4 | {"symmetric": 1}, r"t\.symmetric is 1: Input should be a valid boolean"),
        (INT4 | {"head": "int4"}, r"t\.head is 'int4': Input should be 'bf16' or 'int8'"),
        (INT4 | {"activations": 8}, r"t\.activations is 8: Input should be 'bf16' or 'int8'"),
        ({"recipe": "bf16", "head": "int8"}, r"t\.head: unknown parameter; recipe bf16 takes no parameters"),
        (INT4 | {"keep": {"*": "int4"}}, r"t\.keep\.\* is 'int4': Input should be 'bf16' or 'int8'"),
        (GPTQ | {"damping": 0.0}, r"t\.damping is 0\.0: Input should be greater than 0"),
        (GPTQ | {"shrinkage": 1.5}, r"t\.shrinkage is 1\.5: Input should be less than or equal to 1"),
        (AWQ | {"grid": 0}, r"t\.grid is 0: Input should be greater than or equal to 1"),
    ],
)
def test_unknown_recipes_and_parameters_are_refused_by_name(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(SeatrialError, match=message):
        parse_entry("t", entry)
    assert all(recipe.name == name for name, recipe in RECIPES.items())


@pytest.mark.parametrize("entry", [INT4, AWQ, GPTQ], ids=lambda e: e["recipe"])
def test_what_does_not_fit_is_refused_before_anything_is_written(
    base: Path, tmp_path: Path, entry: dict[str, Any]
) -> None:
    with pytest.raises(
        SeatrialError, match=r"model\.layers\.0\.mlp\.down_proj: group_size 64 does not divide its input dimension 160"
    ):
        make(entry | {"group_size": 64}, base, tmp_path)
    with pytest.raises(ArtifactError, match="is not a directory; expected an artifact"):
        make(entry, tmp_path / "nowhere", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_weight_that_is_not_finite_is_named(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    spoilt = make_tiny_artifact(tmp_path / "spoilt")
    tensors = load_file(spoilt / "model.safetensors")
    tensors["model.layers.2.self_attn.k_proj.weight"][1, 2] = float("nan")
    save_file(tensors, spoilt / "model.safetensors", metadata={"format": "pt"})
    earlier = make({"recipe": "int8"}, base, tmp_path)
    with pytest.raises(SeatrialError, match=r"model\.layers\.2\.self_attn\.k_proj\.weight holds NaN or infinity"):
        make({"recipe": "int8"}, spoilt, tmp_path)
    verify(earlier)
    assert [p.name for p in (tmp_path / "artifacts").iterdir()] == ["t"]


# ---- the command


def command(root: Path, *before: str) -> subprocess.CompletedProcess[str]:
    """``pipeline.quantize --tier awq`` in a process of its own, after the lines ``before``."""
    lines = ["import os, sys", *before, "from pipeline.quantize.__main__ import main", "main()"]
    argv = [sys.executable, "-c", "\n".join(lines), "--tier", "awq"]
    return subprocess.run(argv, cwd=root, stderr=subprocess.PIPE, text=True, timeout=500)


KILLED_AFTER_A_LAYER = [
    "from pipeline.quantize import layerwise",
    "layerwise._read_kept = lambda path: os.kill(os.getpid(), 9)",  # what follows when a layer has been kept
]


def test_the_command_completes_after_sigkill(base: Path, tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    make_tiny_artifact(tmp_path / "artifacts/base")
    text = Path("params.yaml").read_text()
    before, _, rest = text.partition("tiers:")
    _, _, after = rest.partition("\nengine:")
    entry = json.dumps(AWQ)
    (tmp_path / "params.yaml").write_text(
        f"{before}tiers: [bf16, awq]\nquantization: {{bf16: {{recipe: bf16}}, awq: {entry}}}\nengine:{after}".replace(
            "candidate: int8", "candidate: awq"
        )
    )
    killed = command(tmp_path, *KILLED_AFTER_A_LAYER)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list((tmp_path / ".seatrial/work").rglob("layer-*.safetensors"))) == 1
    done = command(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "quantize@awq layers: 3/3" in done.stderr
    manifest: Manifest = verify(tmp_path / "artifacts/awq")
    direct = verify(make(AWQ, base, tmp_path / "direct", "awq"))
    assert manifest.digest == direct.digest
    assert not list((tmp_path / "artifacts").glob(".*"))
    assert json.loads((tmp_path / "reports/stages/quantize@awq.json").read_text())["tier"] == "awq"
