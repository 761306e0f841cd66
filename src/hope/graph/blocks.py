"""Residual blocks: adds that join a branch of layers with a skip, and how each could be evicted.

The branch is everything between the fork and the add, found by dominance in the graph, whatever the code
looks like. How a block can be taken out of the *modules* is a separate question with two answers:

- `Replace`: one module computes exactly the block, from its input to the add and the activation behind it. It
  is replaced by its own skip: nothing of the branch is left at run time.
- `Silence`: the block is a part of a larger module's code. The branch's modules are replaced so that the code
  still runs and adds nothing (or a bias); the tensors that flow through what is left of the branch have a
  single element.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from torch.fx import Node

from hope.anatomy.flow import arguments, is_in_place, operator
from hope.graph.capture import Graph, module_path, module_stack, shape_of

_ACTIVATIONS = {
    "relu": "ReLU", "relu6": "ReLU6", "silu": "SiLU", "gelu": "GELU", "hardswish": "Hardswish", "elu": "ELU",
    "mish": "Mish", "sigmoid": "Sigmoid", "tanh": "Tanh", "hardsigmoid": "Hardsigmoid",
    "leaky_relu": "LeakyReLU", "selu": "SELU",
}  # fmt: skip


class Replace(msgspec.Struct, frozen=True, tag="replace", tag_field="kind", forbid_unknown_fields=True):
    """Replace one module by its skip.

    Attributes:
        module: path of the module that computes the block.
        skip: children (by name, in order) that make up the skip; none for an identity.
        after: what follows the add: a child's name, or the class name of a parameter-free `torch.nn`
            activation.
        positive: what enters is the output of a ReLU and a ReLU is all that follows: without a bias it does
            nothing.
    """

    module: str
    skip: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    positive: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the modules that are replaced."""
        return (self.module,)


