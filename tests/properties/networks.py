"""Random small networks: a plain description that hypothesis draws, shrinks and prints, and its module.

`networks()` draws a `Net`, `build(net)` makes the `nn.Module`. The same description is built with its blocks
as modules of their own or flat in one forward (`Net.flat`), under other names or registered in another order
(`build`'s arguments).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tests.support import randomise

Space: TypeAlias = tuple[int, ...]
Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]

ACTIVATIONS: dict[str, Callable[[int], nn.Module] | Callable[[Tensor], Tensor]] = {
    "relu": lambda c: nn.ReLU(),
    "relu_": lambda c: nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "leaky": lambda c: nn.LeakyReLU(0.2),
    "prelu": lambda c: nn.PReLU(c),
    "prelu shared": lambda c: nn.PReLU(),
    "gelu": lambda c: nn.GELU(),
    "F.gelu": F.gelu,
    "silu": lambda c: nn.SiLU(),
    "hardswish": lambda c: nn.Hardswish(),
    "relu6": lambda c: nn.ReLU6(),
    "sigmoid": lambda c: nn.Sigmoid(),
    "torch.tanh": torch.tanh,
}


def _norm(kind: str, c: int, dims: int) -> nn.Module:
    batch = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
    instance = {0: nn.Identity, 1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}[dims]
    if kind == "instance":
        return instance(c, affine=True)
    return nn.GroupNorm(1, c) if kind == "group" else batch(c, affine=kind != "bn plain")


def _layer(dims: int, c: int, out: int, kernel: int = 1, **options: Any) -> nn.Module:
    if not dims:
        return nn.Linear(c, out, bias=options.get("bias", True))
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    return kind(c, out, kernel, padding=kernel // 2, **options)


def _spread(c: int, space: Space) -> tuple[int, ...]:
    return (1, c, *(1 for _ in space))


# ---- how a description becomes a module --------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """How to write a network down: flat or in modules, under which names, registered in which order."""

    flat: bool
    renamed: bool
    reversed: bool

    def name(self, name: str) -> str:
        return f"other_{name[::-1]}" if self.renamed else name


def original_name(path: str) -> str:
    """The name in the network as described, of a path in its renamed copy."""
    return re.sub(r"\bother_(\w+)", lambda found: found[1][::-1], path)


class Finder:
    """What a description's `run` sees of the module it is run in: its own parts, by name."""

    def __init__(self, home: nn.Module, prefix: str, style: Style) -> None:
        self.home, self.prefix, self.style = home, prefix, style

    def __call__(self, name: str) -> Any:
        return getattr(self.home, self.style.name(self.prefix + name))

    def part(self, name: str, spec: Spec) -> Callable[[Tensor], Tensor]:
        """A nested description: a module of its own, or more code of this one."""
        if not self.style.flat:
            return self(name)
        return lambda x: spec.run(Finder(self.home, f"{self.prefix}{name}_", self.style), x)

    def act(self, kind: str, x: Tensor, name: str = "act") -> Tensor:
        if kind == "none":
            return x
        made = ACTIVATIONS[kind]
        return self(name)(x) if kind not in ("F.relu", "F.gelu", "torch.tanh") else made(x)


def _act(kind: str, c: int, name: str = "act") -> dict[str, Any]:
    return {} if kind in ("none", "F.relu", "F.gelu", "torch.tanh") else {name: ACTIVATIONS[kind](c)}


def _install(home: nn.Module, prefix: str, spec: Spec, c: int, space: Space, style: Style) -> None:
    parts = list(spec.parts(c, space).items())
    for name, part in reversed(parts) if style.reversed else parts:
        full = style.name(prefix + name)
        if isinstance(part, nn.Module):
            home.add_module(full, part)
        elif isinstance(part, nn.Parameter):
            home.register_parameter(full, part)
        elif isinstance(part, Tensor):
            home.register_buffer(full, part)
        elif style.flat:
            _install(home, f"{prefix}{name}_", *part, style)
        else:
            home.add_module(full, Stage(*part, style))


