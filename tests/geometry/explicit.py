"""A layer as explicit vectors and the paper's formulas as they are printed: slow, plain, and independent of
the library. Every pair is looked at on its own; nothing is cached and no Gram matrix is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, owens_t

from hope.geometry import costs
from hope.geometry.parent import Side
from hope.methods.pairs import PaperState

Array = NDArray[np.float64]
FLOOR = 1e-12  # of E_rem


@dataclass
class Layer:
    """Neurons as vectors.

    Attributes:
        rows: (N, n + 1) effective filters, the effective bias last.
        outs: (N, c) outgoing weights.
        mean, spread, slope: (N,) of the signals before the activation, and of the activation.
    """

    rows: Array
    outs: Array
    mean: Array
    spread: Array
    slope: Array

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, which: list[int] | Array) -> Layer:
        return Layer(
            self.rows[which].copy(),
            self.outs[which].copy(),
            self.mean[which].copy(),
            self.spread[which].copy(),
            self.slope[which].copy(),
        )

    def capacities(self) -> Array:
        return np.array(
            [
                math.sqrt(energy(self.mean[k], self.spread[k], self.slope[k])) * np.linalg.norm(self.outs[k])
                for k in range(len(self))
            ]
        )

    def state(self, name: str = "layer", release: int = 1) -> PaperState:
        """What the library works on."""
        tensor = torch.from_numpy
        energies = [energy(*signal) for signal in zip(self.mean, self.spread, self.slope, strict=True)]
        return PaperState(
            name,
            tensor(self.capacities()),
            release,
            tensor(self.mean.copy()),
            tensor(self.spread.copy()),
            tensor(self.slope.copy()),
            torch.tensor(energies, dtype=torch.float64),
            tensor(self.rows[:, -1].copy()),
            tensor(self.rows @ self.rows.T),
            tensor(self.outs @ self.outs.T),
        )

    def pair(self, i: int, j: int) -> tuple[Side, Side, torch.Tensor, torch.Tensor]:
        """The arguments of `parents`."""
        state = self.state()
        return state.side(i), state.side(j), state.inner[i, j], state.outer[i, j]


def pair_cost(neurons: int, a: float, b: float, rest: float) -> float:
    """The library's J_merge from a and b alone: D_min² = a − b²/2."""
    distance = math.sqrt(max(a - b**2 / 2, 0.0))
    return float(costs.merge_pair(neurons, *map(np.asarray, (distance, b, rest, a))))


def random_layer(
    seed: int,
    neurons: int = 12,
    fan_in: int = 9,
    fan_out: int = 7,
    *,
    clusters: int | None = None,
    noise: float = 0.2,
    slope: float = 0.0,
) -> Layer:
    """Random neurons; with clusters, each is near one of so many others, in and out."""
    rng = np.random.default_rng(seed)
    rows, outs = rng.normal(size=(neurons, fan_in + 1)), rng.normal(size=(neurons, fan_out))
    mean = rng.normal(size=neurons) * 0.7
    spread = np.linalg.norm(rows[:, :-1], axis=1) * np.exp(0.3 * rng.normal(size=neurons))
    if clusters is not None:
        near = rng.integers(clusters, size=neurons)
        rows, outs = (x[near] + noise * rng.normal(size=x.shape) for x in (rows, outs))
        mean = mean[near] + noise * rng.normal(size=neurons)
        spread = spread[near] * np.exp(noise * rng.normal(size=neurons))
    return Layer(rows, outs, mean, spread, np.full(neurons, slope))


# ---- kernels -------------------------------------------------------------------------------------------


def density(c: float) -> float:
    return math.exp(-c * c / 2) / math.sqrt(2 * math.pi)


def activation(y: float, slope: float) -> float:
    return y if y > 0 else slope * y


def energy(mean: float, spread: float, slope: float) -> float:
    """E Ψ(y)², by the paper's closed form for both halves."""
    if spread == 0:
        return activation(mean, slope) ** 2
    c = mean / spread
    up = (spread**2 + mean**2) * ndtr(c) + mean * spread * density(c)
    down = (spread**2 + mean**2) * ndtr(-c) - mean * spread * density(c)
    return up + slope**2 * down


