"""What others do, each as its paper says, with the same inputs to learn from.

- wanda-sp: a unit counts by Σ|W|·‖x‖ over its columns of the reader; every layer loses the same share.
- flap: by the variance of x times the squared norm of its columns (squared again for heads), standardised in
  each layer, one threshold for all layers and both kinds; the reader gets the mean of what went as a bias.
- magnitude: by the norm of the weights into it times the norm of those out of it; the same share everywhere.
- random: the same share everywhere.
- slicing (SliceGPT): the residual stream in front of every norm is projected on its leading principal
  directions, one layer after another on the signals of the network sliced so far. The projected network gives
  the answers of the sliced one; parameters are counted as the sliced one has them, with adapters on skips.
- dropping (ShortGPT): whole layers go, those whose output is most like their input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.language.parts import (
    Part,
    config_of,
    cut,
    form_of,
    layers_of,
    linear,
    parameters,
    parts_of,
    wanted,
)

Batches = Sequence[dict[str, Tensor]]


@dataclass
class Observed:
    """What was heard of the original.

    Attributes:
        count: places.
        total, square: reader -> sums of what it reads, and of its squares.
        influence: layer -> sum of 1 − cosine between what goes in and what comes out.
    """

    count: int = 0
    total: dict[str, Tensor] = field(default_factory=dict)
    square: dict[str, Tensor] = field(default_factory=dict)
    influence: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def mean(self, reader: str) -> Tensor:
        """Of what a reader reads."""
        return self.total[reader] / self.count

    def variance(self, reader: str) -> Tensor:
        """Of what a reader reads."""
        return self.square[reader] / self.count - self.mean(reader) ** 2


@torch.no_grad()
def hear(model: nn.Module, batches: Batches) -> Observed:
    """Run the original once."""
    heard = Observed()

    def read(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            rows = args[0].double().flatten(0, -2)
            heard.total[name] = heard.total.get(name, torch.zeros(())) + rows.sum(dim=0)
            heard.square[name] = heard.square.get(name, torch.zeros(())) + (rows**2).sum(dim=0)

        return hook

    def passed(index: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...], result: Any) -> None:
            after = result[0] if isinstance(result, tuple) else result
            unlike = 1 - functional.cosine_similarity(args[0].double(), after.double(), dim=-1)
            heard.influence[index] += float(unlike.sum())

        return hook

    handles = [linear(model, p.reader).register_forward_pre_hook(read(p.reader)) for p in parts_of(model)]
    handles += [layer.register_forward_hook(passed(i)) for i, layer in enumerate(layers_of(model))]
    try:
        for batch in batches:
            model.base_model(**batch)  # type: ignore[operator]
            heard.count += batch["input_ids"].numel()
    finally:
        for handle in handles:
            handle.remove()
    return heard


def by_unit(values: Tensor, part: Part) -> Tensor:
    """Sums over the places of each unit."""
    return values.reshape(part.units, -1).sum(dim=1)


def wanda(model: nn.Module, part: Part, heard: Observed) -> Tensor:
    """Σ|W|·‖x‖."""
    weight = linear(model, part.reader).weight.detach().double()
    return by_unit(weight.abs().sum(dim=0) * heard.square[part.reader].sqrt(), part)


def magnitude(model: nn.Module, part: Part, _: Observed | None = None) -> Tensor:
    """‖in‖·‖out‖."""
    rows = [linear(model, name).weight.detach().double() for name in part.writers]
    into = sum((by_unit((r**2).sum(dim=1), part) for r in rows), torch.zeros(part.units).double())
    out = by_unit((linear(model, part.reader).weight.detach().double() ** 2).sum(dim=0), part)
    return (into * out).sqrt()


def chance(_: nn.Module, part: Part, __: Observed | None = None) -> Tensor:
    """The same for a part every time."""
    seed = sum(part.reader.encode())
    return torch.rand(part.units, generator=torch.Generator().manual_seed(seed)).double()


SCORES: dict[str, Callable[..., Tensor]] = {"wanda-sp": wanda, "magnitude": magnitude, "random": chance}


def equal(scores: Mapping[Part, Tensor], model: nn.Module, kind: str, share: float) -> dict[str, list[int]]:
    """Reader -> units that go, the same share in every layer.

    Of both kinds, each layer loses the whole heads that the share has room for (none, where a layer has three
    units and the share is below a third, as in the authors' code) and MLP neurons make up the budget.
    """
    gone: dict[str, list[int]] = {}
    budget = wanted(model, kind, share)
    if kind == "both":
        for part in parts_of(model, "heads"):
            gone[part.reader] = scores[part].argsort()[: int(share * part.units)].tolist()
            budget -= len(gone[part.reader]) * part.size
    parts = parts_of(model, "mlp" if kind == "both" else kind)
    number = round(budget / parts[0].size)
    each, more = divmod(number, len(parts))
    nexts = torch.stack([scores[part].sort()[0][each] / scores[part].sum() for part in parts])
    for rank, index in enumerate(nexts.argsort().tolist()):  # where one more tells least
        part = parts[index]
        gone[part.reader] = scores[part].argsort()[: each + (rank < more)].tolist()
    return gone


def flap(model: nn.Module, kind: str, share: float, heard: Observed) -> nn.Module:
    """FLAP, with its bias. Every part keeps a unit."""
    ranked: list[tuple[float, Part, int]] = []
    for part in parts_of(model, kind):
        weight = linear(model, part.reader).weight.detach().double()
        values = heard.variance(part.reader) * (weight**2).sum(dim=0)
        values = values**2 if part.kind == "heads" else values
        values = (values - values.mean()) / values.std()
        means = values.reshape(part.units, -1).mean(dim=1)
        ranked += [(float(value), part, unit) for unit, value in enumerate(means)]
    ranked.sort(key=lambda one: one[0])
    left = wanted(model, kind, share)
    gone: dict[str, list[int]] = defaultdict(list)
    for _, part, unit in ranked:
        if left >= part.size / 2 and len(gone[part.reader]) < part.units - 1:
            gone[part.reader].append(unit)
            left -= part.size
    shifts = {}
    for part in parts_of(model, kind):
        lost = torch.zeros(part.units, dtype=torch.double)
        lost[gone[part.reader]] = 1
        mean = heard.mean(part.reader)
        lost = lost.repeat_interleave(len(mean) // part.units)
        shifts[part.reader] = linear(model, part.reader).weight.detach().double() @ (lost * mean)
    return cut(model, gone, shifts)


def drop(model: nn.Module, share: float, heard: Observed) -> nn.Module:
    """The original without its least influential layers."""
    layers = layers_of(model)
    order = sorted(range(len(layers)), key=lambda index: heard.influence[index])
    left = set(range(len(layers))) - set(order[: round(share * len(layers))])
    small = deepcopy(model)
    *path, last = form_of(model).layers.split(".")
    setattr(
        small.get_submodule(".".join(path)), last, nn.ModuleList(layers_of(small)[i] for i in sorted(left))
    )
    config_of(small).num_hidden_layers = len(left)
    return small


def sliced_parameters(model: nn.Module, width: int) -> tuple[int, int]:
    """Of all layers, and of the whole model, with a stream so wide. The last layer writes the whole width, as
    nothing is cut in front of the head. Norms have no weights left, skips have adapters, and the head is a
    tensor of its own.
    """
    config = config_of(model)
    hidden = config.hidden_size
    reads = writes = 0
    for part in parts_of(model)[:2]:
        reads += sum(linear(model, name).out_features for name in part.writers)
        writes += linear(model, part.reader).in_features
    mlp = linear(model, parts_of(model, "mlp")[0].reader).in_features
    one = (reads + writes) * width + 2 * width * width
    total = len(layers_of(model)) * one + (hidden - width) * (mlp + width)
    return total, total + config.vocab_size * (width + hidden)


@torch.no_grad()
def sliced(model: nn.Module, share: float, batches: Batches) -> tuple[nn.Module, int]:
    """A copy whose stream is projected, and how wide it is."""
    most = parameters(model)[0] - wanted(model, "both", share)
    hidden = config_of(model).hidden_size
    width = next(w for w in range(hidden, 0, -1) if sliced_parameters(model, w)[0] <= most)
    return projected(model, width, batches), width


@torch.no_grad()
def projected(model: nn.Module, width: int, batches: Batches) -> nn.Module:
    """A copy whose stream has so many directions in front of every norm but the last."""
    small = deepcopy(model)
    found: dict[tuple[int, str], Tensor] = {}
    stream: dict[int, Tensor] = {}

    def leading(x: Tensor, key: tuple[int, str]) -> Tensor:
        if key not in found:
            rows = x.flatten(0, -2).double()
            found[key] = torch.linalg.eigh(rows.T @ rows)[1][:, -width:]
        basis = found[key]
        return (x.double() @ basis @ basis.T).to(x)

    def before(index: int) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> Any:
            stream[index] = leading(args[0], (index, "attention"))
            return (stream[index], *args[1:])

        return hook

    def between(index: int) -> Callable[..., Any]:
        def hook(_: nn.Module, __: Any, result: tuple[Tensor, ...]) -> Any:
            x = stream.pop(index)
            return (leading(x + result[0], (index, "mlp")) - x, *result[1:])

        return hook

    for index, layer in enumerate(layers_of(small)):
        layer.register_forward_pre_hook(before(index))
        layer.get_submodule("self_attn").register_forward_hook(between(index))
    every = torch.cat([batch["input_ids"] for batch in batches])
    small.base_model(input_ids=every)  # type: ignore[operator]  # every layer sees all of it before the next
    return small


PEERS = ("wanda-sp", "flap", "magnitude", "random", "slicing", "dropping")
WITHOUT = ("magnitude", "random")  # that hear nothing
WHOLE = ("slicing", "dropping")  # that know no kinds


def made(
    method: str,
    model: nn.Module,
    kind: str,
    share: float,
    batches: Batches,
    heard: Callable[[], Observed],
) -> tuple[nn.Module, tuple[int, int]]:
    """A smaller network by one of the peers, with its parameters.

    Args:
        heard: makes what was heard on the batches.
    """
    if method == "slicing":
        small, width = sliced(model, share, batches)
        return small, sliced_parameters(model, width)
    if method == "flap":
        small = flap(model, kind, share, heard())
    elif method == "dropping":
        small = drop(model, share, heard())
    else:
        listened = None if method in WITHOUT else heard()
        scores = {part: SCORES[method](model, part, listened) for part in parts_of(model, kind)}
        small = cut(model, equal(scores, model, kind, share))
    return small, parameters(small)
