"""Mixtures of experts: experts that are stacked in two tensors, as single modules and back.

transformers keeps the gates and values of all experts in one tensor (E, 2I, C) and what reads them in another
(E, C, I). In there a neuron of one expert cannot go alone. Opened, each expert is three linear layers, and a
token passes all of them, weighted by its share, which is zero where it was not sent: the answers stay
the same, and what is measured of an expert is just what it is sent, by its share. Closed, they are stacked.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope._util.memory import PART, allowed, share_weights, size_of
from hope.errors import UnsupportedModel, first_line
from hope.trace.capture import check_readable

TOLERANCE = 1e-3  # of the largest number that experts say, in float32
SIZES = (1.0, 100.0)  # of the tokens that are tried: limits bite on large ones
ALIGNED = 16  # bytes that a row must be a multiple of for torch's products of groups


class Expert(nn.Module):
    """One expert: gates times values, by the token's share, read by a third layer."""

    def __init__(self, both: Tensor, down: Tensor, act: Any) -> None:
        super().__init__()
        gate, up = both.chunk(2)
        self.gate, self.up, self.down = (_linear(weight) for weight in (gate, up, down))
        self.act = act

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        """(tokens, C) and (tokens, 1)."""
        read: Tensor = self.down(self.act(self.gate(x)) * self.up(x) * share)
        return read


class Experts(nn.Module):
    """All experts of a layer, each by itself, called as what they were stacked in is."""

    def __init__(self, stacked: nn.Module) -> None:
        super().__init__()
        both, down = stacked.get_parameter("gate_up_proj"), stacked.get_parameter("down_proj")
        pairs = zip(both.detach(), down.detach(), strict=True)
        self.each = nn.ModuleList(Expert(*pair, copy.copy(stacked.act_fn)) for pair in pairs)
        for one in cast("list[Expert]", list(self.each)):
            one.requires_grad_(both.requires_grad)
            one.down.requires_grad_(down.requires_grad)
        self.width = down.shape[2]
        shell = copy.copy(stacked)
        shell._parameters = dict.fromkeys(stacked._parameters)
        self._shell = (shell,)  # in a tuple: no part of this module

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """What the experts say, by the tokens' shares."""
        shares = top_k_weights.new_zeros(hidden_states.shape[0], len(self.each) + 1)  # one for no expert
        shares = shares.scatter_add(1, top_k_index, top_k_weights).to(hidden_states.dtype)
        total = torch.zeros_like(hidden_states)
        for k, expert in enumerate(self.each):
            total = total + expert(hidden_states, shares[:, k : k + 1])
        return total

    def stacked(self, name: str, config: Any) -> nn.Module:
        """As it was, with the width that there is now."""
        every = cast("list[Expert]", list(self.each))
        widths = {one.gate.out_features for one in every}
        width = min(widths)
        way = "compress what hope.unstack_experts returned with uniform=True"
        if len(widths) > 1 or any(one.down.bias is not None for one in every):
            raise UnsupportedModel(
                f"{name}: its experts must have one width and no bias, got {width} to {max(widths)} neurons: "
                f"{way}"
            )
        both = torch.stack([torch.cat([one.gate.weight, one.up.weight]).detach() for one in every])
        down = torch.stack([one.down.weight.detach() for one in every])
        if width % (step := _step(down, config)):
            raise UnsupportedModel(
                f"{name}: neurons of experts must be a multiple of {step} for torch's product of groups, got "
                f"{width}: {way} and multiple_of={step}"
            )
        closed = copy.copy(self._shell[0])
        trained = (every[0].gate.weight.requires_grad, every[0].down.weight.requires_grad)
        closed._parameters = {
            "gate_up_proj": nn.Parameter(both, trained[0]),
            "down_proj": nn.Parameter(down, trained[1]),
        }
        for field in ("intermediate_dim", "intermediate_size"):
            if getattr(closed, field, None) == self.width:
                setattr(closed, field, width)
        if type(getattr(closed, "config", None)) is type(config):
            vars(closed)["config"] = config
        return closed.train(self.training)


def unstack_experts(model: nn.Module) -> nn.Module:
    """A copy of a mixture of experts in which every expert is a module of its own: its neurons can go.

    It gives the same answers, but sends every token through all experts: it is for compressing, not for use.
    `hope.stack_experts` makes what came out of that a model of the old class again, which takes one width for
    all experts: `hope.encode(..., uniform=True)`. A model without stacked experts is copied as it is. A model
    that fills much of the memory, and its copy, have their weights in common.

    Raises:
        UnsupportedModel: its experts are stacked, but compute something else than gates times values.

    Example:
        >>> import torch, hope
        >>> from transformers import MixtralConfig, MixtralForCausalLM
        >>> sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=64)
        >>> heads = dict(num_attention_heads=4, num_key_value_heads=2, num_local_experts=4)
        >>> model = MixtralForCausalLM(MixtralConfig(**sizes, **heads)).eval()
        >>> batches = [{"input_ids": torch.randint(2, 64, (8, 16))} for _ in range(4)]
        >>> method, opened = hope.Absorb(calibration=batches), hope.unstack_experts(model)
        >>> run = hope.encode(opened, batches[0], params=0.7, uniform=True, multiple_of=4, method=method)
        >>> small = hope.stack_experts(run.model)
        >>> type(small).__name__, small.config.intermediate_size < 48
        ('MixtralForCausalLM', True)
    """
    check_readable(model)
    opened = share_weights(model) if size_of(model) > allowed() / PART else duplicate(model)
    uses = Counter(id(one) for module in opened.modules() for one in module._parameters.values())

    def made(name: str, module: nn.Module) -> nn.Module:
        if any(uses[id(one)] > 1 for one in module._parameters.values()):
            raise UnsupportedModel(
                f"the weights of {name} must be its own, got one that another module has too: untie them"
            )
        return _tried(name, module)

    return _exchanged(opened, stacks, made)


