"""What a method needs to prune a layer: nothing, calibration, or it is not prunable."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING

from hope.ops import activation
from hope.ops.uses import uses_of_weights
from hope.reasons import Cause, Reason
from hope.trace.program import Ref

if TYPE_CHECKING:
    from hope.structure.anatomy import Anatomy
    from hope.structure.units import Reader, Unit


class Need(Enum):
    """What a layer needs, as named in tables."""

    NOTHING = "nothing"
    CALIBRATION = "calibration"
    NEVER = "not at all"


def needs(anatomy: Anatomy, method: str = "absorb") -> dict[str, Need]:
    """Layer -> what absorption ("absorb") or the paper's method ("paper") needs to prune it.

    If every reader reads the output of a BN, the BN stores the statistics. Otherwise they must be measured:
    for absorption at the input of a module's weight that is used once, for the paper's method before the
    activation. Readers that exist in training only cannot be measured.
    """
    if method == "paper":
        return {layer.name: _of_paper(anatomy, layer) for layer in anatomy.layers}
    program, reads = anatomy.program, Counter({r.weight for layer in anatomy.layers for r in layer.readers})
    uses, read = reads, set(reads)  # a saved anatomy has no program
    if program:
        uses = uses_of_weights(program)
        read = {
            one.tensors.get("weight", "") for one in program if isinstance(one.arguments.get("input"), Ref)
        }
    return {layer.name: _of_absorption(layer, uses, read) for layer in anatomy.layers}


def missing_statistics(layer: Unit, reader: Reader) -> Reason | None:
    """Why no BN stores the statistics that the paper's method needs for a reader; None if one does. For a
    stream, all BNs that write into it determine the sum.
    """
    kinds = [link.kind for link in reader.path]
    if adds_up(layer, reader):
        return None if writing_bns(layer) else Cause.NO_BN_BEFORE.at(reader.module)
    if not reader.has_bn_statistics:
        return Cause.NO_BN_BEFORE.at(reader.module)
    if "norm" in kinds:
        return Cause.OTHER_NORM.at(reader.module)
    last = max(place for place, kind in enumerate(kinds) if kind == "bn")
    name, after = reader.path[last].name, reader.path[last + 1 :]
    if layer.at(f"{name}.running_var") is None:
        return Cause.NO_STATISTICS.at(name)
    if any(link.kind == "scale" for link in after):
        return Cause.SCALED.at(reader.module)
    activations = [link for link in after if link.kind == "activation"]
    if len(activations) > 1:
        return Cause.TWO_ACTIVATIONS.at(reader.module)
    if activations and not activation.known(activations[0]):
        return Cause.UNKNOWN_ACTIVATION.at(activations[0].name)
    return None


def adds_up(unit: Unit, reader: Reader) -> bool:
    """Whether a reader of a stream reads a sum that no BN has normalised as a whole."""
    kinds = [link.kind for link in reader.path]
    after_bn = kinds[len(kinds) - kinds[::-1].index("bn") :] if "bn" in kinds else kinds
    return unit.kind == "stream" and "add" in after_bn


def writing_bns(stream: Unit) -> list[str]:
    """The BNs that write into a stream: those that own its channels and are not before a reader."""
    read = {last.name for reader in stream.readers if (last := reader.last("bn")) and last != reader.path[0]}
    ends = ".running_var"
    own = [p.tensor.removesuffix(ends) for p in stream.places if p.tensor.endswith(ends)]
    return [name for name in own if name not in read]


def _of_paper(anatomy: Anatomy, layer: Unit) -> Need:
    if all(missing_statistics(layer, reader) is None for reader in layer.readers):
        return Need.NOTHING
    read = all((layer.name, reader.weight) in anatomy.taps for reader in layer.readers)
    return Need.CALIBRATION if read or not anatomy.taps else Need.NEVER  # a saved anatomy has none


def _of_absorption(layer: Unit, uses: Counter[str], read: set[str]) -> Need:
    weights = [reader.weight for reader in layer.readers]
    if any(uses[weight] > 1 for weight in weights):
        return Need.NEVER
    if all(reader.last("bn") and uses[reader.weight] for reader in layer.readers):
        return Need.NOTHING
    measured = all(weight in read and weight.rpartition(".")[2] == "weight" for weight in weights)
    return Need.CALIBRATION if measured else Need.NEVER


def counts(anatomy: Anatomy, method: str = "absorb") -> dict[Need, int]:
    """How many neurons need what. Neurons of kept layers are not prunable. A neuron with several channels
    counts once for each channel.
    """
    found = dict.fromkeys(Need, 0)
    for name, need in needs(anatomy, method).items():
        layer = anatomy.unit(name)
        found[need] += layer.neurons * layer.channels
    found[Need.NEVER] += sum(one.outputs for one in anatomy.skipped if one.kind == "layer")
    return found
