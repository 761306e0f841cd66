"""The program: a captured network described once, operation by operation, without `torch.fx`.

Channel flow, signal flow, blocks, sizes and MACs all read this description and nothing else. What an operator
means is said in `hope.ops`; here is only what was called, on what, by whom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from hope.trace.capture import Graph

Shape: TypeAlias = tuple[int, ...]
PRODUCTS = {"matmul": ("self", "other"), "mm": ("self", "mat2"), "addmm": ("input", "weight")}  # and factors
TURNS = ("t", "numpy_T", "mT", "transpose", "swapaxes", "swapdims", "permute")
LINEAR = {"mat1": "input", "mat2": "weight", "self": "bias"}  # what a matrix product calls its arguments


@dataclass(frozen=True)
class Ref:
    """An argument that is the result of another operation."""

    position: int


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a network."""

    position: int  # its place in the program
    # its bare name, in-place or not ("add" for `aten.add_.Tensor`); operators of other libraries carry their
    # namespace ("torchvision::nms"). Besides: "input" (of the model), "tensor" (a parameter or buffer),
    # "constant", "attribute" (other things that the graph holds) and "output"
    operator: str
    name: str  # of the graph's node
    arguments: Mapping[str, Any]  # by name, defaults included; results of other operations as `Ref`
    given: int  # how many arguments the call gave itself
    inputs: tuple[int, ...]  # positions of all operations whose results it reads, each once
    tensors: Mapping[str, str]  # argument -> the name of the parameter or buffer that it is
    shapes: tuple[Shape | None, ...]  # of its results; None for what is no tensor of known shape
    several: bool = False  # whether it returns a list or tuple
    # the modules that were being run, outermost first: (path, which call of it)
    calls: tuple[tuple[str, str], ...] = ()
    in_place: bool = False  # whether it writes into its first argument, which later operations then read here
    pointwise: bool = False  # whether torch says that it works element by element

    @property
    def tensor(self) -> str | None:
        """The parameter or buffer that it is, if it is one."""
        return self.tensors[""] if self.operator == "tensor" else None

    @property
    def first(self) -> Any:
        """Its first argument, None if it has none."""
        return next(iter(self.arguments.values()), None)

    @property
    def shape(self) -> Shape | None:
        """The shape of its result, None if that is not one tensor of known shape."""
        return None if self.several else self.shapes[0]

    @property
    def output(self) -> Shape:
        """The shape of its (first) result, () if unknown."""
        return next((shape for shape in self.shapes if shape is not None), ())

    @property
    def modules(self) -> tuple[str, ...]:
        """The paths of all modules that were being run, outermost first."""
        return tuple(path for path, _ in self.calls)

    @property
    def module(self) -> str:
        """The path of the module whose code ran it ("" for the model itself)."""
        return self.calls[-1][0] if self.calls else ""

    def __str__(self) -> str:
        """The operator and where it is, in words: "softmax in layer1.attention"."""
        bare = self.operator.rpartition("::")[2]
        return f"{bare} in {self.module}" if self.module else bare


Program: TypeAlias = tuple[Operation, ...]


@dataclass(frozen=True, eq=False)
class Captured:
    """A captured network: the graph that can be run, and its description."""

    graph: Graph
    program: Program

    @cached_property
    def positions(self) -> dict[Node, Mapping[Node, int]]:
        """Node -> where it finds what it reads (its own position included): writing in place moves it."""
        found: dict[Node, Mapping[Node, int]] = {}
        for position, (node, at) in enumerate(value_positions(self.graph)):
            found[node] = {**{other: at[other] for other in node.all_input_nodes}, node: position}
        return found


def read_program(graph: Graph) -> Program:
    """The program of a captured network."""
    made: list[Operation] = []
    for node, at in value_positions(graph):
        made.append(_operation(node, graph, at, made))
    read = {position for operation in made for position in references(operation.arguments)}
    left = (one.operator in TURNS and one.position not in read for one in made)  # by a product, see `_turned`
    return tuple(replace(one, tensors={}) if over else one for one, over in zip(made, left, strict=True))


def value_positions(graph: Graph) -> Iterator[tuple[Node, Mapping[Node, int]]]:
    """Every node, and where the results of those before it stand by then: writing in place moves a result,
    and who reads a conversion to the type that a tensor has anyway reads the tensor.
    """
    at: dict[Node, int] = {}
    for position, node in enumerate(graph.nodes):
        yield node, at
        at[node] = position
        if _is_in_place(node) and node.args and isinstance(node.args[0], Node):
            at[node.args[0]] = position
        elif _converts_nothing(node):
            at[node] = at[node.all_input_nodes[0]]


def _converts_nothing(node: Node) -> bool:
    """Whether it is a conversion that returns its very argument, and nothing is written into that."""
    source = node.args[0] if node.args else None
    if getattr(node.target, "_opname", "") != "to" or not isinstance(source, Node):
        return False
    if any(_is_in_place(user) for user in node.users) or node.kwargs.get("copy"):
        return False
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return False
    return (before.dtype, before.device) == (after.dtype, after.device)