def stack_experts(model: nn.Module) -> nn.Module:
    """A copy of a model that `hope.unstack_experts` made, or of what was compressed of it, in its old class.

    Raises:
        UnsupportedModel: experts cannot be stacked: those of a layer differ in width, or none of torch's
            products takes the width that they have. The message says what to do.

    Example:
        >>> import torch, hope
        >>> from transformers import MixtralConfig, MixtralForCausalLM
        >>> sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, vocab_size=64)
        >>> model = MixtralForCausalLM(MixtralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
        >>> again = hope.stack_experts(hope.unstack_experts(model))
        >>> all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
        True
    """
    closed = duplicate(model)
    config = getattr(closed, "config", None)

    def old(name: str, module: nn.Module) -> nn.Module:
        return cast("Experts", module).stacked(name, config)

    return _exchanged(closed, lambda module: isinstance(module, Experts), old)


def stacks(module: nn.Module) -> bool:
    """Whether a module is experts that are stacked: (E, 2I, C) and (E, C, I), without biases."""
    both, down = (module._parameters.get(name) for name in ("gate_up_proj", "down_proj"))
    if both is None or down is None or down.ndim != 3 or len(module._parameters) != 2:
        return False
    experts, width, neurons = down.shape
    return tuple(both.shape) == (experts, 2 * neurons, width) and callable(getattr(module, "act_fn", None))


def widths_of(model: nn.Module) -> int:
    """What the width of experts must be a multiple of for them to be stacked again; 1 if there are none."""
    every = [cast("Expert", module.each[0]) for module in model.modules() if isinstance(module, Experts)]
    return max([1, *(_step(one.down.weight, getattr(model, "config", None)) for one in every)])


def _step(weight: Tensor, config: Any) -> int:
    grouped = getattr(config, "_experts_implementation", "") == "grouped_mm"
    return ALIGNED // weight.itemsize if grouped else 1


def opened_in(model: nn.Module) -> frozenset[str]:
    """Names of the experts that are open."""
    return frozenset(name for name, module in _everywhere(model) if isinstance(module, Experts))


def open_named(model: nn.Module, names: Iterable[str]) -> None:
    """Open, in place, the experts of these names."""
    ours = {id(model.get_submodule(name)) for name in names}
    _exchanged(model, lambda module: id(module) in ours, lambda _, module: Experts(module))


def _everywhere(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [*model.named_modules(remove_duplicate=False)]


def _exchanged(
    model: nn.Module, wanted: Callable[[nn.Module], bool], made: Callable[[str, nn.Module], nn.Module]
) -> nn.Module:
    """The model, with others for some modules, wherever these are; one for one."""
    found: dict[int, nn.Module] = {}
    for name, module in _everywhere(model):
        if wanted(module):
            new = found[id(module)] = found.get(id(module)) or made(name, module)
            if not name:
                return new
            above, _, own = name.rpartition(".")
            setattr(model.get_submodule(above), own, new)
    return model


def _tried(name: str, module: nn.Module) -> Experts:
    """The opened experts, if they say on some tokens what the stacked ones say."""
    for own, tensor in module.named_parameters():
        if not bool(tensor.isfinite().all()):
            raise UnsupportedModel(
                f"{name}.{own} must be finite, got NaN or infinite numbers: load the weights again"
            )
    single = duplicate(module).float()  # where large tokens overflow nothing
    opened, both = Experts(single), single.get_parameter("gate_up_proj")
    number, width = both.shape[0], both.shape[2]
    generator = torch.Generator().manual_seed(0)
    some, shares = (torch.randn(2 * number, n, generator=generator) for n in (width, 2))
    first = torch.arange(2 * number, device=both.device)
    sent = torch.stack([first, first + 1], 1) % number
    for size in SIZES:
        call = ((size * some).to(both), sent[:, :number], shares[:, :number].abs().to(both))
        with torch.no_grad():
            try:
                wanted = single(*call)
            except Exception as error:  # whatever a module says that is called in another way, or cannot run
                raise UnsupportedModel(
                    f"{name}: stacked experts must run as experts(tokens, indices, shares), got "
                    f'{first_line(error)}: call model.set_experts_implementation("eager")'
                ) from error
            off = (wanted - opened(*call)).abs().max()
        if not bool(off <= TOLERANCE * wanted.abs().max()):
            raise UnsupportedModel(
                f"{name}: stacked experts must compute act(gate)·value of gate_up_proj, got something else: "
                "compress the model without unstack_experts"
            )
    return Experts(module)


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer
