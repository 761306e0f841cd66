"""The baselines, with the same interface as DEFT: a `Tuning` to train with any loop.

Add `tuning.penalty()` to the loss; it is 0 for methods without one. These methods have no slack, so
`source()` masks nothing, except with `masked=True`, which uses the mask of the given partition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope.deft.checks import check_weights
from hope.deft.fisher import Loss, fisher
from hope.deft.heads import new_head
from hope.deft.masks import in_head
from hope.deft.partition import Partition
from hope.deft.penalty import Penalty
from hope.deft.tuning import Tuning
from hope.errors import InvalidHead, InvalidPenalty
from hope.storage.run import fingerprint


def full(model: nn.Module, at: Partition | str, *, head: int | nn.Module | None = None) -> Tuning:
    """Everything is trained.

    Args:
        model: the source model; it is not changed.
        at: the head's name, or a partition, for its head and its mask.
        head: number of outputs of the new head, a module, or None to start from the source's.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        >>> full(net, "3", head=2).print_trainable_parameters()
        trainable params: 74 || all params: 74 || trainable%: 100.0000
    """
    return _tuning("full", model, at, head, lambda name, tensor: False)


def head_only(model: nn.Module, at: Partition | str, *, head: int | nn.Module | None = None) -> Tuning:
    """Only the head is trained; the backbone is a fixed feature extractor, including BN statistics.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        >>> head_only(net, "3", head=2).print_trainable_parameters()
        trainable params: 18 || all params: 74 || trainable%: 24.3243
    """
    return _tuning("head-only", model, at, head, lambda name, tensor: True, freeze_statistics=True)


def bn_tuning(model: nn.Module, at: Partition | str, *, head: int | nn.Module | None = None) -> Tuning:
    """The paper's PEFT: all one-dimensional tensors (BN scales and shifts, biases) and the head are trained.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        >>> bn_tuning(net, "3", head=2).print_trainable_parameters()
        trainable params: 42 || all params: 74 || trainable%: 56.7568
    """
    return _tuning("bn-tuning", model, at, head, lambda name, tensor: tensor.ndim > 1)


def ewc(
    model: nn.Module,
    at: Partition | str,
    *,
    batches: Iterable[tuple[Tensor, Tensor]] | None = None,
    importance: Mapping[str, Tensor] | None = None,
    strength: float = 1.0,
    head: int | nn.Module | None = None,
    loss: Loss = nn.functional.cross_entropy,
) -> Tuning:
    """Elastic weight consolidation: λ/2 Σ FIM_i·(θ_i − θ_i*)² over the backbone is added to the loss.

    Args:
        model: the source model; it is not changed.
        at: the head's name, or a partition.
        batches: source training data, to compute the Fisher information on.
        importance: the Fisher information, where it is at hand (see `fisher`); instead of `batches`.
        strength: λ.
        head: as in `full`.
        loss: the source's loss.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        >>> data = [(torch.randn(16, 4), torch.randint(3, (16,)))]
        >>> tuning = ewc(net, "3", batches=data, strength=5.0, head=2)
        >>> tuning.penalty().item()
        0.0
    """
    _check_strength(strength=strength)
    if importance is None:
        if batches is None:
            raise InvalidPenalty(
                "EWC must have source data or its Fisher information, got none: pass batches= or importance="
            )
        importance = fisher(model, batches, loss=loss)
    tuning = _tuning("ewc", model, at, head, lambda name, tensor: False)
    shapes = {n: p.shape for n, p in tuning.model.named_parameters() if not in_head(n, tuning.head)}
    given = {name: weight for name, weight in importance.items() if not in_head(name, tuning.head)}
    wrong = [name for name in sorted(shapes.keys() | given.keys()) if not _fits(shapes, given, name)]
    if wrong:
        raise InvalidPenalty(
            "importance must have a tensor for every parameter of the backbone of this "
            f"{type(model).__name__}, of the same shape, and nothing else, got others at "
            f"{', '.join(wrong[:5])}: compute it with hope.deft.fisher"
        )
    weights = {name: strength * weight for name, weight in given.items()}
    _penalise(tuning, weights, weights)
    return tuning


def l2_sp(
    model: nn.Module,
    at: Partition | str,
    *,
    strength: float = 0.1,
    head_strength: float = 0.01,
    head: int | nn.Module | None = None,
) -> Tuning:
    """L2-SP (Li et al., 2018): α/2 ‖θ − θ*‖² over the backbone and β/2 ‖θ‖² over the head.

    Args:
        model: the source model; it is not changed.
        at: the head's name, or a partition.
        strength: α.
        head_strength: β.
        head: as in `full`.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        >>> l2_sp(net, "3", head_strength=0.0, head=2).penalty().item()
        0.0
    """
    _check_strength(strength=strength, head_strength=head_strength)
    tuning = _tuning("l2-sp", model, at, head, lambda name, tensor: False)
    names = [name for name, _ in tuning.model.named_parameters()]
    weights = {n: torch.tensor(head_strength if in_head(n, tuning.head) else strength) for n in names}
    _penalise(tuning, weights, [name for name in names if not in_head(name, tuning.head)])
    return tuning


def _check_strength(**given: float) -> None:
    for name, value in given.items():
        if not 0 <= value < math.inf:
            raise InvalidPenalty(f"{name} must be finite and at least 0, got {value}: give 0 or more")


def _fits(shapes: Mapping[str, torch.Size], given: Mapping[str, Tensor], name: str) -> bool:
    """Whether an existing parameter gets a tensor of its shape, or a number."""
    return name in shapes and name in given and given[name].shape in (shapes[name], torch.Size())


def _penalise(tuning: Tuning, weights: Mapping[str, Tensor], anchored: Iterable[str]) -> None:
    now = {name: parameter.detach().clone() for name, parameter in tuning.model.named_parameters()}
    tuning.set_penalty(Penalty(tuning.model, weights, {name: now[name] for name in anchored}))


def _tuning(
    method: str,
    model: nn.Module,
    at: Partition | str,
    head: int | nn.Module | None,
    freezes: Callable[[str, Tensor], bool],
    *,
    freeze_statistics: bool = False,
) -> Tuning:
    """A tuning that freezes whole tensors.

    Args:
        freezes: name and parameter -> whether it is frozen.
    """
    name = at if isinstance(at, str) else at.head
    if not name or name not in dict(model.named_modules()):
        raise InvalidHead(
            f"head must be a module of this {type(model).__name__}, got {name!r}: see model.named_modules()"
        )
    if not isinstance(at, str):
        check_weights(model, at.original)
    tuned = duplicate(model)
    frozen = {
        key: torch.tensor(freezes(key, tensor)).reshape([1] * tensor.ndim)
        for key, tensor in [*tuned.named_parameters(), *tuned.named_buffers()]
    }
    return Tuning(
        tuned,
        method=method,
        head=name,
        new_head=new_head(tuned.get_submodule(name), head, name, model),
        frozen=frozen,
        columns={} if isinstance(at, str) else at.head_columns,
        freeze_statistics=freeze_statistics,
        original=fingerprint(model),
        masks_source=False,
    )
