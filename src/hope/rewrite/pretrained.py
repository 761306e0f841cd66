"""A compressed model of transformers as a folder for `from_pretrained`.

Rounded weights are packed as compressed-tensors does it ("pack-quantized"): whole numbers in words of 32
bits, the first in the lowest bits, and scales in the model's type. Whoever loads the folder needs that
package.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.files import write_file
from hope.errors import CannotExport, CannotWrite
from hope.geometry.rounding import pack, per_column
from hope.rewrite.config import configured, loadable
from hope.rewrite.experts import opened_in, stack_experts
from hope.rewrite.gguf_file import HasGrids
from hope.rewrite.packed_onnx import HALF, Grid
from hope.schedule.bit_options import GROUPS

CONFIG = "config.json"
FORMAT = "pack-quantized"
TOKENIZER = (".json", ".txt", ".model", ".jinja")  # files of a tokenizer
WORD = 32  # bits of a number that holds several


@dataclass(frozen=True)
class WrittenModel:
    """A folder that was written; it can be given wherever a path can.

    Attributes:
        path: where it is.
        packed: weight -> its bits in the file.
    """

    path: Path
    packed: Mapping[str, int]

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        bits = " and ".join(map(str, sorted(set(self.packed.values()))))
        words = f"; {len(self.packed)} weights in {bits} bits, which needs the package compressed-tensors"
        return f"{self.path}: the model, for from_pretrained{words if self.packed else ''}"


def save_pretrained(network: nn.Module | HasGrids, folder: str | os.PathLike[str]) -> WrittenModel:
    """Write a model of transformers for `from_pretrained`, which needs nothing of HOPE.

    Linear layers that were rounded with `bits=` are packed, 2 to 4 bits as 4 and 5 to 8 bits as 8, if a group
    of inputs divides them: whoever loads the folder needs `pip install compressed-tensors`. Other rounded
    weights, and stacked experts, are written in the model's type. `encoding.model.save_pretrained` writes
    all of them so. The files of the tokenizer are copied from the folder that the model was loaded from.

    Args:
        network: an encoding, or a model.
        folder: where to; not where the original is.

    Raises:
        CannotExport: it is no model of transformers, or its configuration cannot express its widths.
        CannotWrite: the original is there.

    Example:
        >>> import tempfile, torch, hope
        >>> from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=64)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
        >>> batch = {"input_ids": torch.arange(64).reshape(4, 16)}
        >>> encoding = hope.encode(model.eval(), batch, bits=4, calibration=[batch])
        >>> written = hope.save_pretrained(encoding, tempfile.mkdtemp() + "/small")
        >>> len(written.packed), written.packed["model.layers.0.mlp.down_proj.weight"]
        (15, 4)
        >>> AutoModelForCausalLM.from_pretrained(written)  # doctest: +SKIP
    """
    if isinstance(network, nn.Module):
        return write_pretrained(network, {}, Path(folder))
    return write_pretrained(network.model, network.grids, Path(folder))


def write_pretrained(model: nn.Module, grids: Mapping[str, Grid], folder: Path) -> WrittenModel:
    """What `save_pretrained` writes, of a model and its rounded weights."""
    check_configured(model)
    if not loadable(model):
        raise CannotExport(
            f"the configuration of {type(model).__name__} cannot express these widths, so from_pretrained "
            "would fail: encode with --uniform, or give --out FILE (in Python: uniform=True, encoding.save)"
        )
    source = source_of(model)
    if source is not None and folder.resolve() == source.resolve():
        raise CannotWrite(f"{folder} must not be replaced, the original is there: give another folder")
    closed = stack_experts(model) if opened_in(model) else model
    modules = dict(closed.named_modules())
    found = {name: _packed(modules.get(name.removesuffix(".weight")), grid) for name, grid in grids.items()}
    packed = {name: one for name, one in found.items() if one is not None}
    given = {"state_dict": _with_packed(closed.state_dict(), packed)} if packed else {}
    closed.save_pretrained(folder, **given)  # type: ignore[operator]
    if packed:
        config = json.loads((folder / CONFIG).read_text())
        config["quantization_config"] = _description(modules, packed)
        write_file(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    for file in source.iterdir() if source is not None else ():
        is_tokenizer = file.suffix in TOKENIZER and not file.name.endswith(".index.json")
        if is_tokenizer and not (folder / file.name).exists():
            write_file(folder / file.name, file.read_bytes())
    return WrittenModel(folder, {name: one.bits for name, one in packed.items()})


def check_configured(model: nn.Module) -> None:
    """Refuse a network that is no model of transformers."""
    if not configured(model):
        raise CannotExport(
            f"--save-pretrained must get a transformers model, got {type(model).__name__}: give --out FILE "
            "instead (in Python: encoding.save)"
        )


def source_of(model: nn.Module) -> Path | None:
    """The folder that a model was loaded from."""
    name = getattr(model.config, "_name_or_path", "") or ""
    return Path(name) if name and Path(name).is_dir() else None


@dataclass(frozen=True)
class _Packed:
    """A rounded weight as it is in the file.

    Attributes:
        bits: 4 or 8, the numbers that all readers of the format have.
        group: inputs that share a scale; None for all.
        words: (outputs, words) int32.
        scale: (outputs, groups).
        shape: of the weight.
    """

    bits: int
    group: int | None
    words: Tensor
    scale: Tensor
    shape: Tensor


def _packed(module: nn.Module | None, grid: Grid) -> _Packed | None:
    """None if the format cannot hold the weight to the bit."""
    if not isinstance(module, nn.Linear):
        return None
    weight = module.weight.detach().cpu()
    columns, groups = weight.shape[1], grid.scale.shape[1]
    group = columns // groups
    if groups > 1 and (columns % groups or group not in GROUPS):
        return None
    scale = grid.scale.to(weight.dtype)
    if not torch.equal(grid.whole.to(weight.dtype) * per_column(scale, columns, group), weight):
        return None  # a scale that is too small for half precision
    bits = 4 if int(grid.whole.abs().max()) <= HALF else 8
    shifted = grid.whole.int() + (1 << (bits - 1))
    filled = nn.functional.pad(shifted, (0, -columns % (WORD // bits)))
    words = pack(filled, bits).view(torch.int32).reshape(len(weight), -1)
    return _Packed(bits, group if groups > 1 else None, words, scale, torch.tensor(weight.shape))


def _with_packed(state: Mapping[str, Tensor], packed: Mapping[str, _Packed]) -> dict[str, Tensor]:
    found = {name: tensor for name, tensor in state.items() if name not in packed}
    for name, one in packed.items():
        found |= {f"{name}_packed": one.words, f"{name}_scale": one.scale, f"{name}_shape": one.shape}
    return found


def _description(modules: Mapping[str, nn.Module], packed: Mapping[str, _Packed]) -> dict[str, Any]:
    """What config.json says of packed weights."""
    schemes: dict[tuple[int, int | None], list[str]] = defaultdict(list)
    for name, one in packed.items():
        schemes[one.bits, one.group].append(name.removesuffix(".weight"))
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    return {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "ignore": [name for name in linear if f"{name}.weight" not in packed],
        "config_groups": {
            f"group_{k}": {"targets": names, "weights": _scheme(*scheme)}
            for k, (scheme, names) in enumerate(schemes.items())
        },
    }


def _scheme(bits: int, group: int | None) -> dict[str, Any]:
    """How some weights are packed."""
    kind = {"num_bits": bits, "type": "int", "symmetric": True, "dynamic": False}
    return kind | {"strategy": "group" if group else "channel", "group_size": group}
