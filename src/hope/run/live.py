"""Releases in the network as it is now: the ablation to the paper's static ΔP."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hope.anatomy.anatomy import Anatomy
from hope.methods.state import BlockState, LayerState
from hope.run.merge import Choice


class Shrinking:
    """Follows the shapes of all tensors through a run."""

    def __init__(self, anatomy: Anatomy, layers: Sequence[LayerState], blocks: Sequence[BlockState]) -> None:
        self._shapes = {name: list(shape) for name, shape in anatomy.shapes.items()}
        self._slices = [anatomy.layer(state.name).slices for state in layers]
        self._blocks = [anatomy.block(state.name) for state in blocks]

    def layer(self, position: int) -> int:
        """ΔP of removing one neuron of a layer now."""
        after: dict[str, list[int]] = {}
        for part in self._slices[position]:
            after.setdefault(part.tensor, list(self._shapes[part.tensor]))[part.dim] -= part.index.shape[1]
        return max(1, sum(prod(self._shapes[tensor]) - prod(shape) for tensor, shape in after.items()))

    def block(self, number: int) -> int:
        """ΔP of evicting a block now: everything its branch still has."""
        block = self._blocks[number]
        return max(1, sum(prod(shape) for name, shape in self._shapes.items() if block.removes(name)))

    def done(self, choice: Choice) -> None:
        """Shrink what an action shrank."""
        if choice.kind == "evict":
            for name, shape in self._shapes.items():
                if self._blocks[choice.target].removes(name):
                    shape[:] = [0] * len(shape)
        else:
            for part in self._slices[choice.target]:
                if self._shapes[part.tensor][part.dim]:
                    self._shapes[part.tensor][part.dim] -= part.index.shape[1]
