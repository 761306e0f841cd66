"""What the encoder knows of a layer and of a block: numbers only."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hope.geometry.parent import Side


@dataclass
class LayerState:
    """A layer as the paper sees it. All tensors are float64, one entry per neuron unless said otherwise.

    Attributes:
        name: the layer's name.
        capacities: ‖f_i‖.
        release: ΔP of one neuron, static.
        mean, spread, slope, energy, bias: of the signal (see `geometry.parent.Side`); empty where only
            pruning is possible.
        inner: (N, N) Gram matrix of effective filters with biases.
        outer: (N, N) Gram matrix of outgoing weights.
    """

    name: str
    capacities: Tensor
    release: int
    mean: Tensor = field(default_factory=lambda: torch.empty(0))
    spread: Tensor = field(default_factory=lambda: torch.empty(0))
    slope: Tensor = field(default_factory=lambda: torch.empty(0))
    energy: Tensor = field(default_factory=lambda: torch.empty(0))
    bias: Tensor = field(default_factory=lambda: torch.empty(0))
    inner: Tensor = field(default_factory=lambda: torch.empty(0))
    outer: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def mergeable(self) -> bool:
        """Whether pair geometry is known."""
        return self.inner.numel() > 0

    def side(self, which: Tensor | slice | int) -> Side:
        """Some neurons, for the geometry of pairs."""
        diagonal = (self.inner.diagonal()[which], self.outer.diagonal()[which])
        return Side(
            self.mean[which],
            self.spread[which],
            self.slope[which],
            self.energy[which],
            self.bias[which],
            *diagonal,
        )


@dataclass(frozen=True)
class BlockState:
    """A block that may be evicted.

    Attributes:
        name: the block's name.
        layers: positions of its layers among the layer states.
        anchors: what each layer's capacity is held against: E_identity of the skip, or the layer's E_init
            without one.
        release: ΔP of the eviction, static.
    """

    name: str
    layers: tuple[int, ...]
    anchors: tuple[float, ...]
    release: int
