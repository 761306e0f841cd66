"""The quadratic penalty of EWC and L2-SP."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Penalty:
    """½ Σ importance·(θ − θ*)² over some parameters.

    Args:
        importance: parameter -> how much each of its entries counts, a number or a tensor of its shape.
        anchors: parameter -> θ*; 0 for parameters that are not here.
    """

    def __init__(
        self, model: nn.Module, importance: Mapping[str, Tensor], anchors: Mapping[str, Tensor]
    ) -> None:
        self.model = model
        self.importance = dict(importance)
        self.anchors = dict(anchors)

    def __call__(self) -> Tensor:
        """The present penalty, to be added to the loss."""
        total = torch.zeros((), device=next(self.model.parameters()).device)
        for name, parameter in self.model.named_parameters():
            if name in self.importance:
                weight = self.importance[name] = self.importance[name].to(parameter.device)
                away: Tensor = parameter
                if name in self.anchors:
                    anchor = self.anchors[name] = self.anchors[name].to(parameter.device)
                    away = parameter - anchor
                total = total + (weight * away.square()).sum() / 2
        return total
