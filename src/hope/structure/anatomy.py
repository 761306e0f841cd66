"""What a network consists of: the result of reading it, and its arithmetic (parameters, MACs) after a cut."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hope.structure.observation_points import Taps
from hope.structure.sizes import Size, size_after
from hope.structure.units import IndexMap, Skipped, Unit
from hope.trace.blocks import Block
from hope.trace.labels import Shape
from hope.trace.program import Program
from hope.trace.trace import Trace


@dataclass(frozen=True, eq=False, repr=False)
class Anatomy:
    """A network read as neurons. `print(anatomy)` shows it as a table.

    Attributes:
        model: the model's class name.
        units: layers of neurons in order of execution, then streams; also those of a fixed width.
        blocks: what can be evicted: residual branches, parts of concatenations, segments of chains.
        skipped: everything left alone, with the reason.
        shapes: shapes of all parameters and buffers.
        parameters: the names that count as parameters.
        positions: weight -> how many times the example uses each of its entries (for MACs).
        aliases: parameter -> all the names it goes by, for those with several.
        eps: BN -> its ε.
        itemsize: tensor -> bytes of an entry, where these are not 4.
        program: the order of operations, for surrogates that follow signals; not saved with a run.
        taps: (unit, reading weight) -> where the program shows the unit's signal; not saved either.
        thins: whether it was read for channels of streams to go; not saved either.
        made: module -> its kind and settings, by which another network is told; not saved either.
        trace: the captured graphs, for whatever runs the network; not saved either.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> anatomy = hope.inspect(net, torch.zeros(1, 4))
        >>> anatomy.unit("0").neurons, anatomy.size().parameters, anatomy.floor().parameters
        (8, 58, 9)
    """

    model: str
    units: tuple[Unit, ...]
    blocks: tuple[Block, ...]
    skipped: tuple[Skipped, ...]
    shapes: Mapping[str, Shape]
    parameters: frozenset[str]
    positions: Mapping[str, int]
    aliases: Mapping[str, tuple[str, ...]]
    eps: Mapping[str, float]
    itemsize: Mapping[str, int] = field(default_factory=dict)
    program: Program = field(default=(), repr=False)
    taps: Taps = field(default_factory=dict, repr=False)
    thins: bool = field(default=False, repr=False)
    made: Mapping[str, str] = field(default_factory=dict, repr=False)
    trace: Trace = field(default_factory=Trace, repr=False)

    @cached_property
    def layers(self) -> tuple[Unit, ...]:
        """Units whose neurons can be removed one by one, in order of execution; streams, where they were
        asked for, come last.
        """
        return tuple(unit for unit in self.units if unit.open)

    @cached_property
    def streams(self) -> tuple[Unit, ...]:
        """Channels tied together by adds, with all writers and readers. Those that can go (`inspect` was
        asked for `streams`) are among the layers, too.
        """
        return tuple(unit for unit in self.units if unit.kind == "stream")

    @cached_property
    def _named(self) -> tuple[dict[str, Unit], dict[str, Block]]:
        return {unit.name: unit for unit in self.units}, {block.name: block for block in self.blocks}

    def names(self, tensor: str) -> tuple[str, ...]:
        """All names that a parameter or buffer goes by; it is gone when the last of them is."""
        return self.aliases.get(tensor, (tensor,))

    def unit(self, name: str) -> Unit:
        """The layer or stream of that name."""
        return self._named[0][name]

    def block(self, name: str) -> Block:
        """The block of that name."""
        return self._named[1][name]

    def home(self, tensor: str) -> str | None:
        """The innermost residual block whose branch uses a tensor."""
        blocks = [block for block in self.blocks if block.residual and tensor in block.tensors]
        return min(blocks, key=lambda block: len(block.tensors)).name if blocks else None

    def ends(self, block: Block) -> dict[str, IndexMap]:
        """Streams whose channels can go -> where these stand in what a residual block's branch writes."""
        found: dict[str, IndexMap] = {}
        for unit in self.streams if block.residual else ():
            inside = [tensor in block.tensors for tensor in unit.written]
            if unit.open and any(inside) and not all(inside):
                wide = [p for p in unit.places if self.shapes[p.tensor][p.dim] == block.channels]
                found[unit.name] = min(wide, key=lambda part: part.tensor not in block.tensors)
        return found

    def size(
        self,
        removed: Mapping[str, int] | None = None,
        evicted: Collection[str] = (),
        biases: Collection[str] = (),
    ) -> Size:
        """The size after a cut, without making it. Neurons on both sides of an evicted segment of a chain are
        taken to be the same ones, as far as their numbers go.

        Args:
            removed: unit name -> how many of its neurons go.
            evicted: names of evicted blocks.
            biases: those of them that leave a per-channel bias behind.
        """
        return size_after(self, removed or {}, evicted, biases)

    def floor(self) -> Size:
        """The smallest size that is always within reach: every residual block evicted, one neuron left in
        every other layer. Which blocks without a skip can go besides depends on what went before.
        """
        residual = [block.name for block in self.blocks if block.residual]
        return self.size({layer.name: layer.neurons - 1 for layer in self.layers}, residual)

    def __repr__(self) -> str:
        return (
            f"<Anatomy of {self.model}: {len(self.layers)} layers, {len(self.blocks)} blocks, "
            f"{len(self.streams)} streams>"
        )

    def __str__(self) -> str:
        from hope.structure.summary import render

        return render(self)

    def _repr_html_(self) -> str:
        from hope._util.tables import html
        from hope.structure.summary import parts_of

        return html(*parts_of(self))
