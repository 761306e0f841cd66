"""What llama.cpp computes of a GGUF file of its architectures llama and deci, in torch.

Written after its graphs (src/models/llama.cpp and deci.cpp of August 2026), with what they leave out: `deci`
leaves out both branches of a layer without an MLP, and the width of heads if the first layer has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor
from torch.nn import functional


class LlamaCpp:
    """A file, read."""

    def __init__(self, path: Path | str) -> None:
        reader = GGUFReader(path)
        self.fields = {name: one.contents() for name, one in reader.fields.items()}
        self.architecture = self.fields["general.architecture"]
        self.tensors = {
            one.name: torch.from_numpy(dequantize(one.data, one.tensor_type).copy()) for one in reader.tensors
        }
        self.kinds = {one.name: one.tensor_type.name for one in reader.tensors}

    def number(self, name: str) -> Any:
        return self.fields[f"{self.architecture}.{name}"]

    def per_layer(self, name: str) -> list[int]:
        value = self.number(name)
        layers = self.number("block_count")
        return value if isinstance(value, list) else [value] * layers

    def norm(self, x: Tensor, name: str) -> Tensor:
        epsilon = self.number("attention.layer_norm_rms_epsilon")
        return x * (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * self.tensors[f"{name}.weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def turned(self, x: Tensor) -> Tensor:
        """(tokens, heads, width of a head), neighbours turned together."""
        width = x.shape[-1]
        angles = self.number("rope.freq_base") ** (-torch.arange(0, width, 2) / width)
        angles = torch.arange(len(x))[:, None, None] * angles / self.tensors.get("rope_freqs.weight", 1.0)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack(
            [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1
        ).flatten(-2)

    def attention(self, x: Tensor, name: str, heads: int, shared: int) -> Tensor:
        width = self.number("attention.key_length")
        q, k, v = (self.linear(x, f"{name}.attn_{one}").unflatten(-1, (-1, width)) for one in "qkv")
        assert (q.shape[1], k.shape[1]) == (heads, shared)
        q, k, v = self.turned(q), *(one.repeat_interleave(heads // shared, 1) for one in (self.turned(k), v))
        mixed = functional.scaled_dot_product_attention(
            *(one.transpose(0, 1) for one in (q, k, v)), is_causal=True
        )
        return self.linear(mixed.transpose(0, 1).flatten(1), f"{name}.attn_output")

    def __call__(self, tokens: Tensor) -> Tensor:
        """(tokens,) -> (tokens, vocabulary)."""
        x = self.tensors["token_embd.weight"][tokens]
        heads, shared, neurons = map(
            self.per_layer, ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
        )
        assert heads[0], "the first layer must have heads"
        assert len(set(zip(heads, shared, neurons, strict=True))) == 1 or self.architecture == "deci"
        for layer in range(self.number("block_count")):
            name = f"blk.{layer}"
            between = x
            if heads[layer]:
                read = self.norm(x, f"{name}.attn_norm")
                between = x + self.attention(read, name, heads[layer], shared[layer])
            if not neurons[layer]:
                continue  # llama.cpp forgets what attention added, too
            read = self.norm(between, f"{name}.ffn_norm")
            gate = functional.silu(self.linear(read, f"{name}.ffn_gate"))
            assert gate.shape[1] == neurons[layer]
            x = between + self.linear(gate * self.linear(read, f"{name}.ffn_up"), f"{name}.ffn_down")
        out = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        return functional.linear(self.norm(x, "output_norm"), self.tensors[out])
