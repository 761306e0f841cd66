"""Close the loop without a single input: both networks' signals are followed together, in closed form.

The surrogate tells E[x x̂ᵀ] and E[x̂ x̂ᵀ] of what the original and the small network read. So the normal
equations of `refit` are closed forms, too: a kernel's places drop out of them, every tap is mixed by the same
C_xx̂ C_x̂x̂⁻¹, and what the stream has drifted by is made up for in the middle of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hope.geometry.projection import RIDGE, variances
from hope.graph.program import Program
from hope.ops.registry import Form, Signal
from hope.signals.propagate import Propagated
from hope.surgery.embed import Places
from hope.surgery.refit import Spot, gain, spots


@dataclass
class Adapt:
    """Fits each weight of the second network while both are followed.

    Attributes:
        program: of the original.
        places: tensor -> dimension -> what is left of it.
        prior: λ, of the mean variance of what a weight reads: how much the weight as it is counts.
        drift: branches make up for what the stream lacks.
        fitted: the weights that were fitted.
    """

    program: Program
    places: Places
    prior: float = RIDGE
    drift: bool = True
    repair: float = 1.0
    fitted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.spots = {spot.position: spot for spot in spots(self.program).values()}

    def __call__(self, at: Propagated, form: Form, x: Signal) -> None:
        """Fit the weight of one operation."""
        spot = self.spots.get(form.operation.position)
        if spot is None or form.operation.arguments.get("groups", 1) != 1:
            return
        first, second = at.networks
        assert isinstance(second, dict)
        laid, mine = (_laid(tensors[spot.weight], x.repeat) for tensors in at.networks)
        if laid.shape[2] * 2 != len(x.mean):
            return
        left = self.places.get(spot.weight, {})
        rows = left.get(0, torch.arange(len(laid)))
        columns = torch.arange(laid.shape[2])
        if 1 in left:
            columns = torch.unique(left[1] // x.repeat)
        if not spot.bn and not spot.bias:
            x = Signal(x.mean, x.covariance + torch.outer(x.mean, x.mean))
        own = x.covariance[1::2, 1::2][columns][:, columns]
        between = x.covariance[::2, 1::2][:, columns]
        lacks = laid[rows] @ between - mine[rows][:, :, columns] @ own
        drift = self._drift(at, form, spot, rows)
        if drift is not None:
            lacks[:, lacks.shape[1] // 2] += drift[0][:, columns]
        scale = float(own.diagonal().mean())
        if scale <= 0:
            return
        ridge = self.prior * scale * torch.eye(len(columns), dtype=torch.float64)
        change = torch.linalg.solve(own + ridge, lacks.flatten(0, 1).T).T.reshape(lacks.shape)
        fitted = mine[rows]
        fitted[:, :, columns] += change
        mine[rows] = fitted
        second[spot.weight] = _back(mine, second[spot.weight], x.repeat)
        wanted = laid[rows].sum(dim=1) @ x.mean[::2] + (0 if drift is None else drift[1])
        shift = wanted - fitted.sum(dim=1) @ x.mean[1::2]
        self._settle(first, second, spot, rows, shift)
        if self.repair and spot.bn:
            taps = at.first.by_operation[form.operation.position].taps
            before = variances(laid[rows], taps, x.covariance[::2, ::2])
            after = variances(fitted, taps, x.covariance[1::2, 1::2])
            ratio = torch.where((before>0)&(after > 1e-4 * before), after / before.clamp(min=1e-300), 1.0)
            ratio = ratio ** self.repair
            second[f"{spot.bn}.running_var"][rows] *= ratio.float()
        self.fitted.add(spot.weight)

    def _drift(self, at: Propagated, form: Form, spot: Spot, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """What the stream beside a branch lacks, in the units in front of the branch's BN: its covariance
        with what the small network reads, and its mean.
        """
        there = self.drift and 0 <= spot.beside < len(at.signals)
        stream = at.signals[spot.beside] if there else None
        cross = at.cross(spot.beside, form.inputs[0]) if stream is not None else None
        if stream is None or cross is None or len(rows) * 2 != len(stream.mean):
            return None
        unit = gain(at.tensors, spot).double()
        between = (cross[::2] - cross[1::2])[:, 1::2]
        return unit[:, None] * between, unit * (stream.mean[::2] - stream.mean[1::2])

    def _settle(
        self,
        first: Mapping[str, Tensor],
        second: dict[str, Tensor],
        spot: Spot,
        rows: Tensor,
        shift: Tensor,
    ) -> None:
        """The constant goes into the BN's mean, which has the original's statistics again, or the bias."""
        if spot.bn:
            for name in (f"{spot.bn}.running_mean", f"{spot.bn}.running_var"):
                second[name] = first[name].clone()
            mean = second[f"{spot.bn}.running_mean"]
            mean[rows] -= shift.to(mean)
        elif spot.bias:
            bias = first[spot.bias].clone()
            bias[rows] += shift.to(bias)
            second[spot.bias] = bias


def _laid(weight: Tensor, repeat: int) -> Tensor:
    """(outputs, taps, channels), as a copy."""
    raw = weight.detach().double()
    if raw.ndim > 2:
        return raw.flatten(2).transpose(1, 2).contiguous()
    return raw.reshape(len(raw), -1, repeat).transpose(1, 2).contiguous()


def _back(laid: Tensor, like: Tensor, repeat: int) -> Tensor:
    """The reverse of `_laid`."""
    return laid.transpose(1, 2).reshape(like.shape).to(like.dtype)
