"""Residual networks: blocks that can be evicted, the streams they write into, and the layers inside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hope
from hope.trace.blocks import Replace, ReplaceByZero


class Basic(nn.Module):
    """Two convolutions beside an identity or a projection."""

    def __init__(self, c: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if c != out or stride > 1:
            self.down = nn.Sequential(nn.Conv2d(c, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, grouped 3x3, 1x1, written with an add that is not in place."""

    def __init__(self, c: int, inner: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = (
            nn.Conv2d(inner, inner, 3, padding=1, groups=groups, bias=False),
            nn.BatchNorm2d(inner),
        )
        self.conv3, self.bn3 = nn.Conv2d(inner, c, 1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(x + self.bn3(self.conv3(y)))


class Tower(nn.Module):
    """A stem, blocks, a pooled linear head."""

    def __init__(self, width: int, out: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(out, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(F.relu(self.stem(x))).mean((2, 3)))


def read(net: nn.Module) -> hope.Anatomy:
    return hope.inspect(net, torch.zeros(1, 3, 8, 8))


def reasons(anatomy: hope.Anatomy) -> dict[str, str]:
    return {one.name: str(one.reason) for one in anatomy.skipped}


def test_basic_blocks_with_identity_and_projection() -> None:
    anatomy = read(Tower(4, 6, Basic(4, 4), Basic(4, 6, 2)))
    plain, projected = anatomy.blocks
    assert (plain.name, plain.skip, plain.channels, plain.channel_dim, plain.ndim) == (
        "blocks.0",
        "identity",
        4,
        1,
        4,
    )
    assert plain.way == Replace("blocks.0", skip=(), after=("relu",), positive=True)
    assert plain.release == 2 * (4 * 4 * 9 + 8)
    assert (plain.layers, plain.inside, plain.bias, plain.last_bn) == (
        ("blocks.0.conv1",),
        None,
        True,
        "blocks.0.bn2",
    )
    assert (projected.skip, projected.channels) == ("projection", 6)
    assert projected.way == Replace("blocks.1", skip=("down",), after=("relu",), positive=False)
    assert projected.release == 4 * 6 * 9 + 6 * 6 * 9 + 2 * 12
    assert [(layer.name, layer.neurons, layer.block) for layer in anatomy.layers] == [
        ("blocks.0.conv1", 4, "blocks.0"),
        ("blocks.1.conv1", 6, "blocks.1"),
    ]
    first = anatomy.layers[0]
    assert (first.fan_in, first.fan_out, first.release) == (36, 36, 36 + 2 + 36)
    assert (first.bn, first.activation) == ("blocks.0.bn1", "relu")


def test_streams_list_who_writes_and_who_reads_them() -> None:
    anatomy = read(Tower(4, 6, Basic(4, 4), Basic(4, 6, 2)))
    narrow, wide = anatomy.streams
    assert (narrow.name, narrow.neurons) == ("stem", 4)
    assert narrow.writers == ("stem", "blocks.0.conv2")
    assert tuple(reader.module for reader in narrow.readers) == (
        "blocks.0.conv1",
        "blocks.1.conv1",
        "blocks.1.down.0",
    )
    assert (wide.neurons, wide.writers) == (6, ("blocks.1.conv2", "blocks.1.down.0"))
    assert tuple(reader.module for reader in wide.readers) == ("head",)
    assert {(s.tensor, s.dim): s.index.ravel().tolist() for s in wide.places}["head.weight", 1] == list(
        range(6)
    )
    why = reasons(anatomy)
    assert why["stem"] == (
        "a stream: add in blocks.0 ties it to stem, blocks.0.conv2; prunable with streams=True"
    )
    assert set(why) == {"stem", "blocks.0.conv2", "blocks.1.conv2", "blocks.1.down.0", "head"}


def test_bottleneck_with_groups_has_one_layer_of_groups() -> None:
    anatomy = read(Tower(4, 4, Bottleneck(4, 6, 3)))
    (layer,) = anatomy.layers
    assert (layer.name, layer.neurons, layer.channels, layer.along) == (
        "blocks.0.conv1",
        3,
        2,
        ("blocks.0.conv2",),
    )
    assert layer.release == 2 * 4 + 4 + 2 * 2 * 9 + 4 + 2 * 4
    (block,) = anatomy.blocks
    assert block.way == Replace("blocks.0", skip=(), after=("ReLU",), positive=True)


def test_bottleneck_without_groups_has_two_layers() -> None:
    anatomy = read(Tower(4, 4, Bottleneck(4, 6, 1)))
    assert [(layer.name, layer.fan_in, layer.fan_out) for layer in anatomy.layers] == [
        ("blocks.0.conv1", 4, 54),
        ("blocks.0.conv2", 54, 4),
    ]
    assert anatomy.blocks[0].layers == ("blocks.0.conv1", "blocks.0.conv2")


def test_pre_activation_blocks_need_no_activation_behind_the_skip() -> None:
    class Pre(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.bn1, self.conv1 = nn.BatchNorm2d(c), nn.Conv2d(c, 5, 3, padding=1, bias=False)
            self.bn2, self.conv2 = nn.BatchNorm2d(5), nn.Conv2d(5, c, 3, padding=1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv1(torch.relu(self.bn1(x)))
            return x + self.conv2(torch.relu(self.bn2(y)))

    anatomy = read(Tower(4, 4, Pre(4), Pre(4)))
    assert [block.way for block in anatomy.blocks] == [Replace("blocks.0"), Replace("blocks.1")]
    assert [(layer.name, layer.bn) for layer in anatomy.layers] == [
        ("blocks.0.conv1", "blocks.0.bn2"),
        ("blocks.1.conv1", "blocks.1.bn2"),
    ]
    (stream,) = anatomy.streams
    assert stream.writers == ("stem", "blocks.0.conv2", "blocks.1.conv2")
    assert {s.tensor for s in stream.places if s.role == "along"} >= {
        "blocks.0.bn1.weight",
        "blocks.1.bn1.running_var",
    }
    assert anatomy.blocks[0].last_bn is None


def test_a_shortcut_of_slices_and_zero_channels_holds_fast_what_it_pads_but_not_the_rest() -> None:
    class OptionA(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(4, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
            self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
            return F.relu(y + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)))

    net = Tower(4, 8, OptionA())
    anatomy = read(net)
    assert [(layer.name, layer.neurons, layer.block) for layer in anatomy.layers] == [
        ("blocks.0.conv1", 8, "blocks.0")
    ]
    (block,) = anatomy.blocks
    assert (block.skip, block.channels) == ("identity", 8)
    (stream,) = anatomy.streams
    assert stream.writers == ("stem", "blocks.0.conv2")
    left = [(one.name, one.outputs, one.reason.cause) for one in anatomy.skipped[:-1]]
    assert left == [
        ("stem", 4, hope.Cause.STREAM),
        ("blocks.0.conv2", 4, hope.Cause.STREAM),
        ("blocks.0.conv2", 4, hope.Cause.COMBINED),
    ]
    assert reasons(anatomy)["blocks.0.conv2"] == "add in blocks.0 combines it with kept channels"
    assert not stream.open
    opened = hope.inspect(net, torch.zeros(1, 3, 8, 8), streams=True)
    stem = opened.unit("stem")
    assert (stem.open, stem.neurons) == (True, 4)
    places = stem.at("blocks.0.conv2.weight", "out")
    assert places is not None
    assert places.owner.tolist() == [-1, -1, 0, 1, 2, 3, -1, -1]
    assert [one.reason.cause for one in opened.skipped[:-1]] == [hope.Cause.COMBINED]


def test_a_block_written_flat_in_a_larger_forward_is_silenced_module_by_module() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 1)
            self.a, self.norm, self.b = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1)
            self.c, self.d = nn.Conv2d(4, 5, 1), nn.Conv2d(5, 4, 1)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            x = x + self.b(F.relu(self.norm(self.a(x))))
            y = self.d(F.relu(self.c(x)))
            y += x
            return self.head(y.mean((2, 3)))

    anatomy = read(Flat())
    first, second = anatomy.blocks
    assert (first.name, second.name) == ("model#1", "model#2")
    assert first.way == ReplaceByZero(("a", "norm", "b"), full=False, returns=(0, 0, 0))
    assert second.way == ReplaceByZero(("c", "d"), full=True, returns=(0, 0))
    assert (first.release, second.release) == (4 * 6 + 6 + 12 + 24 + 4, 20 + 5 + 20 + 4)
    assert (first.bias, second.bias, first.place) == (True, True, "a")
    assert [(layer.name, layer.block) for layer in anatomy.layers] == [("a", "model#1"), ("c", "model#2")]


def test_a_block_within_a_block_knows_what_it_lies_in() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.inner, self.leave = nn.Conv2d(4, 6, 1), Bottleneck(6, 5, 1), nn.Conv2d(6, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.leave(self.inner(self.enter(x)))

    anatomy = read(Tower(4, 4, Outer()))
    assert {block.name: block.inside for block in anatomy.blocks} == {
        "blocks.0": None,
        "blocks.0.inner": "blocks.0",
    }
    assert {layer.name: layer.block for layer in anatomy.layers} == {
        "blocks.0.inner.conv1": "blocks.0.inner",
        "blocks.0.inner.conv2": "blocks.0.inner",
    }
    assert anatomy.block("blocks.0").removes("blocks.0.inner.conv1.weight")
    assert anatomy.floor().parameters == anatomy.size(evicted=["blocks.0"]).parameters


class Attention(nn.Module):
    """Two heads, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, d))


class Transformer(nn.Module):
    """One encoder block: attention and an MLP, both behind a LayerNorm, both beside the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.norm1, self.norm2, self.attention = nn.LayerNorm(8), nn.LayerNorm(8), Attention()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.attention(self.norm1(x))
        x = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return self.head(x.mean(1))


def test_a_transformer_has_its_mlp_as_layer_and_both_halves_as_blocks() -> None:
    anatomy = read(Transformer())
    (layer,) = anatomy.layers
    assert (layer.name, layer.neurons, layer.fan_in, layer.fan_out) == ("fc1", 16, 8, 8)
    assert (layer.release, layer.activation, layer.block, layer.bn) == (8 + 1 + 8, "gelu", "model#2", None)
    attention, mlp = anatomy.blocks
    assert (attention.name, attention.channel_dim, attention.ndim, attention.channels) == ("model#1", 2, 3, 8)
    assert attention.way == ReplaceByZero(("norm1", "attention"), full=False, returns=(0, 0))
    assert attention.release == 16 + 24 * 9 + 8 * 9
    assert mlp.way == ReplaceByZero(("norm2", "fc1", "fc2"), full=False, returns=(0, 0, 0))
    why = reasons(anatomy)
    assert why["attention.qkv"].startswith("the model's code does not accept another width: shape")
    assert why["patch"] == "layer_norm in norm1 normalises its channels together"
    (stream,) = anatomy.streams
    assert stream.writers == ("patch", "attention.proj", "fc2")
    assert tuple(reader.module for reader in stream.readers) == ("attention.qkv", "fc1", "head")


def test_adds_that_are_no_residuals_are_no_blocks() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.a(x) + self.b(x))

    anatomy = read(Net())
    assert (anatomy.blocks, anatomy.layers) == ((), ())
    assert [stream.writers for stream in anatomy.streams] == [("a", "b")]


def test_a_branch_that_is_also_read_elsewhere_is_no_block() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1), nn.Conv2d(5, 4, 1)
            self.out, self.side = nn.Conv2d(4, 2, 1), nn.Conv2d(5, 2, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.stem(x)
            y = self.a(x)
            return self.out(x + self.b(y)), self.side(y)

    anatomy = read(Net())
    assert anatomy.blocks == ()
    assert [(layer.name, len(layer.readers)) for layer in anatomy.layers] == [("a", 2)]
