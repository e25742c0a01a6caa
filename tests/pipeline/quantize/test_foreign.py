"""What config.json tells other engines."""

from __future__ import annotations

from typing import Any

from engine.artifact import LinearSpec
from pipeline.quantize.foreign import ALL, compressed_tensors_config
from pipeline.quantize.head import SPEC
from pipeline.quantize.keep import kept_specs

MODULES = [f"model.layers.{i}.{name}" for i in range(3) for name in ("self_attn.o_proj", "mlp.down_proj")]
W8A8 = LinearSpec(pattern=ALL, scheme="w8a8")


def w4a16(group_size: int, symmetric: bool) -> LinearSpec:
    return LinearSpec(pattern=ALL, scheme="w4a16", group_size=group_size, symmetric=symmetric)


def config_of(specs: list[LinearSpec]) -> dict[str, Any] | None:
    return compressed_tensors_config(specs, MODULES)


def test_the_foreign_config_tells_groups_apart() -> None:
    narrow = w4a16(64, True).model_copy(update={"scheme": "w4a8"})
    alone = config_of([narrow])
    assert alone is not None
    assert alone["ignore"] == ["lm_head"]
    group = alone["config_groups"]["group_0"]
    assert (alone["format"], group["format"], group["weights"]["num_bits"]) == ("pack-quantized",) * 2 + (4,)
    assert (group["input_activations"]["num_bits"], group["input_activations"]["strategy"]) == (8, "token")
    both = config_of([narrow, SPEC])
    assert both is not None
    assert (both["format"], both["ignore"]) == ("mixed-precision", [])
    assert [(g["targets"], g["format"]) for g in both["config_groups"].values()] == [
        (["lm_head"], "int-quantized"),
        (["Linear"], "pack-quantized"),
    ]
    same = config_of([W8A8, SPEC])
    assert same is not None
    assert same["format"] == "int-quantized"
    assert all("format" not in g for g in same["config_groups"].values())


def test_the_foreign_config_says_what_the_spec_says() -> None:
    assert config_of([]) is None
    four = config_of([w4a16(64, False)])
    assert four is not None
    assert four["format"] == "pack-quantized"
    group = four["config_groups"]["group_0"]
    assert (group["weights"]["num_bits"], group["weights"]["group_size"], group["weights"]["symmetric"]) == (
        4,
        64,
        False,
    )
    assert group["input_activations"] is None
    eight = config_of([W8A8])
    assert eight is not None
    assert eight["format"] == "int-quantized"
    activations = eight["config_groups"]["group_0"]["input_activations"]
    assert (activations["num_bits"], activations["strategy"], activations["dynamic"]) == (8, "token", True)


def test_linears_that_are_kept_are_named() -> None:
    kept = kept_specs({"model.layers.first.*": "bf16", "*.mlp.down_proj": "int8"}, MODULES, 3)
    found = config_of([*kept, w4a16(64, False), SPEC])
    assert found is not None
    assert found["ignore"] == MODULES[:2]
    groups = [(g["targets"], g["format"], g["weights"]["num_bits"]) for g in found["config_groups"].values()]
    assert groups == [
        (["lm_head"], "int-quantized", 8),
        ([MODULES[3], MODULES[5]], "pack-quantized", 8),
        (["Linear"], "pack-quantized", 4),
    ]
    everything = config_of([*kept_specs({"*": "bf16"}, MODULES, 3), W8A8])
    assert everything is not None
    assert everything["ignore"] == ["lm_head", *MODULES]
    without = config_of([*kept, w4a16(64, True)])
    assert without is not None
    assert (without["format"], "format" in without["config_groups"]["group_0"]) == ("pack-quantized", False)


def test_one_byte_schemes() -> None:
    wide = config_of([LinearSpec(pattern=ALL, scheme="w8a16")])
    assert wide is not None
    group = wide["config_groups"]["group_0"]
    assert (wide["format"], group["weights"]["strategy"], group["input_activations"]) == (
        "pack-quantized",
        "channel",
        None,
    )
    floating = config_of([LinearSpec(pattern=ALL, scheme="fp8")])
    assert floating is not None
    group = floating["config_groups"]["group_0"]
    assert (floating["format"], group["weights"]["type"], group["input_activations"]["type"]) == (
        "float-quantized",
        "float",
        "float",
    )


def test_transformers_is_told_to_unpack_zero_points() -> None:
    told = {
        "asymmetric": [w4a16(64, False)],
        "symmetric": [w4a16(64, True)],
        "several": [w4a16(64, False), SPEC],
        "rounded": [w4a16(64, False).model_copy(update={"scheme": "w4a8"})],
    }
    assert [name for name, specs in told.items() if "dequantize" in (config_of(specs) or {})] == ["asymmetric"]
