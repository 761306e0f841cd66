"""The network as a short program over whole signals: what a surrogate follows, without modules or graphs.

Where `flow.py` follows single channels to see what can be cut, this keeps only the order of operations: which
weight reads which signal, which BN stands behind it, what is added to what. What has no rule here is
"unknown", and whoever follows the program does without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor
from torch.fx import Node

from hope.anatomy.flow import arguments, is_in_place, module_of, operator
from hope.graph.capture import Graph, shape_of

ACTIVATIONS = (
    "relu", "leaky_relu", "prelu", "relu6", "hardtanh", "silu", "gelu", "elu", "celu", "selu", "mish",
    "hardswish", "sigmoid", "hardsigmoid", "tanh", "softplus",
)  # fmt: skip
PASSING = (
    "dropout", "alpha_dropout", "feature_dropout", "contiguous", "clone", "alias", "detach", "to", "_to_copy",
    "type_as",
)  # fmt: skip


@dataclass(frozen=True)
class Op:
    """One operation on whole signals.

    Attributes:
        kind: "input", "conv", "linear", "bn", "activation", "add", "cat", "max", "average", "pass", "pad",
            "slice", "flatten", "gate" or "unknown".
        inputs: positions of the operations whose results it reads.
        tensors: names: (weight, bias) of a conv or linear ("" for none), (module,) of a BN, (slopes,) of a
            PReLU.
        values: numbers: (groups,) of a conv, (in_dim,) of a linear, (eps,) of a BN, an activation's own,
            (before, after) of a pad, (start, step, count) of a slice, (places,) of a flatten.
        function: an activation's name.
        name: of the graph's node.
    """

    kind: str
    inputs: tuple[int, ...] = ()
    tensors: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    function: str = ""
    name: str = ""


class _Reader:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self.at: dict[Node, int] = {}
        self.channel: dict[Node, int | None] = {}  # the dimension that channels stand in

    def read(self) -> tuple[Op, ...]:
        for node in self.graph.nodes:
            if node.op == "placeholder" and node.name in self.graph.inputs:
                shape = shape_of(node) or ()
                self._put(node, Op("input", values=tuple(map(float, shape)), name=node.name), 1)
            elif node.op == "call_function":
                self._call(node)
                base = node.args[0] if node.args else None
                if is_in_place(node) and isinstance(base, Node) and node in self.at:
                    self.at[base], self.channel[base] = self.at[node], self.channel[node]
        return tuple(self.ops)

    def _put(self, node: Node, op: Op, channel: int | None) -> None:
        self.at[node], self.channel[node] = len(self.ops), channel
        self.ops.append(op)

    def _tensor(self, arg: Any) -> str:
        return self.graph.tensors.get(arg.name, "") if isinstance(arg, Node) else ""

    def _call(self, node: Node) -> None:
        args, name = arguments(node), operator(node)
        reads = [arg for arg in node.all_input_nodes if arg in self.at]
        if not reads or not isinstance(node.meta.get("val"), Tensor):
            if name == "getitem" and reads and node.args[1] == 0:  # a pool that also returns its indices
                self.at[node], self.channel[node] = self.at[reads[0]], self.channel[reads[0]]
                return
            if not reads or not name.startswith(("max_pool", "adaptive_max")):
                if reads:
                    self._put(node, Op("unknown", tuple(self.at[r] for r in reads), name=node.name), None)
                return
        x = reads[0]
        try:
            made = self._rule(node, name, args, x, reads)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            made = None  # called in a way that no rule foresaw: unknown, like what has no rule
        op, channel = made if made is not None else (Op("unknown"), None)
        known = all(self.channel[r] is not None for r in reads)
        if not known and op.kind not in ("bn", "conv", "linear"):  # their results do not hang on the order
            op, channel = Op("unknown"), None
        inputs = op.inputs or tuple(self.at[r] for r in reads)
        self._put(node, Op(op.kind, inputs, op.tensors, op.values, op.function, node.name), channel)

    def _rule(
        self, node: Node, name: str, args: dict[str, Any], x: Node, reads: list[Node]
    ) -> tuple[Op, int | None] | None:
        shape, before, channel = shape_of(node) or (), shape_of(x) or (), self.channel[x]
        if name in ("conv1d", "conv2d", "conv3d", "convolution") and not args.get("transposed"):
            weight = self._tensor(args["weight"])
            ok = weight and len(reads) == 1
            dim = len(shape) - len(shape_of(args["weight"]) or ()) + 1
            found = Op("conv", (), (weight, self._tensor(args["bias"])), (float(args["groups"]),))
            return (found, dim) if ok else None
        if name == "linear" and len(reads) == 1 and self._tensor(args["weight"]):
            return Op("linear", (), (self._tensor(args["weight"]), self._tensor(args["bias"])), (1.0,)), (
                len(shape) - 1
            )
        if name in ("batch_norm", "_native_batch_norm_legit_no_training"):
            running = self._tensor(args.get("running_var"))
            return (Op("bn", (), (module_of(running),), (float(args["eps"]),)), 1) if running else None
        if name in ACTIVATIONS:
            numbers = tuple(
                float(v) for v in args.values() if isinstance(v, (int, float)) and not isinstance(v, bool)
            )
            label = "relu6" if name == "hardtanh" and numbers == (0.0, 6.0) else name
            return Op("activation", (), (self._tensor(args.get("weight")),), numbers, label), channel
        if name == "add" and args.get("alpha") in (None, 1) and len(reads) == 2:
            same = self.channel[reads[0]] == self.channel[reads[1]] and shape_of(reads[0]) == shape_of(
                reads[1]
            )
            return (Op("add"), channel) if same else None
        if name == "add" and len(node.all_input_nodes) == 1 and isinstance(node.args[1], Node):
            return (Op("add", (self.at[x], self.at[x])), channel)
        if name in ("cat", "concat", "concatenate"):
            dim = (args["dim"] or 0) % len(shape)
            parts: Any = node.args[0]
            same = all(self.channel[r] == dim for r in reads) and all(part in self.at for part in parts)
            order = tuple(self.at[part] for part in parts) if same else ()
            return (Op("cat", order), dim) if same else None
        if name.startswith(("max_pool", "adaptive_max")):
            return Op("max"), channel
        if name.startswith(("avg_pool", "adaptive_avg")):
            return Op("average"), channel
        if name == "mean" and args.get("dim"):
            over = [d % len(before) for d in args["dim"]]
            if channel in over or channel is None:
                return None
            moved = channel if args.get("keepdim") else channel - sum(d < channel for d in over)
            return Op("average"), moved
        if name in PASSING:
            return Op("pass"), channel
        if name in ("slice", "narrow", "pad", "constant_pad_nd"):
            return self._cut(name, args, shape, before, channel)
        if name in ("view", "reshape", "flatten", "_unsafe_view", "squeeze", "unsqueeze"):
            return self._view(shape, before, channel)
        if name == "mul" and len(reads) == 2:
            wide = max(reads, key=lambda r: prod(shape_of(r) or ()))
            narrow = next(r for r in reads if r is not wide)
            same = self.channel[wide] == self.channel[narrow]
            return (Op("gate", (self.at[wide], self.at[narrow])), self.channel[wide]) if same else None
        return None

    def _cut(
        self,
        name: str,
        args: dict[str, Any],
        shape: tuple[int, ...],
        before: tuple[int, ...],
        channel: int | None,
    ) -> tuple[Op, int | None] | None:
        if channel is None or len(shape) != len(before):
            return None
        if shape[channel] == before[channel]:
            return Op("pass"), channel
        if name in ("pad", "constant_pad_nd"):
            pads, last = args["pad"], 2 * (len(shape) - 1 - channel)
            zeros = not args.get("value") and args.get("mode", "constant") == "constant"
            if not zeros or len(pads) < last + 2 or min(pads[last], pads[last + 1]) < 0:
                return None
            return Op("pad", values=(float(pads[last]), float(pads[last + 1]))), channel
        start, step = args.get("start") or 0, args.get("step") or 1
        start += before[channel] if start < 0 else 0
        return Op("slice", values=(float(start), float(step), float(shape[channel]))), channel

    def _view(
        self, shape: tuple[int, ...], before: tuple[int, ...], channel: int | None
    ) -> tuple[Op, int | None] | None:
        if channel is None:
            return None
        width, behind = before[channel], prod(before[channel + 1 :])
        ahead = prod(before[:channel])
        for dim, size in enumerate(shape):
            if prod(shape[:dim]) == ahead and size == width and prod(shape[dim + 1 :]) == behind:
                return Op("pass"), dim
        if shape and prod(shape[:-1]) == ahead and shape[-1] == width * behind:
            return Op("flatten", values=(float(behind),)), len(shape) - 1
        return None


def read_program(graph: Graph) -> tuple[Op, ...]:
    """The program of a captured network."""
    return _Reader(graph).read()
