"""Absorbers: the remaining neurons that compensate for an absorbed one, with their coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hope.geometry.projection import ridged
from hope.statistics.input_statistics import InputStatistics, channels_of
from hope.structure.units import Unit

WIDEST = 1024  # neurons; the inverse is updated step by step, which is cubic
MOST = 2  # absorbers that are named


def absorbers(
    layer: Unit, input_statistics: Mapping[str, InputStatistics], removed: Sequence[int]
) -> list[list[tuple[int, float]]] | None:
    """For each removed neuron, in order, the absorbers with the largest coefficients.

    The best linear approximation of neuron i by the remaining neurons S is `C_SS⁻¹ C_Si`, which is `−[C⁻¹]_Si
    / [C⁻¹]_ii` (see `geometry.projection`). It is that of the layer's first reader.

    Returns:
        None if the moments are unknown, or the layer is too wide for a page.
    """
    statistics = input_statistics.get(layer.readers[0].weight) if layer.readers else None
    channels = channels_of(layer, statistics) if statistics is not None else None
    if statistics is None or channels is None or channels.shape[1] != 1 or layer.neurons > WIDEST:
        return None
    flat = channels.flatten()
    inverse: NDArray[np.float64] = np.linalg.inv(ridged(statistics.moments[flat][:, flat]).numpy())
    alive = np.ones(layer.neurons, dtype=bool)
    found = []
    for i in removed:
        alive[i] = False
        share = np.where(alive, -inverse[:, i] / inverse[i, i], 0.0)
        most = [int(j) for j in np.argsort(-np.abs(share), kind="stable")[:MOST] if share[j] != 0]
        found.append([(j, float(share[j])) for j in most])
        inverse = inverse - np.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return found
