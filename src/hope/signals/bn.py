"""A checkpoint's numbers, and what its BNs say of the signals behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from hope.anatomy.anatomy import Anatomy
from hope.ops.norm import Bn, read_bn


@dataclass(frozen=True)
class Numbers:
    """Parameters and buffers of a model, on the CPU, and the ε of its BNs.

    Attributes:
        tensors: name -> parameter or buffer.
        eps: BN -> its ε, as the captured network uses it.
    """

    tensors: Mapping[str, Tensor]
    eps: Mapping[str, float]

    @classmethod
    def of(cls, model: nn.Module, anatomy: Anatomy) -> Numbers:
        """The numbers of a model."""
        every = [*model.named_parameters(), *model.named_buffers()]
        return cls({name: tensor.detach().cpu() for name, tensor in every}, anatomy.eps)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def bn(self, name: str | None) -> Bn | None:
        """The numbers of the BN of that name; None if there is none, or it keeps no statistics."""
        return read_bn(self.tensors, name, self.eps[name]) if name is not None and name in self.eps else None
