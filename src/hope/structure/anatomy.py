"""The result of analysing a network, and its size (parameters, MACs) after a cut."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hope._util.numbers import plural
from hope.reasons import Reason
from hope.structure.observation_points import Taps
from hope.structure.sizes import Size, size_after
from hope.structure.units import IndexMap, Skipped, Unit
from hope.trace.blocks import Block
from hope.trace.labels import Shape
from hope.trace.program import Program
from hope.trace.trace import Trace


@dataclass(frozen=True, eq=False, repr=False)
class Anatomy:
    """The structure of a network. `print(anatomy)` shows it as a table.

    Attributes:
        model: the model's class name.
        units: layers of neurons in order of execution, then streams; also those of a fixed width.
        blocks: evictable blocks: residual branches, parts of concatenations, segments of chains.
        skipped: everything that is kept, with the reason.
        shapes: shapes of all parameters and buffers.
        parameters: the names that count as parameters.
        positions: weight -> how many times the example uses each of its entries (for MACs).
        aliases: parameter -> all its names, if there are several.
        eps: BN -> its ε.
        itemsize: tensor -> bytes of an entry, if not 4.
        program: the order of operations, for propagated surrogates; not saved with a run.
        taps: (unit, reading weight) -> observation point of the unit's signal; not saved.
        thins: whether it was analysed with `streams=True`; not saved.
        made: module -> its kind and settings, which identify the network; not saved.
        trace: the captured graphs, to run the network; not saved.
        roundable: parameter of two dimensions or more -> why it cannot be rounded to a few bits, None if it
            can; not saved.

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
    roundable: Mapping[str, Reason | None] = field(default_factory=dict, repr=False)

    @cached_property
    def layers(self) -> tuple[Unit, ...]:
        """Units whose neurons are prunable one by one, in order of execution; requested streams come last."""
        return tuple(unit for unit in self.units if unit.open)

    @cached_property
    def streams(self) -> tuple[Unit, ...]:
        """Channels joined by adds, with all writers and readers. Prunable streams (`inspect(...,
        streams=True)`) are also among the layers.
        """
        return tuple(unit for unit in self.units if unit.kind == "stream")

    @cached_property
    def _named(self) -> tuple[dict[str, Unit], dict[str, Block]]:
        return {unit.name: unit for unit in self.units}, {block.name: block for block in self.blocks}

    def names(self, tensor: str) -> tuple[str, ...]:
        """All names of a parameter or buffer; it is removed with the last of them."""
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
        """Prunable streams -> positions of their channels in the output of a residual block's branch."""
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
        """The size after a cut, without cutting. Neurons on both sides of an evicted segment of a chain are
        assumed to correspond, as far as their numbers allow.

        Args:
            removed: unit name -> how many of its neurons are removed.
            evicted: names of evicted blocks.
            biases: those of them that leave a per-channel bias.
        """
        return size_after(self, removed or {}, evicted, biases)

    def floor(self) -> Size:
        """The smallest size that is always reachable: every residual block evicted, one neuron left in every
        other layer. Whether blocks without a skip are evictable depends on earlier steps.
        """
        residual = [block.name for block in self.blocks if block.residual]
        return self.size({layer.name: layer.neurons - 1 for layer in self.layers}, residual)

    def __repr__(self) -> str:
        return (
            f"<Anatomy of {self.model}: {plural(len(self.layers), 'layer')}, "
            f"{plural(len(self.blocks), 'block')}, {plural(len(self.streams), 'stream')}>"
        )

    def __str__(self) -> str:
        from hope.structure.anatomy_table import render

        return render(self)

    def _repr_html_(self) -> str:
        from hope._util.tables import html
        from hope.structure.anatomy_table import parts_of

        return html(*parts_of(self))
