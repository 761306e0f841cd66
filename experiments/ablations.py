"""Absorption with one of its ingredients taken away, for studies of what each is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import hope
from hope._util.numbers import rounded
from hope.actions import Rewrite
from hope.errors import UnknownMethod
from hope.methods.absorption_path import AbsorbPath, AbsorbState, Array
from hope.methods.method import NetworkStatistics


@dataclass(frozen=True)
class Ablation(hope.Absorb):
    """Absorption that can do without its ingredients. A saved run is replayed without the ablation.

    Attributes:
        takeover: the remaining neurons compensate for removed ones.
        constants: a constant does, where a BN takes it (a bias always takes it).
        repair: running variances of BNs follow.
        surrogate: "propagated", or "pairwise": correlations from the filters alone, as in the paper.
        crosses: covariances between a branch and its skip count.
        decay: the correlation of neighbouring places, for all layers; by default read off each BN.
        shares: without a look, a layer's cost counts by what its branch writes into the stream.
        cost: "log", or "linear": fractions are added up.
        per_parameter: rank by J/ΔP; otherwise by J alone.
    """

    takeover: bool = True
    constants: bool = True
    repair: bool = True
    surrogate: str = "propagated"
    crosses: bool = True
    decay: float | None = None
    shares: bool = True
    cost: str = "log"
    per_parameter: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.validate(
            surrogate=(self.surrogate, ("propagated", "pairwise")), cost=(self.cost, ("log", "linear"))
        )
        if self.decay is not None and not 0 <= self.decay < 1:
            raise UnknownMethod(f"decay must be a correlation from 0 to below 1, got {self.decay!r}")

    @property
    def propagation(self) -> dict[str, Any]:
        decays = {} if self.decay is None else {"decays": (self.decay,)}
        return {"crosses": self.crosses, "isotropic": self.surrogate == "pairwise", **decays}

    def share(self, block: str, known: NetworkStatistics) -> float:
        return super().share(block, known) if self.shares else 1.0

    @property
    def rewrite(self) -> Rewrite:
        whole = super().rewrite
        kept = (self.takeover, self.constants, self.repair)
        return Rewrite(*kept, refit=whole.refit, synthetic=whole.synthetic)

    @property
    def path(self) -> Callable[[AbsorbState], AbsorbPath]:
        return LinearPath if self.cost == "linear" else super().path

    def rank(self, cost: float, release: float) -> float:
        return super().rank(cost, release) if self.per_parameter else rounded(cost)


class LinearPath(AbsorbPath):
    """A path that adds up fractions instead of their logarithms."""

    def _costs(self, lost: list[Array]) -> Array:
        cost = np.zeros(len(self.alive))
        for loss, part in zip(lost, self._parts, strict=True):
            cost += part * loss
        return cost * self.state.share


closed_form = partial(Ablation, calibration=None)