class Stage(nn.Module):
    """One description as a module of its own."""

    def __init__(self, spec: Spec, c: int, space: Space, style: Style) -> None:
        super().__init__()
        self.spec, self.style = spec, style
        _install(self, "", spec, c, space, style)

    def forward(self, x: Tensor) -> Any:
        return self.spec.run(Finder(self, "", self.style), x)


class Spec:
    """A description: its parts by name (modules, tensors, nested descriptions), its shape, what it does."""

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        return {}

    def shape(self, c: int, space: Space) -> tuple[int, Space]:
        return c, space

    def run(self, f: Finder, x: Tensor) -> Any:
        raise NotImplementedError


def _chain(specs: tuple[Spec, ...], c: int, space: Space) -> tuple[dict[str, Any], int, Space]:
    parts = {}
    for i, spec in enumerate(specs):
        parts[f"p{i}"] = (spec, c, space)
        c, space = spec.shape(c, space)
    return parts, c, space


def _through(f: Finder, specs: tuple[Spec, ...], x: Tensor) -> Tensor:
    for i, spec in enumerate(specs):
        x = f.part(f"p{i}", spec)(x)
    return x


# ---- the vocabulary ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conv(Spec):
    """A convolution (or linear layer) with norm and activation behind it, or in front (`pre`)."""

    out: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    bias: bool = True
    norm: str = "none"
    act: str = "none"
    pre: bool = False

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        width = c if self.pre else self.out
        options: dict[str, Any] = {"bias": self.bias}
        if space:
            options |= {"stride": self.stride, "groups": self.groups}
        parts = {"conv": _layer(len(space), c, self.out, self.kernel, **options)}
        if self.norm != "none":
            parts["norm"] = _norm(self.norm, width, len(space))
        return parts | _act(self.act, width)

    def shape(self, c: int, space: Space) -> tuple[int, Space]:
        return self.out, tuple(-(-s // self.stride) for s in space)

    def run(self, f: Finder, x: Tensor) -> Tensor:
        if not self.pre:
            x = f("conv")(x)
        if self.norm != "none":
            x = f("norm")(x)
        x = f.act(self.act, x)
        return f("conv")(x) if self.pre else x


@dataclass(frozen=True)
class Depthwise(Spec):
    multiplier: int = 1
    bias: bool = True
    norm: str = "none"
    act: str = "none"

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        out = c * self.multiplier
        parts = {"conv": _layer(len(space), c, out, 3, groups=c, bias=self.bias)}
        if self.norm != "none":
            parts["norm"] = _norm(self.norm, out, len(space))
        return parts | _act(self.act, out)

    def shape(self, c: int, space: Space) -> tuple[int, Space]:
        return c * self.multiplier, space

    def run(self, f: Finder, x: Tensor) -> Tensor:
        x = f("conv")(x)
        return f.act(self.act, f("norm")(x) if self.norm != "none" else x)


@dataclass(frozen=True)
class Transposed(Spec):
    out: int
    groups: int = 1
    bias: bool = True
    act: str = "none"

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        kind = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[len(space)]
        return {"up": kind(c, self.out, 2, 2, groups=self.groups, bias=self.bias)} | _act(self.act, self.out)

    def shape(self, c: int, space: Space) -> tuple[int, Space]:
        return self.out, tuple(2 * s for s in space)

    def run(self, f: Finder, x: Tensor) -> Tensor:
        return f.act(self.act, f("up")(x))


@dataclass(frozen=True)
class Between(Spec):
    """What has no weights and works place by place or map by map: pooling, padding, dropout."""

    kind: str

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        n = len(space)
        pools = {
            1: (nn.MaxPool1d, nn.AvgPool1d),
            2: (nn.MaxPool2d, nn.AvgPool2d),
            3: (nn.MaxPool3d, nn.AvgPool3d),
        }
        if self.kind in ("max pool", "average pool"):
            return {"pool": pools[n][self.kind == "average pool"](2)}
        if self.kind in ("dropout", "channel dropout"):
            kind = (
                nn.Dropout
                if self.kind == "dropout"
                else {1: nn.Dropout1d, 2: nn.Dropout2d, 3: nn.Dropout3d}[n]
            )
            return {"drop": kind(0.3)}
        pads = {1: nn.ReflectionPad1d, 2: nn.ReflectionPad2d, 3: nn.ReflectionPad3d}
        return {"pad": pads[n](1)} if self.kind == "reflection pad" else {}

    def shape(self, c: int, space: Space) -> tuple[int, Space]:
        if "pool" in self.kind:
            return c, tuple(s // 2 for s in space)
        return (c, tuple(s + 2 for s in space)) if "pad" in self.kind else (c, space)

    def run(self, f: Finder, x: Tensor) -> Tensor:
        n = x.ndim - 2
        if self.kind == "F.max_pool":
            return {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[n](x, 2)
        if self.kind == "F.pad":
            return F.pad(x, (1, 1) * n)
        name = {"dropout": "drop", "channel dropout": "drop", "reflection pad": "pad"}.get(self.kind, "pool")
        return f(name)(x)


@dataclass(frozen=True)
class Gate(Spec):
    """Squeeze and excitation; with `reduced` 0 a single layer makes the gate."""

    reduced: int
    linear: bool = False
    act: str = "relu"
    gate: str = "sigmoid"

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        dims = 0 if self.linear else len(space)
        if not self.reduced:
            return {"expand": _layer(dims, c, c)}
        return {"squeeze": _layer(dims, c, self.reduced), "expand": _layer(dims, self.reduced, c)} | _act(
            self.act, self.reduced
        )

    def run(self, f: Finder, x: Tensor) -> Tensor:
        places = tuple(range(2, x.ndim))
        g = x.mean(places, keepdim=not self.linear) if places else x
        if self.reduced:
            g = f.act(self.act, f("squeeze")(g))
        g = f("expand")(g)
        g = F.hardsigmoid(g) if self.gate == "hardsigmoid" else g.sigmoid()
        if self.linear and places:
            g = g.view(*g.shape, *(1 for _ in places))
        return x * g


@dataclass(frozen=True)
class Affine(Spec):
    """Learned or fixed numbers per channel, per place or both, multiplied or added."""

    kind: str
    adds: bool = False

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        shapes = {
            "channel": _spread(c, space),
            "buffer": _spread(c, space),
            "bare": (c, *(1 for _ in space)),
            "place": (1, 1, *space),
            "both": (1, c, *space),
        }
        if self.kind not in shapes:
            return {}
        numbers = torch.rand(shapes[self.kind]) + 0.5
        return {"numbers": numbers if self.kind == "buffer" else nn.Parameter(numbers)}

    def run(self, f: Finder, x: Tensor) -> Tensor:
        if self.kind == "constant":
            return x + 1.5 if self.adds else 2 * x - 0.5
        return x + f("numbers") if self.adds else x * f("numbers")


@dataclass(frozen=True)
class Mix(Spec):
    """Operators that join channels by position: nothing may be removed around most of them."""

    kind: str

    def shape(self, c: int, space: Space) -> tuple[int, Space]:
        if self.kind in ("glu", "context"):
            return (c // 2 if self.kind == "glu" else 2 * c), space
        return (c - 1, space) if self.kind == "slice" else (c, space)

    def run(self, f: Finder, x: Tensor) -> Tensor:
        c = x.shape[1]
        if self.kind == "glu":
            a, b = x.chunk(2, dim=1)
            return a * b.sigmoid()
        if self.kind == "swap halves":
            a, b = x.split((c // 2, c - c // 2), dim=1)
            return torch.cat([b, a], dim=1)
        if self.kind == "shuffle":
            return x.view(x.shape[0], 2, c // 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
        if self.kind == "softmax":
            return x.softmax(1) * 3
        if self.kind == "centre":
            return x - x.mean(1, keepdim=True)
        if self.kind == "norm":
            return x / (x.norm(dim=1, keepdim=True) + 0.1)
        if self.kind == "slice":
            return x[:, 1:]
        if self.kind == "context":
            return torch.cat(
                [x, x.flatten(2).mean(2).view(x.shape[0], c, *(1 for _ in x.shape[2:])).expand_as(x)], 1
            )
        if self.kind == "pad channels":
            return F.pad(x, (0, 0) * (x.ndim - 2) + (1, 0))[:, :c]
        return x.flip(1)


@dataclass(frozen=True)
class Last(Spec):
    """Channels moved to the end, two linear layers on them, and back."""

    hidden: int
    act: str = "gelu"

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        return {"fc1": nn.Linear(c, self.hidden), "fc2": nn.Linear(self.hidden, c)}

    def run(self, f: Finder, x: Tensor) -> Tensor:
        x = x.movedim(1, -1) if x.ndim == 4 else x.transpose(1, -1)
        x = f("fc2")(F.silu(f("fc1")(x)) if self.act == "silu" else F.gelu(f("fc1")(x)))
        return x.movedim(-1, 1) if x.ndim == 4 else x.transpose(1, -1)


@dataclass(frozen=True)
class Tokens(Spec):
    """Two linear layers over the places, the same for every channel."""

    hidden: int
    act: str = "relu"

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        n = prod(space)
        return {"fc1": nn.Linear(n, self.hidden), "fc2": nn.Linear(self.hidden, n)} | _act(self.act, c)

    def run(self, f: Finder, x: Tensor) -> Tensor:
        y = f.act(self.act, f("fc1")(x.flatten(2)))
        return x + f("fc2")(y).view_as(x) if self.hidden % 2 else f("fc2")(y).view_as(x)


@dataclass(frozen=True)
class Twice(Spec):
    """Weights not read once as they are: a module called twice, a weight with two names, a computed one."""

    kind: str
    act: str = "relu"

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        parts = {"conv": _layer(len(space), c, c)} | _act(self.act, c)
        if self.kind == "tied":
            parts["again"] = _layer(len(space), c, c)
            parts["again"].weight = parts["conv"].weight
        elif self.kind == "weight norm":
            weight_norm(parts["conv"])
        return parts

    def run(self, f: Finder, x: Tensor) -> Tensor:
        x = f.act(self.act, f("conv")(x))
        return x if self.kind == "weight norm" else f("again" if self.kind == "tied" else "conv")(x)


@dataclass(frozen=True)
class Residual(Spec):
    """A branch beside a skip, joined by an add in one of the ways people write it."""

    branch: tuple[Spec, ...]
    skip: str = "identity"
    out: int = 0
    stride: int = 1
    add: str = "y + x"
    act: str = "none"
    drop: bool = False
    scale: bool = False

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        parts, out, _ = _chain(self.branch, c, space)
        if self.skip != "identity":
            options = {"stride": self.stride} if space else {}
            conv = _layer(len(space), c, out, 1, bias=self.skip == "conv", **options)
            norm = [_norm("bn", out, len(space))] if self.skip == "conv, bn" else []
            parts["skip"] = nn.Sequential(conv, *norm)
        if self.scale:
            parts["gamma"] = nn.Parameter(torch.rand(_spread(out, space)) + 0.5)
        if self.drop:
            parts["drop"] = nn.Dropout(0.2)
        return parts | _act(self.act, out)

    def shape(self, c: int, space: Space) -> tuple[int, Space]:
        _, c, space = _chain(self.branch, c, space)
        return c, space

    def run(self, f: Finder, x: Tensor) -> Tensor:
        y = _through(f, self.branch, x)
        y = f("drop")(y) if self.drop else y
        y = f("gamma") * y if self.scale else y
        x = x if self.skip == "identity" else f("skip")(x)
        if self.add == "y += x":
            y += x
        elif self.add == "torch.add":
            y = torch.add(x, y)
        else:
            y = y + x if self.add == "y + x" else x + y
        return f.act(self.act, y)


@dataclass(frozen=True)
class Dense(Spec):
    """Each layer reads everything before it."""

    layers: tuple[Conv, ...]

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        widths = [c + sum(layer.out for layer in self.layers[:i]) for i in range(len(self.layers))]
        return {f"p{i}": (layer, widths[i], space) for i, layer in enumerate(self.layers)}

    def shape(self, c: int, space: Space) -> tuple[int, Space]:
        return c + sum(layer.out for layer in self.layers), space

    def run(self, f: Finder, x: Tensor) -> Tensor:
        seen = [x]
        for i, layer in enumerate(self.layers):
            seen.append(f.part(f"p{i}", layer)(torch.cat(seen, 1)))
        return torch.cat(seen, dim=1)


@dataclass(frozen=True)
class UNet(Spec):
    """Down, something, up again, and a concatenation with what was there before."""

    inner: tuple[Spec, ...]
    up: str = "nearest"
    first: bool = True

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        return _chain(self.inner, c, tuple(s // 2 for s in space))[0]

    def shape(self, c: int, space: Space) -> tuple[int, Space]:
        return c + _chain(self.inner, c, tuple(s // 2 for s in space))[1], space

    def run(self, f: Finder, x: Tensor) -> Tensor:
        n = x.ndim - 2
        y = _through(f, self.inner, {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[n](x, 2))
        mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[n] if self.up == "linear" else "nearest"
        y = F.interpolate(y, size=x.shape[2:], mode=mode)
        return torch.cat([x, y] if self.first else [y, x], 1)


@dataclass(frozen=True)
class Fork(Spec):
    """Several layers read the same channels, and their results meet again."""

    ways: tuple[tuple[Spec, ...], ...]
    join: str = "cat"

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        return {
            f"w{w}_{name}": part
            for w, way in enumerate(self.ways)
            for name, part in _chain(way, c, space)[0].items()
        }

    def shape(self, c: int, space: Space) -> tuple[int, Space]:
        outs = [_chain(way, c, space)[1] for way in self.ways]
        return sum(outs) if self.join == "cat" else outs[0], space

    def run(self, f: Finder, x: Tensor) -> Tensor:
        results = []
        for w, way in enumerate(self.ways):
            y = x
            for i, spec in enumerate(way):
                y = f.part(f"w{w}_p{i}", spec)(y)
            results.append(y)
        if self.join == "cat":
            return torch.cat(results, 1)
        out = results[0]
        for other in results[1:]:
            out = (
                out * other
                if self.join == "mul"
                else torch.maximum(out, other)
                if self.join == "max"
                else out + other
            )
        return out


@dataclass(frozen=True)
class Head(Spec):
    """What ends a network: maps to numbers (`kind`), perhaps a hidden layer, three outputs."""

    kind: str
    hidden: int = 0
    act: str = "relu"

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        if self.kind == "conv":
            return {"out": _layer(len(space), c, 3)}
        width = c * prod(space) if self.kind in ("flatten", "view", "flatten last") else c
        if not self.hidden:
            return {"out": nn.Linear(width, 3)}
        return {"fc": nn.Linear(width, self.hidden), "out": nn.Linear(self.hidden, 3)} | _act(
            self.act, self.hidden
        )

    def run(self, f: Finder, x: Tensor) -> Tensor:
        n = x.ndim - 2
        if self.kind == "conv":
            return f("out")(x)
        if n and self.kind == "pool":
            x = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}[n](
                x, 1
            ).flatten(1)
        elif n and self.kind == "mean":
            x = x.mean(tuple(range(2, x.ndim)))
        elif self.kind == "flatten last":
            x = x.movedim(1, -1).flatten(1)
        else:
            x = x.contiguous().view(x.size(0), -1) if self.kind == "view" else torch.flatten(x, 1)
        if self.hidden:
            x = f.act(self.act, f("fc")(x))
        return f("out")(x)


@dataclass(frozen=True)
class Net(Spec):
    """A whole network: input channels and size, stages, a head, perhaps one more on the first stage."""

    channels: int
    space: Space
    stages: tuple[Spec, ...]
    head: Head
    side: bool = False
    flat: bool = False

    def parts(self, c: int, space: Space) -> dict[str, Any]:
        parts, out, after = _chain(self.stages, c, space)
        if self.side:
            first, _ = self.stages[0].shape(c, space)
            parts["side"] = nn.Linear(first, 2)
        return parts | {"head": (self.head, out, after)}

    def run(self, f: Finder, x: Tensor) -> Any:
        side = None
        for i, spec in enumerate(self.stages):
            x = f.part(f"p{i}", spec)(x)
            if self.side and i == 0:
                side = f("side")(x.flatten(2).mean(2) if x.ndim > 2 else x)
        out = f.part("head", self.head)(x)
        return {"out": out, "side": side} if self.side else out


def build(net: Net, *, renamed: bool = False, backwards: bool = False, seed: int = 0) -> nn.Module:
    """The network in float64 and evaluation mode, with random BN statistics."""
    torch.manual_seed(seed)
    model = Stage(net, net.channels, net.space, Style(net.flat, renamed, backwards))
    return randomise(model, seed).double().eval()


def example(net: Net, batch: int = 2) -> Tensor:
    """An input, the same every time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, net.channels, *net.space, generator=generator, dtype=torch.float64)


# ---- drawing -----------------------------------------------------------------------------------------------

WIDTHS = (4, 2, 6, 3, 8, 5, 6, 4, 9, 7, 1)


def _pick(draw: Draw, *options: Any) -> Any:
    return draw(st.sampled_from(options))


def _act_of(draw: Draw) -> str:
    return _pick(draw, "none", "relu", *(name for name in ACTIVATIONS if name != "relu"))


def _norm_of(draw: Draw, space: Space) -> str:
    rare = ("group", "instance") if space and prod(space) > 1 else ("group",)
    return _pick(draw, *("none", "bn", "bn") * 4, "bn plain", *rare)


def _conv(draw: Draw, c: int, space: Space, out: int | None = None, **fixed: Any) -> Conv:
    width = out if out is not None else _pick(draw, *WIDTHS)
    common = [g for g in (2, 3, 4) if space and c % g == 0 and width % g == 0]
    groups = fixed.pop("groups", None) or _pick(draw, 1, 1, *common)
    pre = draw(st.booleans())
    norm = _norm_of(draw, space if pre else tuple(-(-s // fixed.get("stride", 1)) for s in space))
    act = _act_of(draw)
    if pre and norm == "none" and act == "relu_":
        act = "relu"  # in place on somebody else's result: not even the original could be trained
    options = {"kernel": _pick(draw, 1, 3) if space else 1, "groups": groups, "bias": draw(st.booleans())}
    return Conv(width, **options, norm=norm, act=act, pre=pre, **fixed)


def _branch(draw: Draw, c: int, space: Space, out: int, stride: int, depth: int) -> tuple[Spec, ...]:
    specs: list[Spec] = []
    width = c
    first = _conv(draw, width, space, stride=stride, **({"out": out} if draw(st.booleans()) else {}))
    specs.append(first)
    width, space = first.shape(width, space)
    for _ in range(draw(st.integers(0, 2))):
        specs.append(_inner(draw, width, space, depth))
        width, space = specs[-1].shape(width, space)
    if width != out or len(specs) == 1 or draw(st.booleans()):
        specs.append(_conv(draw, width, space, out))
    return tuple(specs)


def _inner(draw: Draw, c: int, space: Space, depth: int) -> Spec:
    """A stage that keeps the size of the maps."""
    kinds = ["conv", "depthwise", "gate", "fork", "dense"] * 3 + [
        "affine",
        "last",
        "tokens",
        "dropout",
        "mix",
        "twice",
    ]
    if depth:
        kinds += ["residual"] * 2
    if not space:
        kinds = [k for k in kinds if k not in ("depthwise", "last", "tokens")]
    return _one(draw, _pick(draw, *kinds), c, space, depth)


def _one(draw: Draw, kind: str, c: int, space: Space, depth: int) -> Spec:
    match kind:
        case "conv":
            return _conv(draw, c, space)
        case "strided":
            return _conv(draw, c, space, stride=2)
        case "depthwise":
            return Depthwise(_pick(draw, 1, 1, 2), draw(st.booleans()), _norm_of(draw, space), _act_of(draw))
        case "gate":
            return Gate(
                _pick(draw, 2, 1, 3, 0),
                draw(st.booleans()),
                _act_of(draw),
                _pick(draw, "sigmoid", "hardsigmoid"),
            )
        case "affine":
            return Affine(
                _pick(draw, "channel", "constant", "buffer", "bare", "place", "both"), draw(st.booleans())
            )
        case "mix":
            even = ("glu", "shuffle") if c % 2 == 0 else ()
            several = ("swap halves", "slice", *even) if c > 1 else ()
            rest = ("context", "context") if space else ()
            return Mix(_pick(draw, "softmax", "centre", "norm", "flip", "pad channels", *several, *rest))
        case "last":
            return Last(_pick(draw, *WIDTHS), _pick(draw, "gelu", "silu"))
        case "tokens":
            return Tokens(_pick(draw, *WIDTHS), _act_of(draw))
        case "twice":
            return Twice(_pick(draw, "called twice", "tied", "weight norm"), _act_of(draw))
        case "transposed":
            out = _pick(draw, *WIDTHS)
            common = [g for g in (2, 3, c) if c % g == 0 and out % g == 0]
            return Transposed(out, _pick(draw, 1, *common), draw(st.booleans()), _act_of(draw))
        case "pool":
            return Between(_pick(draw, "max pool", "average pool", "F.max_pool"))
        case "pad":
            return Between(_pick(draw, "F.pad", "reflection pad"))
        case "dropout":
            return Between(_pick(draw, "dropout", "channel dropout") if space else "dropout")
        case "dense":
            layers = []
            width = c
            for _ in range(draw(st.integers(1, 2))):
                layers.append(_conv(draw, width, space, _pick(draw, 2, 1, 3)))
                width += layers[-1].out
            return Dense(tuple(layers))
        case "unet":
            small = tuple(s // 2 for s in space)
            inner: list[Spec] = []
            width = c
            for _ in range(draw(st.integers(1, 2))):
                inner.append(_inner(draw, width, small, depth))
                width, small = inner[-1].shape(width, small)
            return UNet(tuple(inner), _pick(draw, "nearest", "linear"), draw(st.booleans()))
        case "fork":
            join = _pick(draw, "cat", "add", "mul", "max")
            out = None if join == "cat" else _pick(draw, *WIDTHS)
            ways = [[_conv(draw, c, space, out)] for _ in range(2)]
            if draw(st.booleans()):
                ways[0].insert(0, _conv(draw, c, space, c))
            return Fork(tuple(map(tuple, ways)), join)
    return _residual(draw, c, space, depth)


def _residual(draw: Draw, c: int, space: Space, depth: int, stride: int = 1) -> Residual:
    skip = "conv" if stride > 1 else _pick(draw, "identity", "identity", "conv")
    if skip == "conv" and draw(st.booleans()):
        skip = "conv, bn"
    out = c if skip == "identity" else _pick(draw, *WIDTHS)
    branch = _branch(draw, c, space, out, stride, max(depth - 1, 0))
    last = branch[-1]
    adds = ["y + x", "x + y", "torch.add"]
    drop, scale = _pick(draw, False, False, True), _pick(draw, False, False, True)
    if isinstance(last, Conv) and (last.pre or last.act == "none") and not drop:
        adds.append("y += x")  # nothing before it keeps its result for the backward pass
    return Residual(branch, skip, out, stride, _pick(draw, *adds), _act_of(draw), drop, scale)


@st.composite
def networks(draw: Draw, residual: bool = False) -> Net:
    """Any network of the vocabulary; with `residual`, one that has at least one residual block."""
    dims = _pick(draw, 2, 2, 1, 0, 3)
    space: Space = tuple(draw(st.integers(3, 4 if dims == 3 else 7)) for _ in range(dims))
    channels = draw(st.integers(1, 3))
    firsts = ("conv", "conv", "conv", "dense", "fork", "residual", *(("unet",) if dims else ()))
    first = _pick(draw, *firsts)
    stages = [
        _conv(draw, channels, space, groups=1) if first == "conv" else _one(draw, first, channels, space, 1)
    ]
    c, now = stages[0].shape(channels, space)
    count = draw(st.integers(1, 4))
    for i in range(count):
        kinds = ["conv", "residual", "gate", "dense", "fork"] * 3 + ["affine", "dropout", "mix", "twice"]
        if dims:
            kinds += ["depthwise", "strided"] * 3 + ["last", "tokens"]
            if all(s > 1 for s in now):
                kinds += ["unet", "strided residual"] * 3 + ["pool"]
                kinds += ["pad"] if max(now) < 8 and dims < 3 else []
            if max(now) < 5:
                kinds += ["transposed"] * 2
        kind = "residual" if residual and i == 0 else _pick(draw, *kinds)
        if kind == "strided residual":
            stages.append(_residual(draw, c, now, 1, stride=2))
        else:
            stages.append(_one(draw, kind, c, now, 1))
        c, now = stages[-1].shape(c, now)
    heads = ("pool", "flatten", "view", "mean", "flatten last", "conv") if dims else ("flatten",)
    head = Head(_pick(draw, *heads), _pick(draw, 0, 4, 1), _act_of(draw))
    return Net(channels, space, tuple(stages), head, draw(st.booleans()), draw(st.booleans()))


@st.composite
def skipless(draw: Draw) -> Net:
    """A network of concatenations (nested ones too) and of segments that keep their shape."""
    dims = _pick(draw, 2, 2, 1, 0)
    space: Space = tuple(draw(st.integers(3, 6)) for _ in range(dims))
    stages: list[Spec] = [_plain(draw, _pick(draw, 4, 3, 6))]
    c, _ = stages[0].shape(2, space)
    for _ in range(draw(st.integers(1, 3))):
        stages += _joined(draw, c, space) if draw(st.booleans()) else [_plain(draw, c), _plain(draw, c)]
        c = stages[-1].shape(_chain(tuple(stages[:-1]), 2, space)[1], space)[0]
    heads = ("pool", "flatten", "conv") if dims else ("flatten",)
    return Net(2, space, tuple(stages), Head(_pick(draw, *heads)), False, draw(st.booleans()))


def _plain(draw: Draw, out: int) -> Conv:
    """A layer whose neurons can go, with a BN or without."""
    act, norm = _pick(draw, "relu", "F.relu", "leaky", "none"), _pick(draw, "bn", "bn", "none")
    return Conv(out, _pick(draw, 1, 3), bias=draw(st.booleans()), norm=norm, act=act)


def _joined(draw: Draw, c: int, space: Space) -> list[Spec]:
    """Layers side by side, some of them in a concatenation of their own, and a layer behind."""
    if draw(st.booleans()):
        layers = tuple(_plain(draw, _pick(draw, 2, 3)) for _ in range(2))
        return [Dense(layers), _plain(draw, 4)]
    ways: list[tuple[Spec, ...]] = [(_plain(draw, _pick(draw, 2, 3, 4)),) for _ in range(2)]
    if draw(st.booleans()):
        inner = Fork(tuple((_plain(draw, 2),) for _ in range(2)), "cat")
        ways.append((_plain(draw, 3), inner) if draw(st.booleans()) else (inner,))
    if draw(st.booleans()):
        ways[0] = (_plain(draw, 4), _plain(draw, 4), *ways[0])
    return [Fork(tuple(ways), "cat"), _plain(draw, _pick(draw, 4, 3))]