def first_moment(mean: float, spread: float, slope: float) -> float:
    if spread == 0:
        return activation(mean, slope)
    c = mean / spread
    up = mean * ndtr(c) + spread * density(c)
    return up + slope * (mean - up)


def bivariate_cdf(h: float, k: float, rho: float) -> float:
    """P(z < h, z' < k), by Owen's T function."""
    if h == 0 and k == 0:
        return 0.25 + math.asin(rho) / (2 * math.pi)
    root = math.sqrt((1 - rho) * (1 + rho))
    first = owens_t(h, (k - rho * h) / (h * root)) if h else 0.25 * np.sign(k)
    second = owens_t(k, (h - rho * k) / (k * root)) if k else 0.25 * np.sign(h)
    apart = h * k < 0 or (h * k == 0 and h + k < 0)
    return (ndtr(h) + ndtr(k)) / 2 - first - second - (0.5 if apart else 0.0)


def ramp_product(c_i: float, c_j: float, rho: float, cdf=bivariate_cdf) -> float:
    """E[max(z + c_i, 0)·max(z' + c_j, 0)]: the paper's moments of a truncated bivariate normal, Section
    "Exact Bivariate Cross-Kernel", and its limits at ρ = ±1.
    """
    if rho >= 1:  # z' = z: positive above −min
        low, high = min(c_i, c_j), max(c_i, c_j)
        return (1 + low * high) * ndtr(low) + high * density(low)
    if rho <= -1:  # z' = −z: positive between −c_i and c_j
        if c_i + c_j <= 0:
            return 0.0
        return (c_i * c_j - 1) * (ndtr(c_j) - ndtr(-c_i)) + c_i * density(c_j) + c_j * density(c_i)
    square = (1 - rho) * (1 + rho)
    root = math.sqrt(square)
    both = math.exp(-(c_i**2 - 2 * rho * c_i * c_j + c_j**2) / (2 * square)) / (2 * math.pi * root)
    return (
        (c_i * c_j + rho) * cdf(c_i, c_j, rho)
        + c_i * density(c_j) * ndtr((c_i - rho * c_j) / root)
        + c_j * density(c_i) * ndtr((c_j - rho * c_i) / root)
        + square * both
    )


def exact_kernel(m_i: float, m_j: float, s_i: float, s_j: float, rho: float, a_i: float, a_j: float) -> float:
    """E[Ψ(y_i)·Ψ(y_j)] from the four quadrants: Ψ(y) = max(y, 0) − slope·max(−y, 0)."""
    if s_i == 0 or s_j == 0:
        return first_moment(m_i, s_i, a_i) * first_moment(m_j, s_j, a_j)
    c_i, c_j = m_i / s_i, m_j / s_j
    total = ramp_product(c_i, c_j, rho) - a_i * ramp_product(-c_i, c_j, -rho)
    total += a_i * a_j * ramp_product(-c_i, -c_j, rho) - a_j * ramp_product(c_i, -c_j, -rho)
    return s_i * s_j * total


def zero_bias_cosine(rho: float, a_i: float, a_j: float) -> float:
    """The cosine of Ψ(z) and Ψ(z'); ReLU's is (√(1 − ρ²) + (π − arccos ρ)·ρ)/π."""
    return exact_kernel(0, 0, 1, 1, rho, a_i, a_j) / math.sqrt(energy(0, 1, a_i) * energy(0, 1, a_j))


# ---- pairs ---------------------------------------------------------------------------------------------


def correlation(row_i: Array, row_j: Array, s_i: float, s_j: float) -> float:
    """The warped correlation, with κ as printed."""
    w_i, w_j = row_i[:-1], row_j[:-1]
    long_i, long_j = np.linalg.norm(w_i), np.linalg.norm(w_j)
    if min(long_i, long_j, s_i, s_j) == 0:
        return 0.0
    cosine = float(w_i @ w_j / (long_i * long_j))
    away = float(1 - cosine**2)
    if away < 1e-15:
        return math.copysign(1.0, cosine)
    kappa = cosine / away * (s_i / long_i) * (s_j / long_j)
    return 2 * kappa / (1 + math.sqrt(1 + 4 * kappa**2))


