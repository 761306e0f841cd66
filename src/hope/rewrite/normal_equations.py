"""The normal equations of one weight: what it reads against what its result lacks, added up over batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from hope.geometry.rounding import ColumnMoments
from hope.statistics.measured import PLACES
from hope.trace.program import Operation

ROWS = 32  # samples per unknown that are used; more add no information
LEAST = 1 << 14  # samples that are used anyway
PATCHES = 1 << 24  # numbers that are laid out at a time
FLOOR = 1e-6  # least λ


class NormalEquations:
    """Moments of what a weight reads, and of what its result lacks, group by group; batches are added up.

    Args:
        operation: that uses the weight.
        weight: as it is.
        total: how many places there will be in all batches.
        seed: of the places that are drawn, where there are more than enough.
    """

    def __init__(self, operation: Operation, weight: Tensor, total: int, seed: int = 0) -> None:
        self.arguments, self.kernel = operation.arguments, tuple(weight.shape[2:])
        self.groups = int(self.arguments.get("groups", 1))
        self.inputs = self.places = 0
        self.samples = 0.0
        wide, out = prod(weight.shape[1:]), len(weight) // self.groups
        self.share = min(1.0, max(LEAST, ROWS * wide) / max(1, total))
        self._chance = torch.Generator().manual_seed(seed)
        self.x = torch.zeros(self.groups, wide, dtype=torch.float64)
        self.r = torch.zeros(self.groups, out, dtype=torch.float64)
        self.xx = torch.zeros(self.groups, wide, wide, dtype=torch.float64)
        self.xr = torch.zeros(self.groups, wide, out, dtype=torch.float64)

    def add(self, x: Tensor, r: Tensor, counts: Tensor | None = None) -> None:
        """A batch: what the weight reads, what its result lacks, and what each place counts."""
        self.inputs += len(x)
        for some, lack, count in self._parts(x, r, counts):
            part = some if count is None else some * count[:, None]
            self.samples += some.shape[1] if count is None else float(count.sum())
            self.x += part.sum(dim=1).double().cpu()
            self.r += (lack if count is None else lack * count[:, None]).sum(dim=1).double().cpu()
            self.xx += (part.transpose(1, 2) @ some).double().cpu()
            self.xr += (part.transpose(1, 2) @ lack).double().cpu()

    def _parts(
        self, x: Tensor, r: Tensor, counts: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """(groups, samples, unknowns) and (groups, samples, outputs), a part at a time, and (samples,)."""
        working = torch.promote_types(x.dtype, torch.float32)
        if self.kernel:
            x, r = self._patches(x), r.movedim(1, -1)
        rows = prod(r.shape[:-1])
        self.places += rows
        chosen = torch.arange(rows)
        if self.share < 1:
            chosen = chosen[torch.rand(rows, generator=self._chance) < self.share]
        lead = r.shape[:-1]
        part = max(1, PATCHES // max(1, self.groups * self.x.shape[1]))
        for some in torch.split(chosen, part):
            at = torch.unravel_index(some.to(x.device), lead)
            left = x[at].reshape(len(some), self.groups, -1).transpose(0, 1)
            right = r[at].reshape(len(some), self.groups, -1).transpose(0, 1)
            yield left.to(working), right.to(working), None if counts is None else counts[at].to(working)

    def _patches(self, x: Tensor) -> Tensor:
        """A view of (inputs, places…, channels, kernel…)."""
        x = functional.pad(x, self._padding())
        for dim, size in enumerate(self.kernel):
            dilation, stride = (self._each(name)[dim] for name in ("dilation", "stride"))
            x = x.unfold(2 + dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
        return x.movedim(1, 1 + len(self.kernel))

    def _each(self, name: str) -> Sequence[int]:
        value = self.arguments[name]
        return value * len(self.kernel) if len(value) == 1 else value  # type: ignore[no-any-return]

    def _padding(self) -> list[int]:
        found: list[int] = []
        for dim in reversed(range(len(self.kernel))):
            if isinstance(self.arguments["padding"], str):
                same = self.arguments["padding"] == "same"
                total = self._each("dilation")[dim] * (self.kernel[dim] - 1) if same else 0
                found += [total // 2, total - total // 2]
            else:
                found += [self._each("padding")[dim]] * 2
        return found

    @property
    def prior(self) -> float:
        """λ: unknowns per sample that adds information."""
        counted = self.inputs * max(1.0, self.places / max(1, self.inputs) / PLACES)
        return FLOOR + self.x.shape[1] / max(1.0, counted)

    def solve(self, *, constant: bool) -> tuple[Tensor, Tensor]:
        """(outputs, unknowns) to add to the weight, and (outputs,) to add to its result.

        Args:
            constant: whether there is a place for the latter.
        """
        x, r = self.x / self.samples, self.r / self.samples
        xx, xr = self.xx / self.samples, self.xr / self.samples
        if constant:
            xx = xx - x[:, :, None] * x[:, None, :]
            xr = xr - x[:, :, None] * r[:, None, :]
        scale = xx.diagonal(dim1=1, dim2=2).mean(dim=1)
        zero = scale <= 0
        scale = torch.where(zero, torch.ones_like(scale), scale)
        ridge = torch.eye(xx.shape[1], dtype=torch.float64) * (self.prior * scale)[:, None, None]
        change = torch.linalg.solve(xx + ridge, xr) * ~zero[:, None, None]  # (groups, unknowns, outputs)
        shift = r - torch.einsum("gd,gdo->go", x, change) if constant else torch.zeros_like(r)
        return change.transpose(1, 2).flatten(0, 1), shift.flatten()

    def moments(self, *, constant: bool) -> ColumnMoments:
        """Second moments of what the weight reads, with the prior; of groups their mean.

        Args:
            constant: whether they are about the mean.
        """
        x, xx = self.x / self.samples, self.xx / self.samples
        xx = (xx - x[:, :, None] * x[:, None, :] if constant else xx).mean(dim=0)
        xx.diagonal().add_(self.prior * xx.diagonal().mean())
        return ColumnMoments(xx, torch.ones(1, 1, dtype=torch.float64))

    def mean(self, change: Tensor) -> Tensor:
        """(outputs,) what a change of the weight adds to the mean of its result."""
        laid = change.detach().double().cpu().reshape(self.groups, -1, self.x.shape[1])
        return torch.einsum("god,gd->go", laid, self.x / self.samples).flatten()

    def variance(self, weight: Tensor) -> Tensor:
        """(outputs,) variance of what a weight says of what was read."""
        mean = self.x / self.samples
        covariance = self.xx / self.samples - mean[:, :, None] * mean[:, None, :]
        laid = weight.detach().double().cpu().reshape(self.groups, -1, covariance.shape[1])
        return ((laid @ covariance) * laid).sum(dim=2).flatten()
