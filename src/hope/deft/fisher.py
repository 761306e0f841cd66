"""The empirical diagonal Fisher information, example by example."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from hope.errors import InvalidPenalty

Loss = Callable[[Tensor, Tensor], Tensor]


def fisher(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    loss: Loss = functional.cross_entropy,
    at_once: int = 32,
) -> dict[str, Tensor]:
    """FIM_i = E[(∂L/∂θ_i)²] over examples with their observed labels (paper, Appendix "EWC").

    It averages the square of each example's gradient, not of a batch's mean. The model runs in evaluation
    mode, because a single example has no batch statistics; its mode is restored.

    Args:
        model: the source model.
        batches: source training data: inputs and labels.
        loss: of outputs and labels, a mean over the batch.
        at_once: examples whose gradients are in memory together.

    Raises:
        InvalidPenalty: there is no data.

    Example:
        >>> net = torch.nn.Linear(2, 2, bias=False)
        >>> found = fisher(net, [(torch.randn(8, 2), torch.zeros(8, dtype=torch.long))])
        >>> tuple(found["weight"].shape)
        (2, 2)
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = {name: b.detach() for name, b in model.named_buffers()}

    def one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, (values, buffers), (x[None],)), y[None])

    each = vmap(grad(one), in_dims=(None, 0, 0))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0
    try:
        for inputs, labels in batches:
            for x, y in zip(torch.split(inputs, at_once), torch.split(labels, at_once), strict=True):
                for name, gradient in each(parameters, x, y).items():
                    total[name] += gradient.square().sum(dim=0)
                count += len(x)
    finally:
        for module, training in modes:
            module.training = training
    if count == 0:
        raise InvalidPenalty(
            "batches must have at least one example for the Fisher information, got none: give batches of "
            "source data"
        )
    return {name: value / count for name, value in total.items()}
