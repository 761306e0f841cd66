"""Hold entries of a parameter still, whatever trains it.

Two things together, and neither alone. A hook on the parameter sets the gradient of frozen entries to zero
before it is accumulated, so before any optimizer, gradient clipping or all-reduce sees it: no velocity, no
second moments, no share of a norm. And after every optimizer step, in this process and of any optimizer that
derives from `torch.optim.Optimizer`, frozen entries are put back to the bit: weight decay moves weights that
have no gradient.

A parameter that is frozen as a whole needs no gradient, and no optimizer touches it: its gate has nothing to
do until someone makes it require one.

A gate lives as long as its parameter, whoever forgets the object that made it. Copies of a parameter
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
    """Holds the frozen entries of one parameter at what they are now.

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
        """The parameter, while it is there."""
        return self._parameter()

    def pass_on(self, gradient: Tensor) -> Tensor:
        """The gradient without its frozen entries; infinite ones too, which a product would turn into NaN."""
        return gradient.masked_fill(self._at(gradient), 0)

    def _at(self, like: Tensor) -> Tensor:
        if self.frozen.device != like.device:  # the model has moved
            self.frozen = self.frozen.to(like.device)
        return self.frozen

    @torch.no_grad()
    def restore(self) -> None:
        """Put frozen entries back, to the bit."""
        parameter = self.parameter
        if parameter is None:
            return
        if self.anchor.device != parameter.device:
            self.anchor = self.anchor.to(parameter.device)
        # the anchor keeps its type: a model that goes to half precision and back can have its core back
        parameter.copy_(torch.where(self._at(parameter), self.anchor.to(parameter.dtype), parameter))

    def differs(self, parameter: Tensor) -> bool:
        """Whether a frozen entry is not what it was, in the parameter or in what has taken its place."""
        same = (parameter.detach() == self.anchor.to(parameter)) | ~self._at(parameter)
        return not bool(same.all())

    @property
    def idle(self) -> bool:
        """Whether no optimizer moves the parameter anyway."""
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
