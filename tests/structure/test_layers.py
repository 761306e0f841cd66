"""Small networks, and exactly what their neurons own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hope
from hope.structure.units import Unit


def owned(layer: Unit) -> dict[tuple[str, int, str], list[list[int]]]:
    """(tensor, dim, role) -> the places of each neuron."""
    return {(s.tensor, s.dim, s.role): s.index.tolist() for s in layer.places}


def one_each(n: int, start: int = 0) -> list[list[int]]:
    return [[start + i] for i in range(n)]


def facts(layer: Unit) -> tuple[Any, ...]:
    return layer.name, layer.neurons, layer.channels, layer.fan_in, layer.fan_out, layer.release


def left_alone(anatomy: hope.Anatomy) -> dict[str, str]:
    return {one.name: str(one.reason) for one in anatomy.skipped}


def test_mlp() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3, bias=False), nn.Tanh(), nn.Linear(3, 2))
    anatomy = hope.inspect(net, torch.zeros(1, 4))
    first, second = anatomy.layers
    assert facts(first) == ("0", 5, 1, 4, 3, 4 + 1 + 3)
    assert owned(first) == {
        ("0.weight", 0, "out"): one_each(5),
        ("0.bias", 0, "along"): one_each(5),
        ("2.weight", 1, "in"): one_each(5),
    }
    assert facts(second) == ("2", 3, 1, 5, 2, 5 + 2)
    assert (first.activation, second.activation, first.bn) == ("relu", "tanh", None)
    assert (first.weight, first.along, first.block) == ("0.weight", (), None)
    assert [consumer.module for consumer in first.readers] == ["2"]
    assert left_alone(anatomy) == {"4": "it is an output of the model"}
    assert (anatomy.blocks, anatomy.streams) == ((), ())
    assert anatomy.size() == anatomy.size({"0": 0})
    assert anatomy.size().parameters == 25 + 15 + 8
    assert anatomy.size().macs == 20 + 15 + 6
    assert anatomy.floor().parameters == 4 + 1 + 1 + 1 * 2 + 2


def test_vgg_flatten_gives_every_neuron_its_49_columns() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(196, 6),
    )  # fmt: skip
    layer = hope.inspect(net, torch.zeros(1, 3, 14, 14)).layers[0]
    assert facts(layer) == ("0", 4, 1, 27, 6 * 49, 27 + 1 + 2 + 6 * 49)
    assert owned(layer) == {
        ("0.weight", 0, "out"): one_each(4),
        ("0.bias", 0, "along"): one_each(4),
        ("1.weight", 0, "along"): one_each(4),
        ("1.bias", 0, "along"): one_each(4),
        ("1.running_mean", 0, "along"): one_each(4),
        ("1.running_var", 0, "along"): one_each(4),
        ("5.weight", 1, "in"): [list(range(49 * n, 49 * n + 49)) for n in range(4)],
    }
    assert (layer.bn, layer.activation) == ("1", "relu")
    assert [(step.kind, step.name) for step in layer.readers[0].path] == [
        ("bn", "1"), ("activation", "relu"), ("pool", "max"), ("flatten", "flatten")
    ]  # fmt: skip
    assert layer.readers[0].path[0].values == (1e-5,)


def test_flatten_with_channels_last_gives_every_neuron_every_fourth_column() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 1)
            self.fc = nn.Linear(4 * 6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.conv(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1))

    layer = hope.inspect(Net(), torch.zeros(2, 2, 2, 3)).layers[0]
    assert owned(layer)["fc.weight", 1, "in"] == [list(range(n, 24, 4)) for n in range(4)]
    assert layer.activation == "identity"


def test_several_consumers_are_listed_in_order_of_execution() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Conv2d(5, 2, 3)
            self.a = nn.Conv2d(3, 5, 1, bias=False)
            self.b = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.a(x)
            return self.b(F.silu(x).mean((2, 3))), self.c(F.relu(x))

    layer = hope.inspect(Net(), torch.zeros(1, 3, 4, 4)).layers[0]
    assert facts(layer) == ("a", 5, 1, 3, 2 + 2 * 9, 3 + 2 + 2 * 9)
    assert [(c.weight, c.activation) for c in layer.readers] == [("b.weight", "silu"), ("c.weight", "relu")]
    assert layer.activation == "several"


def test_unet_concatenation_shifts_the_second_part() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(3, 4, 3, padding=1)
            self.deep = nn.Conv2d(4, 6, 3, padding=1)
            self.up = nn.ConvTranspose2d(6, 5, 2, stride=2)
            self.out = nn.Conv2d(9, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            skip = F.relu(self.down(x))
            deep = F.relu(self.deep(F.max_pool2d(skip, 2)))
            return self.out(torch.cat([self.up(deep), skip], dim=1))

    anatomy = hope.inspect(Net(), torch.zeros(1, 3, 6, 6))
    down, deep, up = anatomy.layers
    assert facts(down) == ("down", 4, 1, 27, 6 * 9 + 2, 28 + 54 + 2)
    assert owned(down) == {
        ("down.weight", 0, "out"): one_each(4),
        ("down.bias", 0, "along"): one_each(4),
        ("deep.weight", 1, "in"): one_each(4),
        ("out.weight", 1, "in"): one_each(4, 5),
    }
    assert facts(deep) == ("deep", 6, 1, 36, 5 * 4, 37 + 20)
    assert owned(deep)["up.weight", 0, "in"] == one_each(6)
    assert facts(up) == ("up", 5, 1, 6 * 4, 2, 25 + 2)
    assert owned(up) == {
        ("up.weight", 1, "out"): one_each(5),
        ("up.bias", 0, "along"): one_each(5),
        ("out.weight", 1, "in"): one_each(5),
    }
    assert "concat" in [step.kind for step in up.readers[0].path]


def test_dense_connections_take_a_part_of_every_later_bn() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(4)
            self.conv1 = nn.Conv2d(4, 2, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(6)
            self.conv2 = nn.Conv2d(6, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            x = torch.cat([x, self.conv1(F.relu(self.norm1(x)))], 1)
            return self.conv2(F.relu(self.norm2(x)))

    stem, conv1 = hope.inspect(Net(), torch.zeros(1, 3, 4, 4)).layers
    assert facts(stem) == ("stem", 4, 1, 3, 2 + 3, 3 + 2 + 2 + 2 + 3)
    assert owned(stem)["norm1.running_var", 0, "along"] == one_each(4)
    assert owned(stem)["norm2.running_var", 0, "along"] == one_each(4)
    assert {c.module: c.last("bn").name for c in stem.readers} == {"conv1": "norm1", "conv2": "norm2"}
    assert stem.bn is None
    assert owned(conv1)["norm2.weight", 0, "along"] == one_each(2, 4)
    assert owned(conv1)["conv2.weight", 1, "in"] == one_each(2, 4)
    assert (conv1.bn, conv1.activation) == ("norm2", "relu")


def test_a_neuron_in_front_of_a_grouped_convolution_is_a_group_of_channels() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 12, 3, groups=3), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 2, 1),
    )  # fmt: skip
    anatomy = hope.inspect(net, torch.zeros(1, 3, 5, 5))
    (layer,) = anatomy.layers
    assert facts(layer) == ("0", 3, 2, 6, 4 * 2, 2 * 4 + 4 * 2 * 9 + 4 + 4 * 2 + 4 * 2)
    assert layer.along == ("2",)
    pairs, fours = [[0, 1], [2, 3], [4, 5]], [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    places = owned(layer)
    assert places["0.weight", 0, "out"] == places["0.bias", 0, "along"] == pairs
    assert (
        places["2.weight", 0, "along"]
        == places["2.bias", 0, "along"]
        == places["3.weight", 0, "along"]
        == fours
    )
    assert places["5.weight", 1, "in"] == fours
    assert left_alone(anatomy) == {"5": "it is an output of the model"}
    small = hope.cut(net, anatomy, [hope.Prune("0", [1])])
    assert (small[2].groups, small[2].in_channels, small[2].out_channels) == (2, 4, 8)


def test_a_depthwise_convolution_goes_with_its_neuron() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Hardswish(),
        nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.BatchNorm2d(4), nn.ReLU6(), nn.Conv2d(4, 2, 1),
    )  # fmt: skip
    (layer,) = hope.inspect(net, torch.zeros(1, 3, 5, 5)).layers
    assert facts(layer) == ("0", 4, 1, 3, 2, 3 + 2 + 9 + 2 + 2)
    assert (layer.along, layer.bn, layer.activation) == (("3",), "4", "relu6")
    kinds = [step.kind for step in layer.readers[0].path]
    assert kinds == ["bn", "activation", "depthwise", "bn", "activation"]


def test_a_transposed_grouped_convolution_ties_its_groups() -> None:
    net = nn.Sequential(nn.Conv1d(2, 6, 1), nn.ConvTranspose1d(6, 4, 2, groups=2), nn.Conv1d(4, 3, 1))
    (layer,) = hope.inspect(net, torch.zeros(1, 2, 5)).layers
    assert facts(layer) == ("0", 2, 3, 6, 2 * 3, 3 * 3 + 3 * 2 * 2 + 2 + 2 * 3)
    assert owned(layer)["1.weight", 0, "along"] == [[0, 1, 2], [3, 4, 5]]
    assert owned(layer)["1.bias", 0, "along"] == owned(layer)["2.weight", 1, "in"] == [[0, 1], [2, 3]]


class Excited(nn.Module):
    """A convolution, a gate on its channels, a convolution."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)
        self.gate = gate
        self.out = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return self.out(x * self.gate(x))


