"""What can be taken out of a transformer: MLP neurons and attention heads, layer by layer.

Heads that share a key and a value are one unit. Networks are cut for real: what is left is of their own
class, with narrower linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

KINDS = ("mlp", "heads", "both")


@dataclass(frozen=True)
class Form:
    """Where an architecture has its layers, and in them what writes and what reads each kind of unit."""

    layers: str
    mlp: tuple[tuple[str, ...], str]
    heads: tuple[tuple[str, ...], str]


FORMS = {
    "llama": Form(
        "model.layers",
        (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),
        (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.o_proj"),
    ),
    "bert": Form(
        "encoder.layer",
        (("intermediate.dense",), "output.dense"),
        (
            ("attention.self.query", "attention.self.key", "attention.self.value"),
            "attention.output.dense",
        ),
    ),
}


@dataclass(frozen=True)
class Part:
    """The MLP or the attention of one layer.

    Attributes:
        kind: "mlp" or "heads".
        units: how many there are.
        writers: modules whose rows are the units', in equal runs.
        reader: the module whose columns are.
        size: parameters of one unit.
    """

    kind: str
    units: int
    writers: tuple[str, ...]
    reader: str
    size: int


def form_of(model: nn.Module) -> Form:
    """Of a model that transformers made."""
    return FORMS[config_of(model).model_type]


def config_of(model: nn.Module) -> Any:
    """What transformers knows of a model."""
    return model.config


def layers_of(model: nn.Module) -> nn.ModuleList:
    """Its layers, in order."""
    found = model.get_submodule(form_of(model).layers)
    assert isinstance(found, nn.ModuleList)
    return found


def parts_of(model: nn.Module, kind: str = "both") -> list[Part]:
    """All parts of a kind."""
    form, config = form_of(model), config_of(model)
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    found = []
    for index in range(len(layers_of(model))):
        for name, (writers, reader) in (("heads", form.heads), ("mlp", form.mlp)):
            if kind not in (name, "both"):
                continue
            names = [f"{form.layers}.{index}.{module}" for module in (*writers, reader)]
            units = heads if name == "heads" else linear(model, names[0]).out_features
            rows = sum(linear(model, w).weight.numel() for w in names)
            biases = sum(
                linear(model, w).out_features for w in names[:-1] if linear(model, w).bias is not None
            )
            found.append(Part(name, units, tuple(names[:-1]), names[-1], (rows + biases) // units))
    return found


def linear(model: nn.Module, name: str) -> nn.Linear:
    """A linear layer by its name."""
    found = model.get_submodule(name)
    assert isinstance(found, nn.Linear)
    return found


def parameters(model: nn.Module) -> tuple[int, int]:
    """Of all layers, and of the whole model (what is tied counts once)."""
    return tuple(sum(p.numel() for p in m.parameters()) for m in (layers_of(model), model))  # type: ignore[return-value]


def wanted(model: nn.Module, kind: str, share: float) -> int:
    """Parameters that must go: of the parts of a kind, or of the whole layers for both kinds."""
    if kind == "both":
        return round(share * parameters(model)[0])
    return round(share * sum(part.units * part.size for part in parts_of(model, kind)))


def cut(
    model: nn.Module, gone: Mapping[str, Sequence[int]], shifts: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """A smaller copy.

    Args:
        gone: reader of a part -> its units that go.
        shifts: reader -> what is added to what it says; it gets a bias if it has none.
    """
    small = deepcopy(model)
    for part in parts_of(model):
        lost = gone.get(part.reader, ())
        if len(lost):
            kept = torch.tensor([unit for unit in range(part.units) if unit not in set(lost)])
            for name in part.writers:
                _narrow(linear(small, name), places(kept, linear(model, name).out_features, part.units), 0)
            module = linear(small, part.reader)
            _narrow(module, places(kept, module.in_features, part.units), 1)
        if shifts and part.reader in shifts:
            module, shift = linear(small, part.reader), shifts[part.reader].to(model.dtype)  # type: ignore[arg-type]
            module.bias = nn.Parameter(shift if module.bias is None else module.bias.detach() + shift)
    return small


def places(units: Tensor, width: int, of: int) -> Tensor:
    """Where units stand in a dimension that all of them share.

    >>> places(torch.tensor([0, 2]), 6, 3).tolist()
    [0, 1, 4, 5]
    """
    each = width // of
    return (units[:, None] * each + torch.arange(each)).flatten()


def _narrow(module: nn.Linear, left: Tensor, dim: int) -> None:
    module.weight = nn.Parameter(module.weight.detach().index_select(dim, left))
    if dim == 0 and module.bias is not None:
        module.bias = nn.Parameter(module.bias.detach()[left])
    module.out_features, module.in_features = module.weight.shape
