"""From a surrogate's moments to what absorption works with: a view per reading weight, a state per layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from hope import ops
from hope.anatomy.anatomy import Anatomy
from hope.anatomy.reasons import Cause, Reason
from hope.anatomy.units import NeuronLayer
from hope.methods.signals import release
from hope.methods.state import AbsorbState, View
from hope.ops.norm import bn_of, is_bn, read_bn
from hope.ops.weight import is_weight, uses_of_weights
from hope.signals.projection import outgoing, ridged
from hope.signals.propagate import Propagated


def stored(tensor: Tensor) -> Tensor:
    """Moments as they are saved with a run (float32), so that a replay computes with the same numbers."""
    return tensor.float().double()


def behind(anatomy: Anatomy) -> dict[str, tuple[str, float, str]]:
    """Reading weight -> (the BN right behind it, its eps, its bias); "" for none."""
    forms = [form for form in ops.forms(anatomy.program) if form is not None]
    bns = {form.inputs[0]: (bn_of(form.operation), form.values[0]) for form in forms if is_bn(form)}
    readers = Counter(position for form in forms for position in set(form.inputs))
    found = {}
    for form in forms:
        if is_weight(form):
            position, tensors = form.operation.position, form.operation.tensors
            bn, eps = bns.get(position, ("", 0.0)) if readers[position] == 1 else ("", 0.0)
            found[tensors["weight"]] = (bn, eps, tensors.get("bias", ""))
    return found


def propagated_views(
    anatomy: Anatomy,
    tensors: Mapping[str, Tensor],
    *,
    crosses: bool = True,
    dims: Mapping[str, int] | None = None,
) -> tuple[dict[str, View], Propagated]:
    """What weights read according to the propagated surrogate.

    Args:
        dims: reading weight -> the dimension that reads; by default all that read neurons of layers.
    """
    surrogate = Propagated(anatomy.program, tensors, crosses=crosses)
    if dims is None:
        reads = {consumer.weight for layer in anatomy.layers for consumer in layer.consumers}
        slices = [part for layer in anatomy.layers for part in layer.slices if part.role == "in"]
        dims = {part.tensor: part.dim for part in slices if part.tensor in reads}
    beside = behind(anatomy)
    views = {}
    for weight in dims.keys() & surrogate.readings.keys():
        reading = surrogate.readings[weight]
        bn, _, bias = beside[weight]
        if reading.bn is None:
            bn = ""
        signal = reading.signal
        views[weight] = View(
            weight,
            dims[weight],
            stored(signal.mean),
            stored(signal.covariance),
            stored(reading.taps),
            stored(reading.variance),
            signal.repeat,
            bn,
            bias,
        )
    return views, surrogate


def channels_of(layer: NeuronLayer, view: View) -> Tensor | None:
    """(neurons, channels) where a layer's neurons stand in what a weight reads; None if not plainly."""
    part = next(p for p in layer.slices if p.tensor == view.weight and p.role == "in")
    index = torch.from_numpy(part.index)
    if view.repeat > 1:
        first = index[:, :1] // view.repeat
        plain = index.shape[1] == view.repeat and bool((index // view.repeat == first).all())
        return first if plain else None
    return index


def absorb_state(
    layer: NeuronLayer,
    anatomy: Anatomy,
    tensors: Mapping[str, Tensor],
    views: Mapping[str, View],
    share: float,
    *,
    measured: bool,
) -> AbsorbState | Reason:
    """A layer's state, or the reason why it has none."""
    uses = uses_of_weights(anatomy.program)
    state = AbsorbState(layer.name, layer.neurons, release(anatomy, layer.slices), share, [], [])
    for consumer in layer.consumers:
        view = views.get(consumer.weight)
        if not measured and consumer.last("bn") is None:
            return Cause.NO_BN_BEFORE.at(consumer.module)
        if view is None:
            return Cause.UNKNOWN_MOMENTS.at(consumer.module)
        if uses[consumer.weight] > 1:
            return Cause.READ_AGAIN.at(consumer.module)
        channels = channels_of(layer, view)
        if channels is None:
            return Cause.NO_PLAIN_ORDER.at(consumer.module)
        flat = channels.flatten()
        weight = view.laid(tensors[view.weight])[:, :, flat]
        state.moments.append(ridged(view.moments[flat][:, flat]))
        state.outer.append(outgoing(weight, view.taps, metric(view, anatomy, tensors)))
    return state


def metric(view: View, anatomy: Anatomy, tensors: Mapping[str, Tensor]) -> Tensor:
    """What a unit of variance in each output counts: γ²/Var behind a BN; all outputs together count 1."""
    alive = view.variance > 1e-12 * view.variance.mean()
    if not view.bn:
        total = float(view.variance.sum())
        return alive / total if total > 0 else torch.zeros_like(view.variance)
    eps = behind(anatomy)[view.weight][1]
    bn = read_bn(tensors, view.bn, eps)
    assert bn is not None
    power = bn.scale**2
    safe = torch.where(alive, view.variance, torch.ones_like(view.variance))
    total = float(power.sum())
    return alive * power / safe / total if total > 0 else torch.zeros_like(power)