def test_squeeze_and_excitation_reads_a_neuron_and_gates_it() -> None:
    gate = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 2, 1), nn.ReLU(), nn.Conv2d(2, 6, 1), nn.Sigmoid()
    )
    anatomy = hope.inspect(Excited(gate), torch.zeros(1, 3, 4, 4))
    conv, squeeze = anatomy.layers
    assert facts(conv) == ("conv", 6, 1, 3, 2 + 2, 3 + 1 + 2 + (2 + 1) + 2)
    assert conv.along == ("gate.3",)
    assert [c.weight for c in conv.readers] == ["gate.1.weight", "out.weight"]
    assert owned(conv)["gate.3.weight", 0, "out"] == owned(conv)["gate.3.bias", 0, "along"] == one_each(6)
    assert facts(squeeze) == ("gate.1", 2, 1, 6, 6, 6 + 1 + 6)
    assert [step.kind for step in conv.readers[1].path] == ["activation", "gate"]
    assert anatomy.streams == ()


def test_a_gate_of_a_single_layer_loses_a_row_and_a_column_and_the_crossing_counts_once() -> None:
    gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 6, 1), nn.Hardsigmoid())
    net = Excited(gate)
    anatomy = hope.inspect(net, torch.zeros(1, 3, 4, 4))
    (conv,) = anatomy.layers
    assert facts(conv) == ("conv", 6, 1, 3, 6 + 2, 3 + 1 + (36 - 25) + 1 + 2)
    assert conv.along == ("gate.1",)
    assert owned(conv)["gate.1.weight", 0, "out"] == owned(conv)["gate.1.weight", 1, "in"] == one_each(6)
    small = hope.cut(net, anatomy, [hope.Prune("conv", [0, 4])])
    assert small.gate[1].weight.shape == (4, 4, 1, 1)


