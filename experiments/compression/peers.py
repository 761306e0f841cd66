"""An outside peer: Torch-Pruning's data-free criteria, with its own grouping (an optional extra)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from hope._util.calls import duplicate
from hope.bench.budgets import KEPT, parse
from hope.errors import HopeError, InfeasibleBudget
from hope.structure.anatomy import Anatomy

NAMES = ("torch-pruning magnitude", "torch-pruning BN scale", "torch-pruning LAMP", "torch-pruning FPGM")
STEPS = 200  # how finely the ratio is raised
At = Callable[[str], tuple[nn.Module, dict[str, Any]]]  # budget -> (network, facts)


class MissingPeer(HopeError):
    """Torch-Pruning is not installed."""


def installed() -> bool:
    """Whether the peers can be measured here."""
    return find_spec("torch_pruning") is not None


def check(name: str) -> None:
    """Say before any work that a peer cannot be measured here."""
    if not installed():
        raise MissingPeer(
            f"{name} needs Torch-Pruning: pip install 'hope-encoding[peers]', or leave the method out"
        )


def _importance(name: str) -> Any:
    check(name)
    import torch_pruning as tp

    kinds = {
        "magnitude": tp.importance.GroupMagnitudeImportance,
        "BN scale": tp.importance.BNScaleImportance,
        "LAMP": tp.importance.LAMPImportance,
        "FPGM": tp.importance.FPGMImportance,
    }
    return kinds[name.removeprefix("torch-pruning ")]()


def compressed(name: str, model: nn.Module, example: Tensor, anatomy: Anatomy) -> At:
    """budget -> (network, facts). The ratio is raised in small steps until the budget is met.

    Torch-Pruning also cuts residual streams, so its "neurons" are those of the layers that this library
    lists; parameters and MACs are counted in the same way for both.
    """
    importance = _importance(name)
    original = anatomy.size()

    def at(budget: str) -> tuple[nn.Module, dict[str, Any]]:
        import torch_pruning as tp

        unit, share = parse(budget)
        small = duplicate(model)
        heads = [module for module in small.modules() if isinstance(module, nn.Linear)][-1:]
        pruner = tp.pruner.BasePruner(
            small,
            example,
            importance=importance,
            global_pruning=True,
            pruning_ratio=1.0,
            max_pruning_ratio=0.99,
            iterative_steps=STEPS,
            ignored_layers=heads,
        )
        facts = _facts(small, anatomy, example, original)
        for _ in range(STEPS):
            if facts[KEPT[unit]] <= share:
                break
            pruner.step()
            facts = _facts(small, anatomy, example, original)
        if facts[KEPT[unit]] > share:
            raise InfeasibleBudget(
                f"{budget} cannot be met: {name} comes down to {unit}={facts[KEPT[unit]]:.4f}"
            )
        return small.eval(), {**facts, "mix": {}}

    return at


def _facts(small: nn.Module, anatomy: Anatomy, example: Tensor, original: Any) -> dict[str, float]:
    tensors = dict(small.named_parameters())
    neurons = sum(int(tensors[layer.weight].shape[0]) for layer in anatomy.layers if layer.weight in tensors)
    macs = sum(
        anatomy.positions.get(name, 0) * tensors[name].numel() for name in anatomy.parameters & tensors.keys()
    )
    return {
        "neurons": neurons / original.neurons,
        "parameters": sum(p.numel() for p in tensors.values()) / original.parameters,
        "macs": macs / original.macs,
    }
