"""A Llama-shaped model as a GGUF file, for llama.cpp: layers may differ in every width."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hope._util.files import staged
from hope.errors import CannotExport, MissingExtra
from hope.rewrite.gguf_blocks import block_type, blocks_of
from hope.rewrite.gguf_layers import FileTensor, LlamaShape, llama_shape
from hope.rewrite.gguf_tokenizer import FILE, add_tokenizer
from hope.rewrite.packed_onnx import HALF, Grid


class HasGrids(Protocol):
    """What `hope.encode` returns."""

    @property
    def model(self) -> nn.Module:
        """The compressed model."""

    @property
    def grids(self) -> dict[str, Grid]:
        """Its rounded weights."""


@dataclass(frozen=True)
class WrittenGGUF:
    """A GGUF file that was written; it can be given wherever a path can.

    Attributes:
        path: where it is.
        architecture: what llama.cpp loads it as: "llama", or "deci" if layers differ.
        layers: how many it has.
        tokenizer: where its tokenizer comes from; None without one.
    """

    path: Path
    architecture: str
    layers: int
    tokenizer: Path | None

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        words = "" if self.tokenizer else "; it has no tokenizer: give a folder with tokenizer.json"
        return f"{self.path}: for llama.cpp ({self.architecture}, {self.layers} layers){words}"


def export_gguf(
    network: nn.Module | HasGrids,
    path: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
) -> WrittenGGUF:
    """Write a Llama-shaped language model of transformers (Llama, Mistral, Qwen2) for llama.cpp.

    Layers may have different numbers of neurons and heads, and evicted branches: these are written for
    llama.cpp's architecture `deci`, models of one width for `llama`. Evicted layers are left out; the
    constants that they leave become biases. Weights have the model's type. Those that were rounded with
    `bits=` are written to the bit as llama.cpp's blocks, Q4_0 or Q8_0, if their inputs are a multiple of 32
    (`group=32`, `multiple_of=32`).

    Args:
        network: an encoding, or a model.
        path: the file, which is written completely or not at all.
        tokenizer: a folder with `tokenizer.json`, or a GGUF file of the original to copy it from; by default
            the folder that the model was loaded from. Without any, llama.cpp takes numbers of tokens only.

    Raises:
        MissingExtra: the package gguf is not installed.
        CannotExport: llama.cpp has no architecture that computes what the model does.

    Example:
        >>> import tempfile, hope
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=64)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
        >>> written = hope.export_gguf(model, tempfile.mkdtemp() + "/small.gguf")
        >>> written.architecture, written.layers
        ('llama', 2)
    """
    if isinstance(network, nn.Module):
        return write_gguf(network, {}, Path(path), tokenizer)
    return write_gguf(network.model, network.grids, Path(path), tokenizer)


def write_gguf(
    model: nn.Module,
    grids: Mapping[str, Grid],
    path: Path,
    tokenizer: str | os.PathLike[str] | None,
) -> WrittenGGUF:
    """What `export_gguf` writes, of a model and its rounded weights."""
    check_package()
    shape, source = llama_shape(model), _source(model, tokenizer)
    with staged(path) as place:
        _write(place, shape, grids, source)
    return WrittenGGUF(path, shape.architecture, len(shape.heads), source)


def check_package() -> None:
    """Refuse to write without the package that knows the format."""
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtra("GGUF needs the package gguf: pip install 'hope-encoding[gguf]'")


def _source(model: nn.Module, given: str | os.PathLike[str] | None) -> Path | None:
    """Where the tokenizer is."""
    if given is not None:
        if not Path(given).is_file() and not Path(given, FILE).is_file():
            raise CannotExport(
                f"tokenizer must be a folder with {FILE} or a GGUF file, got {given}: give the original's"
            )
        return Path(given)
    name = getattr(model.config, "_name_or_path", "") or ""
    return Path(name) if name and Path(name, FILE).is_file() else None


def _write(place: Path, shape: LlamaShape, grids: Mapping[str, Grid], tokenizer: Path | None) -> None:
    """Write one tensor after another."""
    from gguf import GGUFWriter

    writer = GGUFWriter(place, shape.architecture)
    _add_numbers(writer, shape)
    add_tokenizer(writer, tokenizer, shape.vocabulary)
    for entry in shape.entries:
        array, kind = _array(entry, grids)
        writer.add_tensor_info(entry.name, array.shape, array.dtype, array.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for entry in shape.entries:
        writer.write_tensor_data(_array(entry, grids)[0])
    writer.close()


def _add_numbers(writer: Any, shape: LlamaShape) -> None:
    """What llama.cpp builds the model from."""
    uneven = shape.architecture == "deci"
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(len(shape.heads))
    writer.add_feed_forward_length(shape.neurons if uneven else shape.neurons[0])
    writer.add_head_count(shape.heads if uneven else shape.heads[0])
    writer.add_head_count_kv(shape.shared if uneven else shape.shared[0])
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(shape.base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(shape.vocabulary)


def _array(entry: FileTensor, grids: Mapping[str, Grid]) -> tuple[NDArray[Any], Any]:
    """A tensor as it is in the file, and its type there if that is none of numpy's."""
    from gguf import GGMLQuantizationType as Kind

    if (packed := _blocks(entry, grids)) is not None:
        return packed
    tensor: Tensor = entry.make().detach().cpu()
    if tensor.ndim < 2:  # norms and biases, which llama.cpp computes with in single precision
        return tensor.float().contiguous().numpy(), None
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.uint8).numpy(), Kind.BF16
    wide = tensor if tensor.dtype in (torch.float16, torch.float32) else tensor.float()
    return np.ascontiguousarray(wide.numpy()), None


def _blocks(entry: FileTensor, grids: Mapping[str, Grid]) -> tuple[NDArray[Any], Any] | None:
    """A rounded weight in blocks of 32 inputs; None if it is not rounded, or does not fit."""
    from gguf import GGMLQuantizationType as Kind

    grid = grids.get(entry.source)
    if grid is None:
        return None
    columns, groups = grid.whole.shape[1], grid.scale.shape[1]
    bits = 4 if int(grid.whole.abs().max()) <= HALF else 8
    kind = block_type(bits, -(-columns // groups) if groups > 1 else 0, columns)
    if kind is None:
        return None
    rows = slice(None) if entry.rows is None else entry.rows
    return blocks_of(Grid(grid.whole[rows], grid.scale[rows]), kind), Kind[kind]