def _operation(node: Node, graph: Graph, at: Mapping[Node, int], before: list[Operation]) -> Operation:
    arguments, given = _arguments(node, at)
    inputs = tuple(dict.fromkeys(at[other] for other in node.all_input_nodes))
    operator = _operator(node, graph)
    if operator in PRODUCTS and arguments.get("alpha", 1) == arguments.get("beta", 1) == 1:
        signal, factor = (arguments[name] for name in PRODUCTS[operator])
        if (weight := _turned(factor, before)) is not None:
            operator = "linear"
            arguments = {"input": signal, "weight": weight, "bias": arguments.get("bias")}
    value = node.meta.get("val")
    several = value if isinstance(value, (list, tuple)) else None
    own = graph.tensors.get(node.name) if node.op == "placeholder" else None
    calls = (node.meta.get("nn_module_stack") or {}).items()
    return Operation(
        position=len(before),
        operator=operator,
        name=node.name,
        arguments=arguments,
        given=given,
        inputs=inputs,
        tensors={"": own} if own is not None else _tensors(arguments, before),
        shapes=tuple(map(_shape, several if several is not None else (value,))),
        several=several is not None,
        calls=tuple((str(path), str(call)) for call, (path, _) in calls),
        in_place=_is_in_place(node),
        pointwise=isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags,
    )


def _turned(argument: Any, before: list[Operation]) -> Ref | None:
    """The parameter that a factor is, transposed: `x @ weight.T`, as in Falcon, is a linear layer."""
    one = before[argument.position] if isinstance(argument, Ref) else None
    if one is None or one.operator not in TURNS or len(one.output) != 2 or not isinstance(one.first, Ref):
        return None
    places = [value for value in one.arguments.values() if isinstance(value, (int, list, tuple))]
    sides = [int(d) % 2 for value in places for d in (value if isinstance(value, (list, tuple)) else [value])]
    swaps = sides in ([], [1, 0]) or (one.operator != "permute" and sides == [0, 1])
    return one.first if swaps and before[one.first.position].tensor is not None else None


def _operator(node: Node, graph: Graph) -> str:
    if node.op == "placeholder":
        return (
            "tensor" if node.name in graph.tensors else "input" if node.name in graph.inputs else "constant"
        )
    if node.op != "call_function":
        return "attribute" if node.op == "get_attr" else node.op
    packet = getattr(node.target, "overloadpacket", None)
    name = str(packet.__name__ if packet is not None else getattr(node.target, "__name__", node.target))
    name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    space = getattr(node.target, "namespace", "aten")
    return name if space == "aten" else f"{space}::{name}"


def _arguments(node: Node, at: Mapping[Node, int]) -> tuple[dict[str, Any], int]:
    refer: Callable[[Node], Any] = lambda other: Ref(at[other])  # noqa: E731
    args, kwargs = map_arg(node.args, refer), map_arg(node.kwargs, refer)
    given = len(args) + len(kwargs)
    if not isinstance(node.target, torch._ops.OpOverload):
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}, given
    bound: dict[str, Any] = {}
    for place, argument in enumerate(node.target._schema.arguments):
        if place < len(args):
            bound[argument.name] = args[place]
        elif argument.name in kwargs:
            bound[argument.name] = kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value if argument.has_default_value() else None
    if bound.keys() >= LINEAR.keys():  # a linear layer by another name, as in GPT-2
        bound = {LINEAR.get(name, name): value for name, value in bound.items()}
    return bound, given


def _tensors(arguments: Mapping[str, Any], before: list[Operation]) -> dict[str, str]:
    found = {}
    for key, argument in arguments.items():
        for place, position in enumerate(references(argument)):
            name = before[position].tensor
            if name is not None:
                found[key if isinstance(argument, Ref) else f"{key}.{place}"] = name
    return found


def _is_in_place(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.arguments:
        return False
    alias = node.target._schema.arguments[0].alias_info
    return node.target._schema.is_mutable and alias is not None and bool(alias.is_write)


def _shape(value: Any) -> Shape | None:
    if not isinstance(value, Tensor) or not all(isinstance(size, int) for size in value.shape):
        return None
    return tuple(value.shape)


def references(argument: Any) -> Iterator[int]:
    """Positions of all operations among (nested) arguments."""
    if isinstance(argument, Ref):
        yield argument.position
    elif isinstance(argument, Mapping):
        yield from references(list(argument.values()))
    elif isinstance(argument, (list, tuple)):
        for inner in argument:
            yield from references(inner)


def readers_of(program: Program) -> dict[int, list[Operation]]:
    """Position -> the operations that read its result, in order; none for a result that is not read."""
    found: dict[int, list[Operation]] = {}
    for operation in program:
        for other in operation.inputs:
            found.setdefault(other, []).append(operation)
    return found


def numbers(operation: Operation) -> tuple[float, ...]:
    """The plain numbers among an operation's arguments, such as the slope of a leaky ReLU."""
    found = (v for v in operation.arguments.values() if isinstance(v, (int, float)))
    return tuple(float(value) for value in found if not isinstance(value, bool))


def module_of(tensor: str) -> str:
    """The module that holds a parameter; the parameter's own name if it is no plain weight or bias."""
    owner, _, attribute = tensor.rpartition(".")
    return owner if owner and attribute in ("weight", "bias", "running_mean", "running_var") else tensor
