"""`hope.inspect`: read a network, then make sure that its own code accepts what was read."""

from __future__ import annotations

from torch import nn

from hope._util.calls import Example
from hope._util.progress import busy
from hope.anatomy.anatomy import Anatomy, read_model
from hope.judge.trial import verify


def inspect(model: nn.Module, example: Example | None = None, *, progress: bool | None = None) -> Anatomy:
    """Read a network as neurons, blocks and streams, with a reason for everything that is left alone.

    The model is not changed; it is read in evaluation mode and put back in the mode it was in.

    Args:
        model: any module that `torch.export` can capture.
        example: an input it can run on: a tensor, a tuple of positional inputs or a dict of keyword inputs.
        progress: show what is being done on standard error; by default on a terminal only.

    Returns:
        An `Anatomy`: `.layers`, `.blocks`, `.streams`, `.skipped`; `print` it for a table.

    Raises:
        InvalidExample: there is no example, or the model cannot run on it.
        UnsupportedModel: the model cannot be captured or its parameters cannot be cut; the message says what
            to do.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> anatomy = hope.inspect(net, torch.zeros(1, 4))
        >>> [(layer.name, layer.neurons, layer.activation) for layer in anatomy.layers]
        [('0', 8, 'relu')]
        >>> str(anatomy.skipped[0].reason)
        'it is an output of the model'
    """
    anatomy, candidates = read_model(model, example, progress=progress)
    with busy(f"trying {anatomy.model} without data", progress):
        return verify(model, example, anatomy, candidates)
