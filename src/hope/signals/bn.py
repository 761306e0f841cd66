"""A checkpoint's numbers, and what its BNs say of the signals behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hope.anatomy.anatomy import Anatomy


@dataclass(frozen=True)
class Bn:
    """A BN's numbers, float64."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    variance: Tensor
    eps: float
    literal: bool = False

    @property
    def gain(self) -> Tensor:
        """γ/√(σ² + ε): what the BN multiplies its input by."""
        return self.scale / torch.sqrt(self.variance + self.eps)

    @property
    def spread(self) -> Tensor:
        """Deviation of the BN's output, |γ|·√(σ²/(σ² + ε)); taken literally, |γ|."""
        if self.literal:
            return self.scale.abs()
        return self.scale.abs() * torch.sqrt(self.variance / (self.variance + self.eps))


@dataclass(frozen=True)
class Numbers:
    """Parameters and buffers of a model, on the CPU, and the ε of its BNs.

    Attributes:
        tensors: name -> parameter or buffer.
        eps: BN -> its ε, as the captured network uses it.
        literal: whether a signal's deviation is |γ| as the paper prints it, with ε dropped.
    """

    tensors: Mapping[str, Tensor]
    eps: Mapping[str, float]
    literal: bool = False

    @classmethod
    def of(cls, model: nn.Module, anatomy: Anatomy, *, literal: bool = False) -> Numbers:
        """The numbers of a model."""
        every = [*model.named_parameters(), *model.named_buffers()]
        return cls({name: tensor.detach().cpu() for name, tensor in every}, anatomy.eps, literal)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def bn(self, name: str | None) -> Bn | None:
        """The numbers of the BN of that name; None if there is none, or it keeps no statistics."""
        mean, variance = self.tensors.get(f"{name}.running_mean"), self.tensors.get(f"{name}.running_var")
        if name is None or name not in self.eps or mean is None or variance is None:
            return None
        scale, shift = self.tensors.get(f"{name}.weight"), self.tensors.get(f"{name}.bias")
        one = torch.ones_like(variance, dtype=torch.float64)
        return Bn(
            scale.double() if scale is not None else one,
            shift.double() if shift is not None else torch.zeros_like(one),
            mean.double(),
            variance.double().clamp(min=0),
            self.eps[name],
            self.literal,
        )
