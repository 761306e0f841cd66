"""What every cut is held against: the original with the removed neurons' outgoing weights set to zero, norms
that run over what is left, and other values where evicted branches end.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from hope._util.calls import Example, as_call
from hope.actions import Evict, Prune
from hope.errors import InvalidAction
from hope.rewrite.apply import outcome
from hope.structure.anatomy import Anatomy
from hope.trace.blocks import Block
from hope.trace.program import Ref
from zoo.interpretation import Instead, export, replaced


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random BN statistics, and random numbers wherever an initialisation left a constant."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for tensor, low, high in ((module.running_mean, -0.5, 0.5), (module.running_var, 0.5, 1.5)):
                    if tensor is not None:
                        tensor.copy_(torch.empty(tensor.shape).uniform_(low, high, generator=generator))
        for parameter in model.parameters():
            flat = parameter.flatten()
            if parameter.numel() and (flat == flat[0]).all():
                low, high = (0.5, 1.5) if flat[0] == 1 else (-0.5, 0.5)
                parameter.copy_(torch.empty(parameter.shape).uniform_(low, high, generator=generator))
    return model


def random_cut(anatomy: Anatomy, fraction: float = 0.3, seed: int = 0) -> list[Prune]:
    """A random part of every layer's neurons, never all."""
    rng = random.Random(seed)
    actions = []
    for layer in anatomy.layers:
        count = min(layer.neurons - 1, max(1, round(fraction * layer.neurons)))
        actions.append(Prune(layer.name, sorted(rng.sample(range(layer.neurons), count))))
    return actions


class Over(nn.Module):
    """A norm over all channels whose sums run over those that are left; the others yield zero.

    It divides by as many channels as there were, as if the others were silent.
    """

    def __init__(self, norm: nn.Module, left: Tensor) -> None:
        super().__init__()
        assert isinstance(norm.weight, Tensor)
        self.weight, self.bias, self.left = norm.weight, getattr(norm, "bias", None), left
        names = ("variance_epsilon", "epsilon", "eps")
        told = [eps for name in names if (eps := getattr(norm, name, None)) is not None]
        self.eps: float = told[0] if told else torch.finfo(self.weight.dtype).eps
        some = torch.arange(float(len(norm.weight))).to(self.weight).sin().reshape(1, 1, 1, -1)
        with torch.no_grad():
            try:
                norm(some)
                self.last = True
            except RuntimeError:
                self.last, some = False, some.movedim(-1, 1)
            self.centred = bool(torch.allclose(norm(some), norm(some + 1), rtol=1e-3, atol=1e-4))

    def forward(self, x: Tensor) -> Tensor:
        """The norm in full size."""
        x = x if self.last else x.movedim(1, -1)
        part, whole = x[..., self.left], x.shape[-1]
        mean = part.mean(-1, keepdim=True) if self.centred else torch.zeros_like(x[..., :1])
        size = ((part - mean) ** 2).sum(-1, keepdim=True) / whole + self.eps * len(self.left) / whole
        full = (part - mean) / size.sqrt() * self.weight[self.left]
        full = full if self.bias is None else full + self.bias[self.left]
        out = torch.zeros_like(x).index_copy(-1, self.left, full)
        return out if self.last else out.movedim(-1, 1)


def masked(model: nn.Module, anatomy: Anatomy, actions: Sequence[Prune]) -> nn.Module:
    """A full-size copy in which nobody reads the pruned neurons, norms included."""
    silent = copy.deepcopy(model)
    tensors = dict(silent.named_parameters())
    normed: dict[str, set[int]] = {}
    with torch.no_grad():
        for action in actions:
            for part in anatomy.unit(action.name).places:
                places = torch.from_numpy(part.index[list(action.removed)].ravel())
                if part.role == "in":
                    tensors[part.tensor].index_fill_(part.dim, places, 0)
                elif part.role == "norm":
                    normed.setdefault(part.tensor.removesuffix(".weight"), set()).update(places.tolist())
    for name, gone in normed.items():
        norm = silent.get_submodule(name)
        left = [place for place in range(len(tensors[f"{name}.weight"])) if place not in gone]
        above, _, own = name.rpartition(".")
        setattr(silent.get_submodule(above), own, Over(norm, torch.tensor(left)))
    return silent


def together(anatomy: Anatomy, evictions: Sequence[Evict], prunings: Sequence[Prune] = ()) -> list[Evict]:
    """Those of some evictions, first come first served, that can go together and with prunings: of a
    concatenation something stays, and of a chain a neuron.
    """
    found: list[Evict] = []
    for one in evictions:
        with suppress(InvalidAction):
            outcome(anatomy, [*prunings, *found, one])
            found.append(one)
    return found


def silenced(
    model: nn.Module,
    example: Example,
    anatomy: Anatomy,
    evictions: Sequence[Evict],
    prunings: Sequence[Prune] = (),
    program: ExportedProgram | None = None,
) -> list[Tensor]:
    """What the original gives when nobody reads pruned neurons and evicted branches say nothing.

    A residual branch yields zero or its bias. A part of a concatenation is read by nobody. A segment of a
    chain yields what it is given; nobody behind it reads the neurons that were pruned in front of it.
    """
    instead: dict[str, Instead] = {}
    unread = list(prunings)
    segments = [block for block in (anatomy.block(one.name) for one in evictions) if block.before is not None]
    order = [layer.name for layer in anatomy.layers]
    for block in sorted(segments, key=lambda block: order.index(block.layers[0])):
        dead = [k for one in unread if one.name == block.before for k in one.removed]
        unread += [Prune(block.layers[0], dead)]
    for action in evictions:
        block = anatomy.block(action.name)
        shape = [1] * block.ndim
        shape[block.channel_dim] = block.channels
        like = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
        if block.skip == "concatenation":
            layers = (anatomy.unit(name) for name in block.layers)
            unread += [Prune(layer.name, range(layer.neurons)) for layer in layers]
        elif block.before is not None:
            instead[block.branch_output] = source(anatomy, block)
        else:
            bias = action.bias or (0.0,) * block.channels
            instead[block.branch_output] = like.new_tensor(bias).reshape(shape)
    graph = program if program is not None else export(model, example)
    return replaced(graph, masked(model, anatomy, unread), example, instead)


def source(anatomy: Anatomy, block: Block) -> str:
    """The node that a segment of a chain reads."""
    weight = anatomy.unit(block.layers[0]).weight
    using = next(one for one in anatomy.program if weight in one.tensors.values() and one.tensor is None)
    assert isinstance(using.first, Ref)
    return anatomy.program[using.first.position].name


def run(model: nn.Module, example: Example) -> list[Tensor]:
    """All tensors that a model returns."""
    args, kwargs = as_call(example)
    with torch.no_grad():
        return [leaf for leaf in pytree.tree_leaves(model(*args, **kwargs)) if isinstance(leaf, Tensor)]
