"""However it is written: cutting equals masking, evicting equals silencing, no weight goes unmentioned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import hope
from hope.rewrite.apply import outcome
from tests.support import assert_same, check_cut, randomise, run
from zoo.silence import silenced

Forward = Callable[..., Any]


class Code(nn.Module):
    """A forward given as a function of the module and its input, and the parts it uses."""

    def __init__(self, forward: Forward, **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.code = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.code(self, *args, **kwargs)


def weights(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def conv(c: int, out: int, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(c, out, 1, **options)


# ---- neurons -----------------------------------------------------------------------------------------------


def channels_as_batch(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    b, c, h, w = y.shape
    return m.c(m.d(y.reshape(b * c, 1, h, w)).reshape(b, c, h, w))


def assigned_channels(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    y[:, :2] = 0.5
    return m.c(y)


def assigned_rows(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    y[:, :, 0] = m.b(x)[:, :, 0]
    return m.c(y)


def filled(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    room = y.new_zeros(y.shape[0], 2 * y.shape[1], *y.shape[2:])
    room[:, : y.shape[1]] = y
    room[:, y.shape[1] :] = 2 * y
    return m.d(room)


def own_statistics(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.c(y + y.amax((2, 3), keepdim=True) * y.std((2, 3), keepdim=True))


def normalised(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.c(y / y.norm())


def scaled_by_width(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.c(y * y.shape[1] ** -0.5)


def divided_by_width(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.c(y) / y.shape[1]


def divided_by_width_in_a_tensor(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.c(y / torch.sqrt(torch.tensor(float(y.shape[1]))))


def filled_with_width(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.c(y * torch.full((1,), y.shape[1] ** -0.5, dtype=y.dtype))


def weighted_by_width(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.c(torch.add(y, y.relu(), alpha=1 / y.shape[1]))


def pooled_by_width(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.c(F.max_pool2d(y, 2) if y.shape[1] > 3 else F.avg_pool2d(y, 2))


def counted(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.c(y * (1.0 + torch.arange(y.shape[1], dtype=x.dtype)).view(1, -1, 1, 1))


def unpooled(m: Any, x: Tensor) -> Tensor:
    return m.c(F.max_unpool2d(*F.max_pool2d(m.a(x), 2, return_indices=True), 2))


IMAGE, TOKENS, ROWS = (2, 3, 6, 6), (2, 5, 3), (2, 3)


@dataclass(frozen=True)
class Form:
    """A forward, the shape it takes, its neuron layers, and its parts (made anew for every test)."""

    forward: Forward
    size: tuple[int, ...]
    layers: tuple[str, ...]
    parts: dict[str, Callable[[], nn.Module | Tensor]]


def form(forward: Forward, size: tuple[int, ...], *layers: str, **parts: Any) -> Form:
    common = {
        "a": lambda: nn.Linear(3, 4) if len(size) < 4 else conv(3, 4),
        "c": lambda: nn.Linear(4, 2) if len(size) < 4 else conv(4, 2),
    }
    used = {name: make for name, make in common.items() if name in forward.__code__.co_names}
    return Form(forward, size, layers, used | parts)


FORMS = {
    "addmm": form(
        lambda m, x: m.c(torch.addmm(m.b, x, m.w).relu()),
        ROWS,
        "w",
        w=lambda: weights(3, 4),
        b=lambda: weights(4),
    ),
    "addmm, bias as a row": form(
        lambda m, x: m.c(torch.addmm(m.b, x, m.w)),
        ROWS,
        "w",
        w=lambda: weights(3, 4),
        b=lambda: weights(1, 4),
    ),
    "addmm, one bias for all": form(
        lambda m, x: m.c(torch.addmm(m.b, x, m.w)), ROWS, "w", w=lambda: weights(3, 4), b=lambda: weights(1)
    ),
    "addmm, bias per sample": form(
        lambda m, x: m.c(torch.addmm(m.b, x, m.w)),
        ROWS,
        "w",
        w=lambda: weights(3, 4),
        b=lambda: weights(2, 4),
    ),
    "transposed by hand": form(lambda m, x: m.c(x @ m.w.t()), ROWS, "w", w=lambda: weights(4, 3)),
    "einsum": form(lambda m, x: m.c(torch.einsum("bi,io->bo", x, m.w)), ROWS, w=lambda: weights(3, 4)),
    "bilinear": form(lambda m, x: m.c(m.b(x, x)), ROWS, b=lambda: nn.Bilinear(3, 3, 4)),
    "lstm": form(lambda m, x: m.c(m.b(x)[0]), TOKENS, b=lambda: nn.LSTM(3, 4, batch_first=True)),
    "gru": form(lambda m, x: m.c(m.b(x)[0]), TOKENS, b=lambda: nn.GRU(3, 4, batch_first=True)),
    "glu": form(lambda m, x: m.c(F.glu(m.b(x))), ROWS, b=lambda: nn.Linear(3, 8)),
    "encoder layer": form(
        lambda m, x: m.c(m.t(m.a(x))),
        TOKENS,
        "t.linear1",
        t=lambda: nn.TransformerEncoderLayer(4, 2, 16, batch_first=True),
    ),
    "weight norm": form(lambda m, x: m.c(m.b(m.a(x)).relu()), IMAGE, b=lambda: weight_norm(conv(4, 4))),
    "standardised weight": form(
        lambda m, x: m.c(F.linear(x, m.w - m.w.mean(1, keepdim=True))), ROWS, w=lambda: weights(4, 3)
    ),
    "low rank": form(
        lambda m, x: m.c(F.linear(x, m.p @ m.q)), ROWS, p=lambda: weights(4, 2), q=lambda: weights(2, 3)
    ),
    "channels as batch": form(channels_as_batch, IMAGE, "a", d=lambda: nn.Conv2d(1, 1, 3, padding=1)),
    "assigned channels": form(assigned_channels, IMAGE),
    "assigned rows": form(assigned_rows, IMAGE, b=lambda: conv(3, 4)),
    "filled in": form(filled, IMAGE, d=lambda: conv(8, 2)),
    "twice in one concatenation": form(
        lambda m, x: m.d(torch.cat([m.a(x)] * 2, 1)), IMAGE, "a", d=lambda: conv(8, 2)
    ),
    "repeated": form(lambda m, x: m.d(m.a(x).repeat(1, 2, 1, 1)), IMAGE, d=lambda: conv(8, 2)),
    "unfolded": form(lambda m, x: m.d(F.unfold(m.a(x), 2)), IMAGE, d=lambda: nn.Conv1d(16, 2, 1)),
    "unpooled": form(unpooled, IMAGE),
    "stacked and summed": form(
        lambda m, x: m.c(torch.stack([m.a(x), m.b(x)], 1).sum(1)), IMAGE, b=lambda: conv(3, 4)
    ),
    "own statistics": form(own_statistics, IMAGE, "a"),
    "normalised as a whole": form(normalised, IMAGE),
    "instance norm": form(lambda m, x: m.c(F.instance_norm(m.a(x))), IMAGE, "a"),
    "scaled by its width": form(scaled_by_width, IMAGE),
    "divided by its width": form(divided_by_width, IMAGE),
    "divided by its width in a tensor": form(divided_by_width_in_a_tensor, IMAGE),
    "filled with its width": form(filled_with_width, IMAGE),
    "weighted by its width": form(weighted_by_width, IMAGE),
    "pooled by its width": form(pooled_by_width, IMAGE),
    "counted": form(counted, IMAGE),
    "squeezed": form(
        lambda m, x: m.d(F.adaptive_avg_pool2d(m.a(x), 1).squeeze()), IMAGE, d=lambda: nn.Linear(4, 2)
    ),
    "norm over tokens": form(lambda m, x: m.c(m.n(m.a(x))), TOKENS, "a", n=lambda: nn.BatchNorm1d(5)),
    "slopes over tokens": form(lambda m, x: m.c(m.n(m.a(x))), TOKENS, "a", n=lambda: nn.PReLU(5)),
    "without a batch": form(
        lambda m, x: m.c(m.b(x).relu()), (3, 6, 6), "b", b=lambda: conv(3, 4), c=lambda: conv(4, 2)
    ),
    "without a batch, flattened": form(
        lambda m, x: m.d(m.b(x).flatten()), (3, 6, 6), "b", b=lambda: conv(3, 4), d=lambda: nn.Linear(144, 2)
    ),
    "a vector": form(lambda m, x: m.c(m.a(x).relu()), (3,), "a"),
}


@pytest.mark.parametrize("name", FORMS)
def test_cutting_equals_masking_however_it_is_written(name: str) -> None:
    one = FORMS[name]
    net = randomise(Code(one.forward, **{part: make() for part, make in one.parts.items()})).double()
    anatomy, _ = check_cut(net, torch.randn(one.size, dtype=torch.float64), tolerance=1e-10)
    assert tuple(layer.name for layer in anatomy.layers) == one.layers
    cut = {part.tensor for layer in anatomy.layers for part in layer.places if part.role != "in"}
    named = [one.name for one in anatomy.skipped]
    for tensor, parameter in net.named_parameters():
        accounted = tensor in cut or any(tensor == other or tensor.startswith(f"{other}.") for other in named)
        assert parameter.ndim < 2 or accounted, (tensor, named)


# ---- blocks ------------------------------------------------------------------------------------------------


def branch(m: Any, x: Tensor) -> Tensor:
    return m.c2(F.relu(m.c1(x)))


def added_to_the_input(m: Any, x: Tensor) -> Tensor:
    y = branch(m, x)
    x += y
    return x


def activated_in_place_first(m: Any, x: Tensor) -> Tensor:
    return x + branch(m, F.relu_(x))


BLOCKS: dict[str, Forward] = {
    "plain": lambda m, x: x + branch(m, x),
    "activated behind": lambda m, x: F.leaky_relu(x + branch(m, x)),
    "activated behind with a number": lambda m, x: F.leaky_relu(x + branch(m, x), 0.3),
    "activated twice behind": lambda m, x: m.act(m.norm(m.act(x + branch(m, x)))),
    "activated twice in a row": lambda m, x: m.act(m.act(x + branch(m, x))),
    "projected": lambda m, x: m.p(x) + m.c4(m.c3(branch(m, x))),
    "projected twice by one module": lambda m, x: m.p(m.act(m.p(x))) + m.c4(m.c3(m.c4(m.c3(branch(m, x))))),
    "projected from a list": lambda m, x: m.several[0](x) + branch(m, x),
    "added to the input": added_to_the_input,
    "activated in place first": activated_in_place_first,
    "weighted": lambda m, x: torch.add(x, branch(m, x), alpha=0.5),
    "scaled behind": lambda m, x: (x + branch(m, x)) * 0.5,
    "scaled in front": lambda m, x: x + m.g * branch(m, x),
    "shifted in front": lambda m, x: x + (branch(m, x) + m.g),
    "dropped": lambda m, x: x + m.drop(branch(m, x)),
    "normalised in front": lambda m, x: x + m.norm(branch(m, x)),
}
CALLS: dict[str, tuple[Forward, Forward]] = {
    "a parameter first": (lambda m, x: m.block(m.place, x), lambda m, place, x: x + branch(m, x + place)),
    "a parameter second": (lambda m, x: m.block(x, m.place), lambda m, x, place: x + branch(m, x + place)),
    "something unused first": (lambda m, x: m.block(m.place, x), lambda m, place, x: x + branch(m, x)),
    "by keyword": (lambda m, x: m.block(h=x), lambda m, h: h + branch(m, h)),
    "with a number": (lambda m, x: m.block(x, 0.3), lambda m, x, scale: x + scale * branch(m, x)),
    "returning a pair": (lambda m, x: m.block(x)[0], lambda m, x: (x + branch(m, x), None)),
    "returning its input too": (lambda m, x: sum(m.block(x)), lambda m, x: (x + branch(m, x), x)),
    "returning a dict": (lambda m, x: m.block(x)["y"], lambda m, x: {"y": x + branch(m, x)}),
}


LEFT_ALONE = {  # (form, flat): nothing that could be replaced ends the branch, or begins it
    ("weighted", False),
    ("weighted", True),
    ("shifted in front", True),
    ("a parameter first", False),
    ("a parameter second", False),
}


def check_evictions(name: str, call: Forward, forward: Forward, flat: bool) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "c3": lambda: conv(4, 3),
        "c4": lambda: conv(3, 4),
        "p": lambda: conv(4, 4),
        "act": nn.SiLU,
        "norm": lambda: nn.BatchNorm2d(4),
        "drop": lambda: nn.Dropout(0.3),
        "g": lambda: weights(4, 1, 1),
        "several": lambda: nn.ModuleList([conv(4, 4)]),
    }
    parts: dict[str, Any] = {"c1": conv(4, 6), "c2": conv(6, 4)}
    parts |= {part: make() for part, make in makers.items() if part in forward.__code__.co_names}
    around: dict[str, Any] = {"stem": conv(3, 4), "out": conv(4, 2)}
    if "place" in call.__code__.co_names:
        around["place"] = weights(1, 4, 5, 5)
    if flat:
        net = Code(lambda m, x: m.out(forward(m, m.stem(x))), **parts, **around)
    else:
        net = Code(lambda m, x: m.out(call(m, m.stem(x))), block=Code(forward, **parts), **around)
    net = randomise(net).double().eval()
    x = torch.randn(1, 3, 5, 5, dtype=torch.float64)
    anatomy = hope.inspect(net, x)
    assert bool(anatomy.blocks) == ((name, flat) not in LEFT_ALONE)
    for block in anatomy.blocks:
        biases = [None, [0.5 + n for n in range(block.channels)]] if block.bias else [None]
        for bias in biases:
            evictions = [hope.Evict(block.name, bias)]
            small = hope.cut(net, anatomy, evictions)
            assert_same(run(small, x), silenced(net, x, anatomy, evictions), 1e-10)
            size = anatomy.size(evicted=[block.name], biases=[block.name] if bias else [])
            assert sum(p.numel() for p in small.parameters()) == size.parameters


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_evicting_equals_silencing_however_the_block_is_written(name: str, flat: bool) -> None:
    check_evictions(name, lambda m, x: m.block(x), BLOCKS[name], flat)


@pytest.mark.parametrize("name", CALLS)
def test_evicting_equals_silencing_however_the_block_is_called(name: str) -> None:
    check_evictions(name, *CALLS[name], flat=False)


def test_a_layer_that_runs_through_an_evicted_block_is_cut_along_with_the_bias_left_there() -> None:
    mixer = Code(lambda m, x: x + m.c1(x), c1=nn.Conv2d(4, 4, 3, padding=1, groups=4))
    net = (
        Code(lambda m, x: m.out(m.block(m.stem(x))), stem=conv(3, 4), block=mixer, out=conv(4, 2))
        .double()
        .eval()
    )
    x = torch.randn(1, 3, 5, 5, dtype=torch.float64)
    anatomy = hope.inspect(net, x)
    (block,) = anatomy.blocks
    prune, evict = hope.Prune("stem", [1]), hope.Evict("block", [0.1, 0.2, 0.3, 0.4] if block.bias else None)
    small = hope.cut(net, anatomy, [prune, evict])
    assert_same(run(small, x), silenced(net, x, anatomy, [evict], [prune]), 1e-10)
    size = outcome(anatomy, [prune, evict]).size(anatomy)
    assert sum(p.numel() for p in small.parameters()) == size.parameters
