"""A Llama-shaped model as llama.cpp computes it: the tensors of a GGUF file, and the widths of its layers.

llama.cpp's `deci` has numbers of heads, of shared heads and of MLP neurons per layer, and layers without
attention. What an evicted branch leaves is a constant of the stream. That of an attention is added where the
layer before ends, that of an MLP where its own layer ends: as the bias of an MLP in either case. `deci` has
no layers with attention and without MLP (it leaves out both), and its first layer must have heads, for their
width: these get an MLP or a head of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hope.actions.evict import ZeroOutput
from hope.errors import CannotExport
from hope.ops.attention import CONFIG_HEADS, HEAD_WIDTH, head_width
from hope.ops.norm import LLAMA_NORMS

FAMILIES = ("llama", "mistral", "qwen2")  # `model_type`s that compute what Llama does, biases apart
ROPES = ("default", "linear", "llama3")  # whose frequencies are constants
ZEROS = 32  # neurons of an MLP that adds a constant only, as many as a block of quantised weights
ANOTHER_WAY = "use uniform=True, save_pretrained, and llama.cpp's convert_hf_to_gguf.py"


@dataclass(frozen=True)
class FileTensor:
    """A tensor of the file.

    Attributes:
        name: in the file.
        make: gives it, when it is written.
        source: the parameter that it is, if it is one: its rounded numbers may be written instead.
        rows: the order of its rows in the file, if another than the parameter's.
    """

    name: str
    make: Callable[[], Tensor]
    source: str = ""
    rows: Tensor | None = None


@dataclass(frozen=True)
class FileLayer:
    """A layer of the file.

    Attributes:
        path: of the layer in the model.
        norms: before the attention and before the MLP.
        attention: None if it is evicted.
        mlp: None if it is evicted.
        zero_heads: whether a head of zeros takes the place of the attention.
        start: the constants that the head of zeros adds.
        end: the constants that are added where the layer ends.
    """

    path: str
    norms: tuple[nn.Module, nn.Module]
    attention: nn.Module | None
    mlp: nn.Module | None
    zero_heads: bool
    start: list[Tensor]
    end: list[Tensor]

    def widths(self, head: int) -> tuple[int, int, int]:
        """Heads, shared heads and MLP neurons."""
        neurons = ZEROS if self.mlp is None else _parameter(self.mlp, "down_proj.weight").shape[1]
        if self.attention is None:
            return (1, 1, neurons) if self.zero_heads else (0, 0, neurons)
        queries, keys = (_parameter(self.attention, f"{name}_proj.weight").shape[0] for name in "qk")
        return queries // head, keys // head, neurons

    def entries(self, name: str, head: int, like: Tensor) -> Iterator[FileTensor]:
        """Its tensors.

        Args:
            name: of the layer in the file.
            head: width of a head.
            like: the embedding, (tokens, width): zeros have its type.
        """
        width = like.shape[1]
        if self.attention is not None:
            yield _norm(f"{name}.attn_norm", self.norms[0])
            for short in "qkv":
                order = _interleaved(_parameter(self.attention, f"{short}_proj.weight").shape[0], head)
                yield from self._linear(
                    f"attn_{short}", f"{short}_proj", name, None if short == "v" else order
                )
            yield from self._linear("attn_output", "o_proj", name)
        elif self.zero_heads:
            yield FileTensor(f"{name}.attn_norm.weight", lambda: torch.ones(width))
            for short in "qkv":
                yield _zeros(f"{name}.attn_{short}.weight", (head, width), like)
            yield _zeros(f"{name}.attn_output.weight", (width, head), like)
            yield from _bias(f"{name}.attn_output", self.start)
        if self.mlp is not None:
            yield _norm(f"{name}.ffn_norm", self.norms[1])
            for short in ("gate", "up", "down"):
                yield from self._linear(f"ffn_{short}", f"{short}_proj", name)
        else:
            yield FileTensor(f"{name}.ffn_norm.weight", lambda: torch.ones(width))
            for short in ("gate", "up"):
                yield _zeros(f"{name}.ffn_{short}.weight", (ZEROS, width), like)
            yield _zeros(f"{name}.ffn_down.weight", (width, ZEROS), like)
            yield from _bias(f"{name}.ffn_down", self.end)

    def _linear(self, short: str, own: str, name: str, rows: Tensor | None = None) -> Iterator[FileTensor]:
        """A weight and its bias."""
        branch, inside = (self.mlp, "mlp") if short.startswith("ffn") else (self.attention, "self_attn")
        assert branch is not None
        weight, bias = _parameter(branch, f"{own}.weight"), branch.get_submodule(own).bias
        source = f"{self.path}.{inside}.{own}.weight"
        yield FileTensor(
            f"{name}.{short}.weight", lambda: weight if rows is None else weight[rows], source, rows
        )
        added = [bias if rows is None else bias[rows]] if isinstance(bias, Tensor) else []
        yield from _bias(f"{name}.{short}", [*added, *(self.end if short == "ffn_down" else [])])


@dataclass(frozen=True)
class LlamaShape:
    """What a file says of a model.

    Attributes:
        architecture: "llama", or "deci" if layers differ.
        heads: of each layer.
        shared: heads of keys and values of each layer.
        neurons: of the MLP of each layer.
        head: width of a head.
        width: of the stream.
        vocabulary: rows of the embedding.
        context: positions.
        epsilon: of norms.
        base: of rotary embeddings.
        entries: all tensors.
    """

    architecture: str
    heads: list[int]
    shared: list[int]
    neurons: list[int]
    head: int
    width: int
    vocabulary: int
    context: int
    epsilon: float
    base: float
    entries: list[FileTensor]


def llama_shape(model: nn.Module) -> LlamaShape:
    """Read a model.

    Raises:
        CannotExport: llama.cpp has no architecture that computes what it does; the message says what to do.
    """
    config: Any = getattr(model, "config", None)
    check_family(model)
    inner = model.get_submodule("model")
    layers = _layers(inner)
    head = _head_width(config, inner)
    widths = [layer.widths(head) for layer in layers]
    heads, shared, neurons = (list(one) for one in zip(*widths, strict=True))
    even = len(set(widths)) == 1
    embedding = inner.get_parameter("embed_tokens.weight")
    rope = _rope(config)
    entries = [FileTensor("token_embd.weight", lambda: embedding, "model.embed_tokens.weight")]
    entries.append(_norm("output_norm", inner.get_submodule("norm")))
    out = model.get_parameter("lm_head.weight")
    if out is not embedding:
        entries.append(FileTensor("output.weight", lambda: out, "lm_head.weight"))
    if (factors := _rope_factors(inner, rope["rope_theta"], head)) is not None:
        entries.append(FileTensor("rope_freqs.weight", lambda: factors))
    for number, layer in enumerate(layers):
        entries += layer.entries(f"blk.{number}", head, embedding)
    window = getattr(config, "sliding_window", None) if config.model_type == "mistral" else None
    return LlamaShape(
        architecture="llama" if even else "deci",
        heads=heads,
        shared=shared,
        neurons=neurons,
        head=head,
        width=embedding.shape[1],
        vocabulary=embedding.shape[0],
        context=min(config.max_position_embeddings, window or config.max_position_embeddings),
        epsilon=config.rms_norm_eps,
        base=rope["rope_theta"],
        entries=entries,
    )


def check_family(model: nn.Module) -> None:
    """Refuse what is no Llama-shaped language model."""
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES or not hasattr(model, "lm_head"):
        what = f"{type(model).__name__} ({kind})" if kind else type(model).__name__
        raise CannotExport(
            f"the model must be a causal language model of {', '.join(FAMILIES)}, got {what}: {ANOTHER_WAY}"
        )
    if getattr(config, "hidden_act", "") not in ("silu", "swish"):
        raise CannotExport(f"MLPs in GGUF must have silu, got {config.hidden_act}: {ANOTHER_WAY}")
    if getattr(config, "use_sliding_window", False):
        raise CannotExport(f"attention in GGUF must see all tokens, got a sliding window: {ANOTHER_WAY}")
    rope = _rope(config)
    if rope["rope_type"] not in ROPES or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise CannotExport(
            f"rotary embeddings must be {', '.join(ROPES)} of whole heads, got {rope}: {ANOTHER_WAY}"
        )


def _rope(config: Any) -> dict[str, Any]:
    found = {"rope_type": "default", "rope_theta": 10000.0}
    return found | dict(getattr(config, "rope_parameters", None) or {})


def _head_width(config: Any, inner: nn.Module) -> int:
    found = [getattr(module, HEAD_WIDTH, None) for module in inner.modules()]
    given = head_width(config, getattr(config, CONFIG_HEADS[0]))
    return next((width for width in found if isinstance(width, int)), int(given))


def _rope_factors(inner: nn.Module, base: float, head: int) -> Tensor | None:
    """What frequencies are divided by; None if by nothing."""
    usual = 1.0 / base ** (torch.arange(0, head, 2, dtype=torch.float32) / head)
    factors = usual / inner.get_buffer("rotary_emb.inv_freq").float().cpu()
    return None if torch.allclose(factors, torch.ones_like(factors), rtol=1e-5) else factors


def _layers(inner: nn.Module) -> list[FileLayer]:
    """The layers of the file: without those that are evicted as a whole, and with constants in their
    places.
    """
    found: list[FileLayer] = []
    for name, module in inner.get_submodule("layers").named_children():
        if not all(hasattr(module, part) for part in ("self_attn", "mlp", *LLAMA_NORMS)):
            raise CannotExport(
                f"layer {name} must have an attention and an MLP, got {type(module).__name__}: {ANOTHER_WAY}"
            )
        attention, mlp = module.get_submodule("self_attn"), module.get_submodule("mlp")
        before, after = _constant(attention), _constant(mlp)
        if found:
            found[-1].end.extend(before or ())
        if found and before is not None and after is not None:
            found[-1].end.extend(after)
            continue
        layer = FileLayer(
            path=f"model.layers.{name}",
            norms=(module.get_submodule(LLAMA_NORMS[0]), module.get_submodule(LLAMA_NORMS[1])),
            attention=None if before is not None else attention,
            mlp=None if after is not None else mlp,
            zero_heads=before is not None and not found,
            start=before or [],
            end=after or [],
        )
        found.append(layer)
    return found


def _constant(branch: nn.Module) -> list[Tensor] | None:
    """What is left of an evicted branch; None if it is not evicted."""
    if not isinstance(branch, ZeroOutput):
        return None
    return [] if branch.bias is None else [branch.bias]


def _parameter(module: nn.Module, name: str) -> Tensor:
    return module.get_parameter(name)


def _interleaved(rows: int, head: int) -> Tensor:
    """The order of the rows of queries and keys: transformers turns channel k with k + head/2, llama.cpp
    with its neighbour.

    >>> _interleaved(8, 4).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return torch.arange(rows).reshape(rows // head, 2, head // 2).swapaxes(1, 2).reshape(-1)


def _norm(name: str, module: nn.Module) -> FileTensor:
    weight = _parameter(module, "weight")
    return FileTensor(f"{name}.weight", lambda: weight)


def _zeros(name: str, shape: tuple[int, int], like: Tensor) -> FileTensor:
    return FileTensor(name, lambda: torch.zeros(shape, dtype=like.dtype))


def _bias(name: str, parts: Sequence[Tensor]) -> Iterator[FileTensor]:
    """The sum of constants, if there are any."""
    if parts:
        yield FileTensor(f"{name}.bias", lambda: torch.stack([one.flatten().float() for one in parts]).sum(0))
