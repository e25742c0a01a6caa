"""Reading ``config.json`` so that nothing in it is overlooked: every field is used, or harmless by name, or refused."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from engine.artifact import ArtifactError
from engine.kernels.interface import Activation
from engine.layers.rope import Rope
from engine.ledger import ModelShape

# Of training, of bookkeeping, of the text side (engine.text reads the special tokens), or decided by the manifest.
HARMLESS = (
    "_attn_implementation_autoset", "_name_or_path", "architectures", "attention_dropout", "bos_token_id",
    "cache_implementation", "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label", "initializer_range",
    "is_llama_config", "label2id", "output_attentions", "output_hidden_states", "pad_token_id", "problem_type",
    "quantization_config", "return_dict", "torch_dtype", "transformers.js_config", "transformers_version",
    "unsloth_fixed", "unsloth_version", "use_cache",
)  # fmt: skip
# Known to every family, at one value alone: (field, value).
FIXED = (
    ("is_encoder_decoder", False),
    ("partial_rotary_factor", 1),
    ("pretraining_tp", 1),
    ("rope_interleaved", False),
)
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
}  # fmt: skip
FULL, SLIDING = "full_attention", "sliding_attention"


class Fields:
    """One ``config.json``. Each reader notes its field as known; :meth:`refuse_others` ends the reading.

    Null stands for absence, as it does in transformers. All readers raise ArtifactError with field and value.
    """

    def __init__(self, config: dict[str, Any], family: str) -> None:
        self.config, self.family = config, family
        self.known = set(HARMLESS)
        for field, value in FIXED:
            self.only(field, value)

    def get(self, field: str) -> Any:
        self.known.add(field)
        return self.config.get(field)

    def whole(self, field: str, default: int | None = None) -> int:
        """A positive whole number; without ``default`` it must be there."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(field, "a positive whole number")
        return value

    def whole_or_none(self, field: str) -> int | None:
        """A positive whole number, or nothing."""
        return None if self.get(field) is None else self.whole(field)

    def number(self, field: str, default: float | None = None) -> float:
        """A positive number; without ``default`` it must be there."""
        value = self._value(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.wrong(field, "a positive number")
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        value = self._value(field, default)
        if not isinstance(value, bool):
            raise self.wrong(field, "true or false")
        return value

    def only(self, field: str, *values: Any) -> None:
        """The field may be absent, or have one of ``values``."""
        value = self.get(field)
        if value is not None and value not in values:
            raise self.wrong(field, " or ".join(map(repr, values)) or "null, since this version does not implement it")

    def activation(self, field: str) -> Activation:
        value = self._value(field, None)
        if value not in ACTIVATIONS:
            raise self.wrong(field, f"one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def shape(self) -> ModelShape:
        """The sizes, as :meth:`ModelShape.of_config` has them: without ``head_dim`` the heads share ``hidden_size``,
        without ``num_key_value_heads`` each has keys of its own. A family of which that is not true asks for the field
        first."""
        heads, hidden = self.whole("num_attention_heads"), self.whole("hidden_size")
        self.whole("max_position_embeddings")  # bounds what the runner serves
        try:
            return ModelShape(
                layers=self.whole("num_hidden_layers"),
                hidden=hidden,
                heads=heads,
                kv_heads=self.whole("num_key_value_heads", heads),
                head_dim=self.whole("head_dim", hidden // heads),
                intermediate=self.whole("intermediate_size"),
                vocab=self.whole("vocab_size"),
            )
        except ValidationError as e:
            raise ArtifactError(f"config.json: {e.errors()[0]['msg']}") from e

    def rope(self, head_dim: int) -> Rope:
        """One rotation for all layers: ``rope_theta`` + ``rope_scaling``, or ``rope_parameters``."""
        scaling = self.scaling("rope_scaling", "rope_parameters")
        return self.rotation(head_dim, scaling, "rope_theta", 10000.0)

    def rotation(self, head_dim: int, scaling: dict[str, Any], theta_field: str, theta: float) -> Rope:
        """A rotation whose base is in ``scaling`` or in ``theta_field``; ``theta`` where it is in neither."""
        within, beside = scaling.get("rope_theta"), self.get(theta_field)
        if within is not None and beside is not None and within != beside:
            raise ArtifactError(
                f"config.json says rope_theta {within!r} within rope_parameters and {theta_field} {beside!r} beside; "
                "expected one"
            )
        base = next((v for v in (within, beside) if v is not None), theta)
        if isinstance(base, bool) or not isinstance(base, int | float) or base <= 1:
            raise self.wrong(theta_field, f"a number above 1 (found {base!r})")
        return Rope.of(head_dim, float(base), {k: v for k, v in scaling.items() if k != "rope_theta"})

    def scaling(self, *fields: str) -> dict[str, Any]:
        """The one of ``fields`` that is there, an object; empty if none is."""
        there = [(f, v) for f in fields if (v := self.get(f)) is not None]
        if len(there) > 1 and any(v != there[0][1] for _, v in there[1:]):
            raise ArtifactError(f"config.json has {' and '.join(f for f, _ in there)}, and they differ; expected one")
        for field, value in there:
            if not isinstance(value, dict):
                raise self.wrong(field, "an object")
        return dict(there[0][1]) if there else {}

    def windows(self, window: int | None, layers: int, default: list[str]) -> list[int | None]:
        """The window of each layer from ``layer_types``, or from ``default`` where the config has none."""
        kinds = self.get("layer_types")
        kinds = default if kinds is None else kinds
        if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {FULL, SLIDING}:
            raise self.wrong("layer_types", f"a list of {layers}, each {FULL!r} or {SLIDING!r}")
        if SLIDING in kinds and window is None:
            raise ArtifactError(
                f"config.json: layer_types has {SLIDING!r} layers but there is no window for them (sliding_window is "
                f"{self.config.get('sliding_window')!r}, use_sliding_window {self.config.get('use_sliding_window')!r})"
            )
        return [window if kind == SLIDING else None for kind in kinds]

    def refuse_others(self) -> None:
        """
        Raises:
            ArtifactError: a field that nobody asked for.
        """
        for field, value in self.config.items():
            if field not in self.known:
                raise ArtifactError(
                    f"config.json has {field} = {value!r}, which this version does not know for {self.family}; "
                    f"it knows {', '.join(sorted(self.known))}"
                )

    def wrong(self, field: str, expected: str) -> ArtifactError:
        if field not in self.config:
            return ArtifactError(f"config.json has no {field!r}; expected {expected} for {self.family}")
        return ArtifactError(
            f"config.json asks for {field} {self.config[field]!r}; expected {expected} for {self.family}"
        )

    def _value(self, field: str, default: Any) -> Any:
        value = self.get(field)
        return default if value is None else value
