"""A GGUF file as config and bf16 tensors under their Hugging Face names.

Formats: the GGUF specification (ggml, docs/gguf.md). llama.cpp stores the rows of the query and key projections of
Llama models interleaved, since its rotary embedding turns neighbouring pairs, where Hugging Face turns the two halves
of a head; the rows are put back here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import SeatrialError
from pipeline.fetch.architectures import Shapes

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

CHUNK_VALUES = 8 * 1024**2  # dequantised at once: 32 MiB of float32
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufFile:
    """An open GGUF file. Tensor data stays on disk until it is read.

    Raises:
        SeatrialError: no such file, not GGUF, cut short, or not of a known architecture.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise SeatrialError(f"{path} not found; expected a GGUF file")
        with path.open("rb") as f:
            magic = f.read(4)
        if magic != b"GGUF":
            raise SeatrialError(f"{path} is not a GGUF file: it begins with {magic!r}, expected b'GGUF'")
        from gguf import GGUFReader

        try:
            self._reader = GGUFReader(path)
            self._fields = {k: f.contents() for k, f in self._reader.fields.items()}
        except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as e:
            raise SeatrialError(f"{path} is not a whole GGUF file ({e}); fetch it again") from e
        self._tensors = {hf_name(t.name, str(path)): t for t in self._reader.tensors}
        architecture = self.get("general.architecture")
        if architecture != "llama":
            raise SeatrialError(
                f"{path}: unknown architecture {architecture!r}; known: llama (LlamaForCausalLM); other families are "
                "read from hf: and path: sources"
            )

    def get(self, key: str, default: Any = None) -> Any:
        return self._fields.get(key, default)

    def need(self, key: str) -> Any:
        """
        Raises:
            SeatrialError: the file has no such field.
        """
        if key not in self._fields:
            raise SeatrialError(f"{self.path} has no field {key}; fetch another GGUF of this model")
        return self._fields[key]

    def config(self) -> dict[str, Any]:
        """``config.json``."""
        hidden, heads = self.need("llama.embedding_length"), self.need("llama.attention.head_count")
        if self.get("llama.expert_count"):
            raise SeatrialError(f"{self.path}: a mixture of experts is not LlamaForCausalLM")
        if self.get("llama.rope.scaling.type") not in {None, "none"}:
            raise SeatrialError(
                f"{self.path}: scaled rotary embedding ({self.get('llama.rope.scaling.type')}) is not read from GGUF; "
                "use an hf: or path: source of this model"
            )
        if self.get("llama.attention.sliding_window"):
            raise SeatrialError(
                f"{self.path}: attention with a window is not read from GGUF; use an hf: or path: source of this model"
            )
        eos = sorted({self.need("tokenizer.ggml.eos_token_id"), *self._if_there("tokenizer.ggml.eot_token_id")})
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": self.need("llama.feed_forward_length"),
            "num_hidden_layers": self.need("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.get("llama.attention.head_count_kv", heads),
            "head_dim": self.get("llama.attention.key_length") or hidden // heads,
            "vocab_size": len(self.need("tokenizer.ggml.tokens")),
            "max_position_embeddings": self.need("llama.context_length"),
            "rms_norm_eps": _shortest(self.need("llama.attention.layer_norm_rms_epsilon")),
            "rope_theta": _shortest(self.get("llama.rope.freq_base", 10000.0)),
            "rope_scaling": None,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self._tensors,
            "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in self._tensors,
            "hidden_act": "silu",
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "bos_token_id": self.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": eos if len(eos) > 1 else eos[0],
            "pad_token_id": self.get("tokenizer.ggml.padding_token_id"),
            "torch_dtype": "bfloat16",
        }

    def _if_there(self, key: str) -> list[Any]:
        return [self._fields[key]] if key in self._fields else []

    def shapes(self) -> Shapes:
        """Tensor name -> shape. GGUF lists dimensions from the fastest one on."""
        return {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def tensors(self, config: dict[str, Any], order: list[str]) -> Iterator[tuple[str, Tensor]]:
        """bf16 tensors under their Hugging Face names, one at a time."""
        for name in order:
            tensor = self._dequantised(name)
            heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
            module = name.rsplit(".", 2)[-2]
            yield name, unpermute(tensor, heads[module]) if module in heads else tensor

    def _dequantised(self, name: str) -> Tensor:
        import torch
        from gguf.quants import dequantize

        source, shape = self._tensors[name], self.shapes()[name]
        out = torch.empty(shape, dtype=torch.bfloat16)
        rows = out.view(-1, shape[-1])
        data: np.ndarray[Any, Any] = source.data.reshape(rows.shape[0], -1)
        step = max(1, CHUNK_VALUES // shape[-1])
        for begin in range(0, rows.shape[0], step):
            try:
                values = dequantize(data[begin : begin + step], source.tensor_type)
            except NotImplementedError as e:
                raise SeatrialError(
                    f"{self.path}: {name} is stored as {source.tensor_type.name}, not readable: {e}"
                ) from e
            rows[begin : begin + step] = torch.from_numpy(values.copy())
        return out


def hf_name(name: str, where: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``.

    Raises:
        SeatrialError: a tensor that Llama models do not have.
    """
    if name in _TOP:
        return _TOP[name]
    if (m := _LAYER.fullmatch(name)) and m[2] in _IN_LAYER:
        return f"model.layers.{m[1]}.{_IN_LAYER[m[2]]}.{m[3]}"
    hint = " (scaled rotary embedding): use an hf: or path: source of this model" if "rope" in name else ""
    raise SeatrialError(f"{where}: tensor {name} is not known for LlamaForCausalLM{hint}")


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection [heads * D, in] (or its bias) from interleaved pairs to halves."""
    half = tensor.shape[0] // heads // 2
    return tensor.view(heads, half, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 9.999999747378752e-06 -> 1e-05."""
    import numpy as np

    return float(str(np.float32(value)))
