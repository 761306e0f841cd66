"""The range of inputs that the first BN implies."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import nn

from hope._util.calls import Example, tensors_in
from hope.statistics.dreams import dreamed, entry
from hope.trace.trace import Trace

Range: TypeAlias = tuple[float, float]

COUNT = 32  # patterns
MARGIN = 1.5  # times their range: real inputs are not to be clipped, and 8 bits have room


def input_range(model: nn.Module, example: Example | None, trace: Trace | None = None) -> Range | None:
    """The least and largest value of the model's only input: those of patterns at the scale of the first BN,
    with a margin; None where no BN follows it.

    Args:
        trace: graphs that are captured already, of this model or of a wider one.

    Example:
        >>> bn = nn.BatchNorm2d(4).eval()
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), bn)
        >>> _ = bn.running_var.fill_(100)
        >>> low, high = input_range(net, torch.zeros(1, 3, 8, 8))
        >>> low < -20, high > 20
        (True, True)
    """
    if len(tensors_in(example)) != 1:
        return None
    trace = trace or Trace()
    if entry(model, trace.captured(model, example).program) is None:
        return None
    made = dreamed(model, example, trace, count=COUNT, steps=0, progress=False)
    values = [tensor.detach() for batch in made for tensor in tensors_in(batch)]
    low, high = (MARGIN * float(bound) for bound in torch.cat(values).aminmax())
    return min(low, 0.0), max(high, 0.0)
