"""The greedy loop: a merge of independent paths by J/ΔP, with evictions priced from what the paths recorded.

Costs are intra-layer, so what a layer would do next depends on its own state alone. The global loop is a
k-way merge of the layers' paths (a heap). A block's eviction is priced anew after each move in one of its
layers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple, Protocol, TypeAlias

from hope.methods import costs
from hope.methods.path import Move
from hope.methods.state import AbsorbState, BlockState, LayerState

_ORDER = {"prune": 0, "merge": 1, "evict": 2}
State: TypeAlias = LayerState | AbsorbState
Done: TypeAlias = tuple[int, int, int]  # (layer, neuron, other), or (block, -1, -1) for an eviction


class Path(Protocol):
    """One layer on its way down."""

    @property
    def count(self) -> int:
        """Neurons that are left."""

    @property
    def capacity(self) -> float:
        """Capacity that is left."""

    def moves(self) -> Iterator[Move]:
        """All moves down to one neuron."""

    def follow(self, neuron: int, other: int) -> None:
        """Make a move that is known."""


Walk: TypeAlias = Callable[[Any], Path]


def _begun(walk: Walk, state: State, done: Sequence[Done]) -> Path:
    """A layer's path after what an interrupted run has done in it."""
    path = walk(state)
    for _, neuron, other in done:
        path.follow(neuron, other)
    return path


def _whole(walk: Walk, state: State, done: Sequence[Done]) -> tuple[int, float, list[Move]]:
    """The rest of a layer's path at once, for a worker elsewhere."""
    path = _begun(walk, state, done)
    return path.count, path.capacity, list(path.moves())


class LiveRelease(Protocol):
    """What actions would release in the network as it is now."""

    def layer(self, position: int) -> int:
        """ΔP of removing one neuron of a layer."""

    def block(self, number: int) -> int:
        """ΔP of evicting a block."""

    def done(self, choice: Choice) -> None:
        """Note that an action was carried out."""


class Choice(NamedTuple):
    """One action of the whole network.

    Attributes:
        kind: "prune", "merge" or "evict".
        target: position of the layer, or of the block for an eviction.
        cost: J.
        release: ΔP by which it was ranked.
        move: what the layer did; None for an eviction.
    """

    kind: str
    target: int
    cost: float
    release: int
    move: Move | None


def rounded(value: float, digits: int = 12) -> float:
    """A cost to so many significant digits: what is equal up to rounding counts as equal.

    >>> rounded(1.00000000000000002e-5) == rounded(1e-5)
    True
    """
    return value if value == 0 or not math.isfinite(value) else float(f"{value:.{digits - 1}e}")


class _Walker:
    """One layer's path, worked out as it is asked for, or elsewhere."""

    def __init__(self, state: State, walk: Walk, done: Sequence[Done], executor: Executor | None) -> None:
        self.neurons, self.capacity = state.neurons, state.capacity
        self._future: Future[tuple[int, float, list[Move]]] | None = None
        self._moves: Iterator[Move] | None = None
        if executor is not None:
            self._future = executor.submit(_whole, walk, state, done)
            if done:
                self.neurons, self.capacity, _ = self._future.result()
            return
        path = _begun(walk, state, done)
        if done:
            self.neurons, self.capacity = path.count, path.capacity
        self._moves = path.moves()

    def next(self) -> Move | None:
        """The layer's next move, None at its end."""
        if self._moves is None:
            assert self._future is not None
            self._moves = iter(self._future.result()[2])
        return next(self._moves, None)

    def done(self, move: Move) -> None:
        """Note that a move was made."""
        self.neurons, self.capacity = move.neurons, move.capacity


def choices(
    layers: Sequence[State],
    blocks: Sequence[BlockState] = (),
    *,
    walk: Walk,
    executor: Executor | None = None,
    live: LiveRelease | None = None,
    done: Sequence[Done] = (),
) -> Iterator[Choice]:
    """All actions in the order of the paper's criterion, argmin J/ΔP, one at a time until nothing is left to
    do.

    Args:
        layers: the layers' states; they are not changed.
        blocks: the blocks that may be evicted.
        walk: a layer's state -> its path (`path.layer_path`, `absorption.AbsorbPath`).
        executor: where to work out the paths; in this process, as needed, without one. The result is the
            same.
        live: rank by what an action would release now instead of in the original network (an ablation).
        done: what an interrupted run has already done, in order; the rest is as if it had not been stopped.
    """
    moves: dict[int, list[Done]] = {}
    for one in done:
        if one[1] >= 0:
            moves.setdefault(one[0], []).append(one)
    walkers = [
        _Walker(state, walk, moves.get(position, ()), executor) for position, state in enumerate(layers)
    ]
    inside: dict[int, list[int]] = {}
    for number, block in enumerate(blocks):
        for layer in block.layers:
            inside.setdefault(layer, []).append(number)
    heap: list[tuple[float, int, int, int, int, int]] = []
    heads: dict[int, Move] = {}
    prices = [math.inf] * len(blocks)
    versions = [0] * len(blocks)
    gone_layers: set[int] = set()
    gone_blocks: set[int] = set()

    def release_of(kind: str, target: int) -> int:
        if live is not None:
            return live.layer(target) if kind != "evict" else live.block(target)
        return layers[target].release if kind != "evict" else blocks[target].release

    def push_layer(position: int) -> None:
        move = heads[position]
        kind = "prune" if move.other < 0 else "merge"
        ratio = rounded(move.cost / release_of(kind, position))
        heapq.heappush(heap, (ratio, _ORDER[kind], position, move.neuron, move.other, 0))

    def queue_layer(position: int) -> None:
        move = walkers[position].next()
        if move is not None:
            heads[position] = move
            push_layer(position)

    def queue_block(number: int) -> None:
        block = blocks[number]
        left = [walkers[layer] for layer in block.layers]
        prices[number] = costs.evict([w.neurons for w in left], [w.capacity for w in left], block.anchors)
        versions[number] += 1
        ratio = rounded(prices[number] / release_of("evict", number))
        heapq.heappush(heap, (ratio, _ORDER["evict"], number, 0, 0, versions[number]))

    def evict(number: int) -> None:
        gone_blocks.add(number)
        gone_layers.update(blocks[number].layers)
        gone_blocks.update(n for n, b in enumerate(blocks) if set(b.layers) <= gone_layers)

    for target, neuron, other in done:
        if neuron < 0:
            evict(target)
        if live is not None:
            what = "evict" if neuron < 0 else "prune" if other < 0 else "merge"
            live.done(Choice(what, target, 0.0, 0, None))
    for position in range(len(layers)):
        queue_layer(position)
    for number in range(len(blocks)):
        if number not in gone_blocks:
            queue_block(number)
    while heap:
        _, kind, target, _, _, version = heapq.heappop(heap)
        if kind == _ORDER["evict"]:
            if target in gone_blocks or version != versions[target]:
                continue
            evict(target)
            choice = Choice("evict", target, prices[target], release_of("evict", target), None)
        elif target not in gone_layers:
            move = heads.pop(target)
            kind_name = "prune" if move.other < 0 else "merge"
            choice = Choice(kind_name, target, move.cost, release_of(kind_name, target), move)
            walkers[target].done(move)
            queue_layer(target)
            for number in inside.get(target, ()):
                if number not in gone_blocks:
                    queue_block(number)
        else:
            continue
        yield choice
        if live is not None:  # every neighbour's release has changed
            live.done(choice)
            heap.clear()
            for position in heads:
                if position not in gone_layers:
                    push_layer(position)
            for number in range(len(blocks)):
                if number not in gone_blocks:
                    queue_block(number)