def test_efficient_channel_attention_is_left_alone() -> None:
    class Eca(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            y = x.mean((2, 3)).unsqueeze(1)
            return self.conv(y).sigmoid().transpose(1, 2).unsqueeze(-1)

    anatomy = hope.inspect(Excited(Eca()), torch.zeros(1, 3, 4, 4))
    assert anatomy.layers == ()
    assert left_alone(anatomy) == {
        "conv": "conv1d in gate.conv mixes it by position",
        "gate.conv": "it has a single neuron",
        "out": "it is an output of the model",
    }


def test_channel_wise_parameters_and_buffers_go_with_the_neuron() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(3, 4), nn.Linear(4, 2)
            self.act = nn.PReLU(4)
            self.scale = nn.Parameter(torch.ones(4))
            self.register_buffer("shift", torch.ones(1, 4), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc2(self.act(self.fc1(x)) * self.scale + self.shift)

    net = Net()
    anatomy = hope.inspect(net, torch.zeros(1, 3))
    (layer,) = anatomy.layers
    assert facts(layer) == ("fc1", 4, 1, 3, 2, 3 + 1 + 1 + 1 + 2)
    places = owned(layer)
    assert (
        places["act.weight", 0, "along"]
        == places["scale", 0, "along"]
        == places["shift", 1, "along"]
        == one_each(4)
    )
    assert layer.activation == "prelu"
    small = hope.cut(net, anatomy, [hope.Prune("fc1", 2)])
    assert (small.act.num_parameters, small.scale.shape, small.shift.shape) == (3, (3,), (1, 3))


def test_a_shared_slope_does_not_go_with_a_neuron() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2))
    (layer,) = hope.inspect(net, torch.zeros(1, 3)).layers
    assert facts(layer) == ("0", 4, 1, 3, 2, 3 + 1 + 2)
    assert layer.activation == "prelu"


