"""A judge without a forward pass: how two networks' answers correlate, in closed form.

The surrogate follows the signals of the original and of the small network together: what the two have in
common passes through every operator as covariances within one network do (`statistics/propagated.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from hope.errors import UnsupportedModel
from hope.rewrite.apply import Outcome
from hope.rewrite.zero_pad import embedded, places_of, silences
from hope.statistics.propagated import Propagated
from hope.structure.anatomy import Anatomy


class ClosedForm:
    """Compares networks with one original.

    Args:
        model: the original.
        anatomy: of it.
    """

    def __init__(self, model: nn.Module, anatomy: Anatomy) -> None:
        self.anatomy = anatomy
        named = [*model.named_parameters(), *model.named_buffers()]
        self.tensors: Mapping[str, Tensor] = {name: tensor.detach().cpu() for name, tensor in named}

    def __call__(self, small: nn.Module, done: Outcome) -> float:
        """The correlation of the two networks' answers, at most 1.

        Args:
            small: a network made of the original.
            done: by what.
        """
        found = self.follow(embedded(self.anatomy, small, places_of(self.anatomy, done)), done)
        ends = [place for op in self.anatomy.program if op.operator == "output" for place in op.inputs]
        signal = found.signals[ends[0]] if ends else None
        if signal is None:
            raise UnsupportedModel(
                "the signals of this network cannot be followed to its answer, so there is no closed form: "
                "leave closed_form out"
            )
        return correlation(signal.covariance)

    def follow(self, beside: Mapping[str, Tensor], done: Outcome) -> Propagated:
        """The signals of both networks; the second's channels stand next to the first's."""
        program, silent = self.anatomy.program, silences(self.anatomy, done)
        return Propagated(program, self.tensors, beside=beside, silent=silent)


def correlation(covariance: Tensor) -> float:
    """Of two networks' answers, without what all classes have in common.

    Args:
        covariance: of the answers of both, those of the second next to the first's.

    >>> import torch
    >>> correlation(torch.ones(2, 2))
    1.0
    """
    size = len(covariance) // 2

    def power(a: int, b: int) -> float:
        block = covariance[a::2, b::2]
        return float(block.diagonal().sum() - (block.sum() / size if size > 1 else 0.0))

    bottom = (max(0.0, power(0, 0)) * max(0.0, power(1, 1))) ** 0.5
    return min(1.0, power(0, 1) / bottom) if bottom > 0 else 0.0
