"""Freeze entries of a parameter, whatever trains it.

Two mechanisms are needed. A hook on the parameter sets the gradient of frozen entries to zero before it is
accumulated, that is before any optimizer, gradient clipping or all-reduce: no momentum, no second moments, no
share of a norm. And after every optimizer step, in this process and of any optimizer that derives from
`torch.optim.Optimizer`, frozen entries are restored to the bit: weight decay changes weights that have no
gradient.

A completely frozen parameter needs no gradient, and no optimizer changes it: its gate has nothing to do until
the parameter requires one.

A gate exists as long as its parameter, even if the object that made it is deleted. Copies of a parameter
(`copy.deepcopy`, pickles) have no gate.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class Gate:
    """Keeps the frozen entries of one parameter at their present values.

    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> gate = Gate(weight, torch.tensor([True, False, False]))
    >>> optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    >>> weight.sum().backward()
    >>> weight.grad
    tensor([0., 1., 1.])
    >>> optimizer.step()
    >>> weight[0].item(), weight[1].item() < 1
    (1.0, True)

    Args:
        anchor: what they are held at, if not at what they are now.
    """

    def __init__(self, parameter: nn.Parameter, frozen: Tensor, anchor: Tensor | None = None) -> None:
        self.frozen = frozen.to(parameter.device)
        self.whole = bool(frozen.all())
        self.anchor = parameter.detach().clone() if anchor is None else anchor
        self._parameter = weakref.ref(parameter)
        needs = parameter.requires_grad
        # the parameter keeps this gate alive; only one that requires gradients takes a hook, all keep it
        parameter.requires_grad_(True)
        parameter.register_hook(self.pass_on)  # type: ignore[no-untyped-call]
        parameter.requires_grad_(needs)
        _register(parameter, self)

    @property
    def parameter(self) -> nn.Parameter | None:
        """The parameter, while it exists."""
        return self._parameter()

    def pass_on(self, gradient: Tensor) -> Tensor:
        """The gradient without its frozen entries; infinite ones too, which a product would turn into NaN."""
        return gradient.masked_fill(self._at(gradient), 0)

    def _at(self, like: Tensor) -> Tensor:
        if self.frozen.device != like.device:  # the model was moved to another device
            self.frozen = self.frozen.to(like.device)
        return self.frozen

    @torch.no_grad()
    def restore(self) -> None:
        """Restore frozen entries, to the bit."""
        parameter = self.parameter
        if parameter is None:
            return
        if self.anchor.device != parameter.device:
            self.anchor = self.anchor.to(parameter.device)
        # the anchor keeps its dtype: a model converted to half precision and back gets its core back
        parameter.copy_(torch.where(self._at(parameter), self.anchor.to(parameter.dtype), parameter))

    def differs(self, parameter: Tensor) -> bool:
        """Whether a frozen entry has changed, in the parameter or in its replacement."""
        same = (parameter.detach() == self.anchor.to(parameter)) | ~self._at(parameter)
        return not bool(same.all())

    @property
    def idle(self) -> bool:
        """Whether no optimizer changes the parameter anyway."""
        parameter = self.parameter
        if parameter is None:
            return True
        return self.whole and not parameter.requires_grad and parameter.grad is None


_GATES: weakref.WeakValueDictionary[int, Gate] = weakref.WeakValueDictionary()
_watching = False


def _register(parameter: nn.Parameter, gate: Gate) -> None:
    global _watching
    _GATES[id(parameter)] = gate
    if not _watching:
        register_optimizer_step_post_hook(_after_step)
        _watching = True


@torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
def _after_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Runs after every step of every optimizer in the process; a look-up for parameters without a gate."""
    if not _GATES:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gate = _GATES.get(id(parameter))
            if gate is not None and gate.parameter is parameter and not gate.idle:
                gate.restore()
