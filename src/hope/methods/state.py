"""What the encoder knows of a layer and of a block: numbers only."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hope.methods.parent import Side


@dataclass
class LayerState:
    """A layer as the paper sees it. All tensors are float64, one entry per neuron unless said otherwise.

    Attributes:
        name: the layer's name.
        capacities: ‖f_i‖.
        release: ΔP of one neuron, static.
        mean, spread, slope, energy, bias: of the signal (see `methods.parent.Side`); empty where only
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
    def neurons(self) -> int:
        """N, before the first move."""
        return len(self.capacities)

    @property
    def capacity(self) -> float:
        """E, before the first move."""
        return float(self.capacities.sum())

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
        share: of the stream's variance behind the block, what its branch writes (absorption only).
        bias: what stays behind in place of the branch.
    """

    name: str
    layers: tuple[int, ...]
    anchors: tuple[float, ...]
    release: int
    share: float = 0.0
    bias: tuple[float, ...] | None = None


@dataclass(frozen=True)
class View:
    """What one weight reads, and what a surrogate says of it: all that absorption needs to rewrite it.

    Attributes:
        weight: its name.
        dim: the dimension that reads.
        mean: (channels,) of the signal it reads.
        covariance: (channels, channels).
        taps: (taps, taps) correlation between the places that the kernel covers.
        variance: (outputs,) of what it computes.
        repeat: input places that stand for one channel (after a flatten).
        bn: the BN right behind it, "" without one.
        bias: name of its bias, "" without one.
    """

    weight: str
    dim: int
    mean: Tensor
    covariance: Tensor
    taps: Tensor
    variance: Tensor
    repeat: int = 1
    bn: str = ""
    bias: str = ""

    @property
    def absorbs_constants(self) -> bool:
        """Whether a constant can be folded in: into the BN's mean, or a bias."""
        return bool(self.bn or self.bias)

    @property
    def moments(self) -> Tensor:
        """What signals are projected under: their covariance, or without a place for constants their second
        moments.
        """
        if self.absorbs_constants:
            return self.covariance
        return self.covariance + torch.outer(self.mean, self.mean)

    def laid(self, weight: Tensor) -> Tensor:
        """A weight as (outputs, taps, channels), float64; always a copy."""
        moved = weight.detach().to(torch.float64, copy=True).movedim(self.dim, -1)
        moved = moved.reshape(len(moved), -1, moved.shape[-1])
        if self.repeat == 1:
            return moved
        return moved.reshape(len(moved), -1, self.repeat).transpose(1, 2)

    def back(self, laid: Tensor, like: Tensor) -> Tensor:
        """The reverse of `laid`."""
        if self.repeat > 1:
            laid = laid.transpose(1, 2).reshape(len(laid), 1, -1)
        shape = like.movedim(self.dim, -1).shape
        return laid.reshape(shape).movedim(-1, self.dim).to(like.dtype)


@dataclass
class AbsorbState:
    """A layer before its first absorption.

    Attributes:
        name: the layer's name.
        neurons: how many there are.
        release: ΔP of one neuron.
        share: of the stream's variance, what the layer's branch writes; 1 in a plain chain.
        moments: per consumer, (neurons·channels)² ridged covariances of the signals that it reads.
        outer: per consumer, Gram matrices of its weights, in units of its output's variance.
    """

    name: str
    neurons: int
    release: int
    share: float
    moments: list[Tensor]
    outer: list[Tensor]

    @property
    def capacity(self) -> float:
        """The fraction of signal that is there before the first move."""
        return 1.0
