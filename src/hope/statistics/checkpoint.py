"""A checkpoint's numbers, and what its BNs, or a few inputs, say of its signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from hope.ops.norm import Bn, read_bn
from hope.statistics.marginals import Marginals
from hope.structure.anatomy import Anatomy


@dataclass(frozen=True)
class Checkpoint:
    """Parameters and buffers of a model, on the CPU, and the ε of its BNs."""

    tensors: Mapping[str, Tensor]  # name -> parameter or buffer
    eps: Mapping[str, float]  # BN -> its ε, as the captured network uses it
    literal: bool = False  # whether a signal's deviation is |γ| as the paper prints it, with ε dropped
    # signals as a few inputs showed them, in place of what BNs say; None without inputs
    measured: Marginals | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        anatomy: Anatomy,
        *,
        literal: bool = False,
        measured: Marginals | None = None,
    ) -> Checkpoint:
        """The numbers of a model."""
        every = [*model.named_parameters(), *model.named_buffers()]
        return cls({name: tensor.detach().cpu() for name, tensor in every}, anatomy.eps, literal, measured)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def bn(self, name: str | None) -> Bn | None:
        """The numbers of the BN of that name; None if there is none, or it keeps no statistics."""
        if name is None or name not in self.eps:
            return None
        found = read_bn(self.tensors, name, self.eps[name])
        return found if found is None or not self.literal else replace(found, literal=True)