class Silence(msgspec.Struct, frozen=True, tag="silence", tag_field="kind", forbid_unknown_fields=True):
    """Replace the modules of the branch by ones that cost nothing.

    Attributes:
        modules: paths in order of execution; the first cuts the branch off, the last hands out zero (or the
            bias).
        full: the add works in place on the branch, so the zero must have the full shape.
        returns: per module, how many things it returns as a tuple; 0 for a plain tensor.
    """

    modules: tuple[str, ...]
    full: bool = False
    returns: tuple[int, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the modules that are replaced."""
        return self.modules


@dataclass(frozen=True)
class Block:
    """A branch of layers beside a skip, which can be evicted.

    Attributes:
        name: path of the module whose code does the add (with the add's number if it does several).
        skip: "identity" (no parameters on it) or "projection".
        channels: channels of the add's result.
        channel_dim: the dimension they stand in.
        ndim: how many dimensions the add's result has.
        layers: neuron layers inside the branch.
        release: parameters that an eviction releases.
        inside: the innermost other block whose branch contains this one.
        way: how it is taken out of the modules.
        bias: whether a per-channel bias can be left behind.
        last_bn: the BN in front of the add, if the branch ends in one.
        skip_bn: the last BN that wrote into what the skip carries, if there is one.
        tensors: parameters and buffers that the branch uses.
        branch_output: name of the graph node that ends the branch.
    """

    name: str
    skip: str
    channels: int
    channel_dim: int
    ndim: int
    layers: tuple[str, ...]
    release: int
    inside: str | None
    way: Replace | Silence
    bias: bool
    last_bn: str | None
    skip_bn: str | None
    tensors: tuple[str, ...]
    branch_output: str

    @property
    def place(self) -> str:
        """Path of the (first) module that an eviction replaces."""
        return self.way.paths[0]

    def removes(self, name: str) -> bool:
        """Whether evicting this block removes the module, parameter or buffer of that name."""
        return removes(self.way, name)


def removes(way: Replace | Silence, name: str) -> bool:
    """Whether taking a block out in this way removes the module, parameter or buffer of that name."""
    if isinstance(way, Silence):
        return any(under(name, module) for module in way.modules)
    kept = [f"{way.module}.{child}" for child in (*way.skip, *way.after)]
    return under(name, way.module) and not any(under(name, child) for child in kept)


def under(name: str, module: str) -> bool:
    """Whether a name is that of a module or of something inside it."""
    return name == module or name.startswith(module + ".")


@dataclass(frozen=True)
class Found:
    """A block as nodes of the graph.

    Attributes:
        add, fork: where branch and skip meet, and where they part.
        end, other: the branch's and the skip's last node.
        branch, skip: the nodes in between.
        projection: whether the skip has weights.
    """

    add: Node
    fork: Node
    end: Node
    other: Node
    branch: frozenset[Node]
    skip: frozenset[Node]
    projection: bool


class Layout:
    """A captured graph, seen as runtime nodes and the modules that ran them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.runtime: set[Node] = set()
        self.ran: dict[str, set[Node]] = {}
        live = _live(graph)
        for node in graph.nodes:
            fed = node.op == "call_function" and any(p in self.runtime for p in node.all_input_nodes)
            if node in live and ((node.op == "placeholder" and node.name in graph.inputs) or fed):
                self.runtime.add(node)
                for module in module_stack(node):
                    self.ran.setdefault(module, set()).add(node)

    def find(self, weights: frozenset[str]) -> list[Found]:
        """Every add that joins a branch and a skip, the branch having more of the given weights than the
        skip.
        """
        runtime, graph = self.runtime, self.graph
        above = {
            node: [p for p in node.all_input_nodes if p in runtime] for node in graph.nodes if node in runtime
        }
        depth, parent = _dominators(above)
        mixing = {
            node
            for node in runtime
            if any(graph.tensors.get(p.name) in weights for p in node.all_input_nodes)
        }
        found = []
        for add in graph.nodes:
            if (
                operator(add) != "add"
                or add not in runtime
                or len(add.args) < 2
                or add.kwargs.get("alpha", 1) != 1
            ):
                continue
            a, b = add.args[:2]
            if not (isinstance(a, Node) and isinstance(b, Node) and a in runtime and b in runtime) or a is b:
                continue
            fork = _meet(a, b, depth, parent)
            if fork is None or shape_of(a) != shape_of(add) or shape_of(b) != shape_of(add):
                continue
            over_a, over_b = _between(a, fork, above), _between(b, fork, above)
            heavy_a, heavy_b = len(mixing & over_a), len(mixing & over_b)
            if heavy_a == heavy_b or over_a & over_b:
                continue
            end, other, branch, skip = (a, b, over_a, over_b) if heavy_a > heavy_b else (b, a, over_b, over_a)
            if all(
                user in branch or user is add for node in branch for user in node.users if user in runtime
            ):
                found.append(
                    Found(
                        add, fork, end, other, frozenset(branch), frozenset(skip), min(heavy_a, heavy_b) > 0
                    )
                )
        return found

    def ways(self, found: Found) -> tuple[Replace | Silence, ...]:
        """How the block can be taken out of the modules, best first. Whether the code agrees is for a trial
        to say.
        """
        return tuple(way for way in (self._replace(found), self._silence(found)) if way is not None)

    def _replace(self, found: Found) -> Replace | None:
        for module in reversed(module_stack(found.add)):
            nodes = self.ran.get(module, set())
            if not module or found.fork in nodes:
                return None  # the module does more than the block, and so do the modules around it
            if found.branch <= nodes and found.skip <= nodes:
                break
        else:
            return None
        outside = {p for node in nodes for p in node.all_input_nodes if p in self.runtime and p not in nodes}
        skip = _children(found.skip, module, nodes)
        if outside != {found.fork} or skip is None:
            return None
        rest = nodes - found.branch - found.skip - {found.add}
        after: list[tuple[str | None, str]] = []
        node = found.add
        while rest:
            users = [user for user in node.users if user in self.runtime]
            if len(users) != 1 or users[0] not in rest:
                return None
            node = users[0]
            rest.discard(node)
            call = _child(node, module) or (_functional(node), node.name)
            if call[0] is None:
                return None
            if call not in after:
                after.append(call)
        positive = (
            operator(found.fork) == "relu"
            and not skip
            and node is not found.add
            and operator(node) == "relu"
            and len(after) == 1
        )
        names = tuple(str(name) for name, _ in after)
        if len({*skip, *names}) < len(skip) + len(names):
            return None  # a child that is called twice
        return Replace(module, skip, names, positive)

    def _silence(self, found: Found) -> Silence | None:
        inside = self._outermost(found.branch, module_path(found.add))
        if not inside:
            return None
        last = max(self.ran[inside[-1]])
        if any(node > last and operator(node) not in (*_NOTHING, "mul") for node in found.branch):
            return None
        entered = {node for node in found.branch if found.fork in node.all_input_nodes}
        full = is_in_place(found.add) and found.add.args[0] is found.end
        if not entered <= self.ran[inside[0]] or (full and shape_of(found.end) != shape_of(found.fork)):
            return None
        return Silence(inside, full)

    def _outermost(self, nodes: frozenset[Node], home: str) -> tuple[str, ...]:
        """Outermost modules below `home` whose every node is among the given ones, in order of execution."""
        names: dict[str, None] = {}
        for node in sorted(nodes):
            for module in module_stack(node):
                if (
                    module != home
                    and (not home or under(module, home))
                    and module
                    and self.ran.get(module, set()) <= nodes
                ):
                    names[module] = None
                    break
        return tuple(names)


_NOTHING = ("dropout", "alias", "clone", "contiguous")


def _dominators(above: dict[Node, list[Node]]) -> tuple[dict[Node, int], dict[Node, Node | None]]:
    """Immediate dominators of a graph given in topological order; None stands for the (virtual) start."""
    depth: dict[Node, int] = {}
    parent: dict[Node, Node | None] = {}
    for node, inputs in above.items():
        meet: Node | None = inputs[0] if inputs else None
        for other in inputs[1:]:
            meet = _meet(meet, other, depth, parent)
        parent[node] = meet
        depth[node] = depth[meet] + 1 if meet is not None else 0
    return depth, parent


def _meet(
    a: Node | None, b: Node | None, depth: dict[Node, int], parent: dict[Node, Node | None]
) -> Node | None:
    """The last node that both must have come through."""
    while a is not b:
        if a is None or b is None:
            return None
        if depth[a] >= depth[b]:
            a = parent[a]
        else:
            b = parent[b]
    return a


def _between(end: Node, fork: Node, above: dict[Node, list[Node]]) -> set[Node]:
    """The nodes from the fork (not included) to the end (included)."""
    seen: set[Node] = set()
    stack = [end]
    while stack:
        node = stack.pop()
        if node is not fork and node not in seen:
            seen.add(node)
            stack += above[node]
    return seen


def _live(graph: Graph) -> set[Node]:
    """Nodes that an output depends on: not the checks that export leaves behind, nor writes into masks and
    the like.
    """
    live: set[Node] = set()
    stack = [node for node in graph.nodes if node.op == "output"]
    while stack:
        node = stack.pop()
        if node not in live:
            live.add(node)
            stack += node.all_input_nodes
    return live


def _functional(node: Node) -> str | None:
    """The torch.nn class for a functional activation with default numbers."""
    name = operator(node)
    if name == "hardtanh":
        bounds = arguments(node)
        return "ReLU6" if (bounds["min_val"], bounds["max_val"]) == (0, 6) else None
    return _ACTIVATIONS.get(name) if len(node.args) == 1 and not node.kwargs else None


def _child(node: Node, module: str) -> tuple[str, str] | None:
    """The name of the module's direct child that ran the node, and which call it was; None if its own code
    did.
    """
    calls = list((node.meta.get("nn_module_stack") or {}).items())
    paths = [str(path) for _, (path, _) in calls]
    depth = paths.index(module) + 1 if module in paths else len(paths)
    return (paths[depth][len(module) + 1 :], str(calls[depth][0])) if depth < len(paths) else None


def _children(nodes: frozenset[Node], module: str, everything: set[Node]) -> tuple[str, ...] | None:
    """Direct children that do exactly these nodes, in order; None if the module's own code takes part."""
    calls = dict.fromkeys(_child(node, module) for node in sorted(nodes))
    names = tuple(call[0] for call in calls if call is not None)
    others = {call[0] for call in (_child(node, module) for node in everything - nodes) if call is not None}
    return None if None in calls or others & set(names) else names


def leaves_bias(found: Found, way: Replace | Silence) -> bool:
    """Whether a per-channel bias can stay behind: where the block is replaced, or its last module ends the
    branch.
    """
    return isinstance(way, Replace) or way.modules[-1] in module_stack(found.end)


def ending_bn(found: Found, graph: Graph) -> str | None:
    """The BN whose output is the branch's output."""
    end = found.end
    while operator(end) in _NOTHING and isinstance(end.args[0], Node):
        end = end.args[0]
    return _bn(end, graph)


def preceding_bn(found: Found, everything: list[Found], graph: Graph) -> str | None:
    """The last BN that wrote into the tensor that the skip carries: the previous block's, or the stem's."""
    branch_ends = {other.add: other.end for other in everything}
    node: Node | None = found.fork
    while node is not None and _bn(node, graph) is None:
        fed = [p for p in node.all_input_nodes if p.name not in graph.tensors]
        node = branch_ends.get(node, fed[0] if len(fed) == 1 and operator(node) in _CHANNELWISE else None)
    return _bn(node, graph) if node is not None else None


def _bn(node: Node, graph: Graph) -> str | None:
    names = [graph.tensors[p.name] for p in node.all_input_nodes if p.name in graph.tensors]
    return names[0].rpartition(".")[0] if names and operator(node) == "batch_norm" else None


_CHANNELWISE = (
    *_NOTHING,
    *_ACTIVATIONS,
    "hardtanh",
    "max_pool2d",
    "avg_pool2d",
    "max_pool1d",
    "avg_pool1d",
    "max_pool3d",
)
