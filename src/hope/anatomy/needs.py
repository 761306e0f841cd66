"""What it takes to remove a layer's neurons by absorption: nothing, calibration, or it cannot be done."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING

from hope.ops.weight import uses_of_weights

if TYPE_CHECKING:
    from hope.anatomy.anatomy import Anatomy
    from hope.anatomy.units import Unit


class Need(Enum):
    """What a layer needs, as tables call it."""

    NOTHING = "nothing"
    CALIBRATION = "calibration"
    NEVER = "not at all"


def needs(anatomy: Anatomy) -> dict[str, Need]:
    """Layer -> what its neurons need to go.

    Where every reader sees the output of a BN, that says what the signals are. Elsewhere inputs must be
    measured, for which the reader must be a module with a weight that is used once.
    """
    uses = uses_of_weights(anatomy.program)
    return {layer.name: _need(layer, uses) for layer in anatomy.layers}


def _need(layer: Unit, uses: Counter[str]) -> Need:
    if any(uses[reader.weight] > 1 for reader in layer.readers):
        return Need.NEVER
    if all(reader.last("bn") for reader in layer.readers):
        return Need.NOTHING
    measured = all(reader.weight.rpartition(".")[2] == "weight" for reader in layer.readers)
    return Need.CALIBRATION if measured else Need.NEVER


def counts(anatomy: Anatomy) -> dict[Need, int]:
    """How many neurons need what; those of layers that are left alone anyway can never go."""
    found = dict.fromkeys(Need, 0)
    for name, need in needs(anatomy).items():
        found[need] += anatomy.unit(name).neurons
    found[Need.NEVER] += sum(one.outputs for one in anatomy.skipped if one.kind == "layer")
    return found