def test_an_embedding_is_a_producer() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = nn.Embedding(7, 4), nn.Linear(4, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.fc(self.table(tokens))

    net = Net()
    anatomy = hope.inspect(net, torch.zeros(1, 5, dtype=torch.long))
    (layer,) = anatomy.layers
    assert facts(layer) == ("table", 4, 1, 7, 2, 7 + 2)
    assert hope.cut(net, anatomy, [hope.Prune("table", 0)]).table.embedding_dim == 3


def test_weights_multiplied_by_hand_are_layers_by_their_own_name() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1 = nn.Parameter(torch.randn(3, 4))
            self.w2 = nn.Parameter(torch.randn(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x @ self.w1) @ self.w2

    (layer,) = hope.inspect(Net(), torch.zeros(5, 3)).layers
    assert facts(layer) == ("w1", 4, 1, 3, 2, 3 + 2)
    assert owned(layer) == {("w1", 1, "out"): one_each(4), ("w2", 0, "in"): one_each(4)}


def test_keyword_and_tuple_examples_are_read_like_tensors() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(8, 1)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"score": self.c(torch.cat([self.a(x), self.b(y)], -1))}

    x, y = torch.zeros(1, 3), torch.zeros(1, 2)
    for example in ((x, y), [x, y], {"y": y, "x": x}):
        a, b = hope.inspect(Net(), example).layers
        assert owned(a)["c.weight", 1, "in"] == one_each(4)
        assert owned(b)["c.weight", 1, "in"] == one_each(4, 4)


def test_a_head_that_only_training_uses_is_cut_along() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 1), nn.Linear(4, 2)
            self.aux = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            x = F.relu(self.conv(x)).mean((2, 3))
            return (self.fc(x), self.aux(x)) if self.training else self.fc(x)

    net = Net()
    anatomy = hope.inspect(net, torch.zeros(2, 3, 4, 4))
    (layer,) = anatomy.layers
    assert facts(layer) == ("conv", 4, 1, 3, 2 + 3, 3 + 1 + 2 + 3)
    assert owned(layer)["aux.weight", 1, "in"] == one_each(4)
    small = hope.cut(net, anatomy, [hope.Prune("conv", [0])])
    assert [out.shape for out in small.train()(torch.zeros(2, 3, 4, 4))] == [(2, 2), (2, 3)]
    assert anatomy.size().macs == 2 * (3 * 4 * 16 + 4 * 2)


def test_a_model_in_training_mode_is_read_as_in_evaluation_mode() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    anatomy = hope.inspect(net.train(), torch.zeros(1, 3))
    assert [facts(layer) for layer in anatomy.layers] == [("0", 4, 1, 3, 2, 3 + 1 + 2 + 2)]
    assert all(module.training for module in net.modules())


@pytest.mark.zoo
def test_a_chain_of_a_thousand_layers_is_read() -> None:
    net = nn.Sequential(*(module for _ in range(1000) for module in (nn.Linear(4, 4), nn.ReLU()))).eval()
    anatomy = hope.inspect(net, torch.zeros(1, 4))
    assert [layer.neurons for layer in anatomy.layers] == [4] * 999
