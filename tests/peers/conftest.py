"""The networks here are large: `torch.export` reads each once, for the package and for the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree


@pytest.fixture(autouse=True)
def _exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    export = torch.export.export
    known: dict[str, tuple[nn.Module, ExportedProgram]] = {}  # a held model keeps its id

    def once(model: nn.Module, args: tuple[Any, ...], kwargs: Any = None, **options: Any) -> ExportedProgram:
        leaves, structure = pytree.tree_flatten((args, kwargs or {}))
        inputs = [(one.shape, one.dtype) if isinstance(one, Tensor) else one for one in leaves]
        training = [module.training for module in model.modules()]
        key = str((id(model), torch.is_grad_enabled(), training, inputs, structure, options))
        if key not in known:
            known[key] = model, export(model, args, kwargs, **options)
        return known[key][1]

    monkeypatch.setattr(torch.export, "export", once)