class Parent(NamedTuple):
    """ψ* of a pair.

    Attributes:
        b: ⟨ψ*, f_i + f_j⟩.
        overlap: ⟨f_i, f_j⟩.
        u: the direction, a unit vector.
        z: u in terms of the two rows.
        v: the outgoing direction, a unit vector.
        energy: K(u, u).
        spread, mean: of y_u.
    """

    b: float
    overlap: float
    u: Array
    z: Array
    v: Array
    energy: float
    spread: float
    mean: float


class Pair:
    """Two neurons of a layer, and everything about them."""

    def __init__(self, layer: Layer, i: int, j: int, kernel: str) -> None:
        self.rows, self.outs = layer.rows[[i, j]], layer.outs[[i, j]]
        self.mean, self.spread = layer.mean[[i, j]], layer.spread[[i, j]]
        self.slope, self.other_slope = layer.slope[i], layer.slope[j]
        self.rho = correlation(*self.rows, *self.spread)
        self.covariance = np.diag(self.spread**2)
        self.covariance[0, 1] = self.covariance[1, 0] = self.rho * self.spread[0] * self.spread[1]
        self.exact = kernel == "exact" or abs(self.rho) > 0.99 or min(self.spread) == 0

    def kernel(self, z: Array, k: Array) -> float:
        """K of two signals z·(y_i, y_j) and k·(y_i, y_j)."""
        mean, spread = self._signal(z)
        mean_k, spread_k = self._signal(k)
        below = spread * spread_k
        rho = float(np.clip(z @ self.covariance @ k / below, -1, 1)) if below > 0 else 0.0
        if self.exact:
            return exact_kernel(mean, mean_k, spread, spread_k, rho, self.slope, self.slope)
        both = energy(mean, spread, self.slope) * energy(mean_k, spread_k, self.slope)
        return zero_bias_cosine(rho, self.slope, self.slope) * math.sqrt(both)

    def _signal(self, z: Array) -> tuple[float, float]:
        return float(z @ self.mean), math.sqrt(max(float(z @ self.covariance @ z), 0.0))

    def reach(self, z: Array) -> Array:
        """K(u, i)·o_i + K(u, j)·o_j of u = z·(w̃_i, w̃_j)."""
        first, second = np.eye(2)
        return self.kernel(z, first) * self.outs[0] + self.kernel(z, second) * self.outs[1]

    def objective(self, z: Array) -> float:
        """‖K(u, i)·o_i + K(u, j)·o_j‖/√K(u, u), what the best direction maximises."""
        square = energy(*self._signal(z), self.slope)
        return float(np.linalg.norm(self.reach(z))) / math.sqrt(square) if square > 0 else 0.0

    def parent(self) -> Parent | None:
        """u from the singular vectors of A; None where there is none."""
        if self.slope != self.other_slope:
            return None
        matrix = np.outer(self.outs[0], self.rows[0]) + np.outer(self.outs[1], self.rows[1])
        size = np.linalg.norm(self.outs) * np.linalg.norm(self.rows)
        _, values, right = np.linalg.svd(matrix)
        if values[0] <= 1e-12 * size:
            return None
        z = np.linalg.lstsq(self.rows.T, right[0], rcond=1e-12)[0]
        z = max((z, -z), key=self.objective)
        b = self.objective(z)
        if b <= 0:
            return None
        reach = self.reach(z)
        mean, spread = self._signal(z)
        overlap = self.kernel(*np.eye(2)) * float(self.outs[0] @ self.outs[1])
        v = reach / np.linalg.norm(reach)
        return Parent(b, overlap, z @ self.rows, z, v, energy(mean, spread, self.slope), spread, mean)
