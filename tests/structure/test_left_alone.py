"""What cannot be removed neuron by neuron is named, with the reason in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import hope

UNKNOWN = "mixes or reorders channels in a way that is not analysed"


def why(net: nn.Module, *size: int) -> dict[str, str]:
    """Everything that is left alone -> why; nothing may be listed twice."""
    anatomy = hope.inspect(net, torch.zeros(size))
    assert not {layer.name for layer in anatomy.layers} & {one.name for one in anatomy.skipped}
    return {one.name: str(one.reason) for one in anatomy.skipped}


class Between(nn.Module):
    """Two convolutions, and something in between."""

    def __init__(self, middle: Callable[[Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)
        self.middle = middle
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.middle(self.conv(x)))


def parts(x: Tensor) -> Tensor:
    a, b = x.split((3, 5), 1)
    return torch.cat([b, a], 1)


def shuffle(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


@pytest.mark.parametrize(
    ("middle", "width", "reason"),
    [
        (nn.GroupNorm(1, 8), 8, "group_norm in middle normalises its channels together"),
        (nn.LayerNorm([8, 4, 4]), 8, "layer_norm in middle normalises its channels together"),
        (nn.Softmax(1), 8, "softmax in middle normalises its channels together"),
        (lambda x: F.log_softmax(x, dim=-3), 8, "log_softmax normalises its channels together"),
        (parts, 8, "split_with_sizes splits its channels by position"),
        (shuffle, 8, "view splits its channels into groups by position"),
        (nn.ChannelShuffle(2), 8, f"channel_shuffle in middle {UNKNOWN}"),
        (nn.PixelShuffle(2), 2, f"pixel_shuffle in middle {UNKNOWN}"),
        (lambda x: x[:, :6], 6, "slice takes a part of its channels by position"),
        (lambda x: x.flip(1), 8, "flip reorders its channels by position"),
        (lambda x: x.mean(1, keepdim=True), 1, "mean sums over its channels"),
        (lambda x: x + x.cumsum(1), 8, f"cumsum {UNKNOWN}"),
        (nn.LocalResponseNorm(3), 8, None),
    ],
)  # fmt: skip
def test_operators_that_join_channels_by_position(middle: Callable, width: int, reason: str | None) -> None:
    left = why(Between(middle, width), 1, 3, 4, 4)
    assert set(left) == {"conv", "out"}
    assert left["out"] == "it is an output of the model"
    assert reason is None or left["conv"] == reason


def test_layers_around_softmax_over_places_are_not_left_alone() -> None:
    assert set(why(Between(lambda x: x.flatten(2).softmax(2).view_as(x)), 1, 3, 4, 4)) == {"out"}


def test_channels_that_attend_to_one_another() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (
                nn.Linear(3, 8),
                nn.Linear(3, 8),
                nn.Linear(3, 6),
                nn.Linear(6, 2),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))

    left = why(Net(), 1, 5, 3)
    assert left["q"] == left["k"] == "scaled_dot_product_attention mixes it by position"
    assert "v" not in left


def test_a_module_that_is_called_twice() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again, self.out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.relu(self.again(F.relu(self.again(F.relu(self.first(x)))))))

    left = why(Net(), 1, 3)
    assert left["again"] == left["first"] == "again.weight is used 2 times in one pass (a shared module)"


def test_a_weight_that_goes_by_two_names() -> None:
    net = nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
    )
    net[4].weight = net[2].weight
    left = why(net, 1, 3)
    shared = "its weight is shared by 2.weight and 4.weight"
    assert left["2"] == left["0"] == shared
    assert "6" in left
    assert hope.inspect(net, torch.zeros(1, 3)).layers == ()


def test_weights_that_are_computed_at_run_time() -> None:
    net = nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    anatomy = hope.inspect(net, torch.zeros(1, 3))
    assert [layer.name for layer in anatomy.layers] == ["2"]
    left = {one.name: one for one in anatomy.skipped}
    assert str(left["0"].reason).startswith("linear in 0 uses weights that are computed at run time")
    assert left["0"].outputs == 4


def test_code_that_has_a_width_written_down() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.free, self.fixed, self.out = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 32, 1), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.fixed(F.relu(self.free(x))))
            return self.out(x.view(x.shape[0], 32, -1).mean(2))

    anatomy = hope.inspect(Net(), torch.zeros(2, 3, 4, 4))
    assert [layer.name for layer in anatomy.layers] == ["free"]
    left = {one.name: str(one.reason) for one in anatomy.skipped}
    assert left["fixed"].startswith("the model's code does not accept another width: ")
    assert "32" in left["fixed"]
    assert "\n" not in left["fixed"]


def test_code_whose_training_path_has_a_width_written_down() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.fc1(x)
            if self.training:
                x = x + 0.1 * torch.ones(8, dtype=x.dtype)
            return self.fc2(x)

    assert why(Net(), 2, 3)["fc1"].startswith("the model's code does not accept another width: ")


def test_code_that_accepts_each_width_but_not_both() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 4)
            self.c, self.d = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.a(x), self.b(x)
            if a.shape[1] < 4 and b.shape[1] < 4:
                raise ValueError("too narrow together")
            return self.c(a) + self.d(b)

    left = why(Net(), 2, 3)
    assert left["a"] == left["b"] == "the model's code does not accept another width: too narrow together"


def test_a_parameter_that_nothing_uses() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[1].register_parameter("unused", nn.Parameter(torch.zeros(5)))
    anatomy = hope.inspect(net, torch.zeros(1, 3))
    assert [layer.name for layer in anatomy.layers] == ["0"]
    assert ("1.unused", 5, "not used when the model runs", "parameter") in [
        (one.name, one.outputs, str(one.reason), one.kind) for one in anatomy.skipped
    ]


def test_a_layer_that_nobody_reads_through_weights() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.dead = nn.Linear(3, 2), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.dead(x)
            return self.fc(x)

    assert why(Net(), 1, 3)["dead"] == "no weights read it"


class Joined(nn.Module):
    """Two convolutions side by side, read in groups."""

    def __init__(self, a: int, b: int, groups: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, a, 1), nn.Conv2d(3, b, 1)
        self.mix, self.out = nn.Conv2d(a + b, 12, 1, groups=groups), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mix(torch.cat([self.a(x), self.b(x)], 1)))


def test_neurons_that_own_different_numbers_of_places() -> None:
    left = why(Joined(4, 2, groups=2), 1, 3, 4, 4)
    assert left["a"] == left["b"]
    assert left["a"].startswith("its neurons differ in shape")
    assert left["mix"] == "it is grouped with kept channels"


def test_channels_that_can_only_go_all_at_once() -> None:
    left = why(Joined(4, 2, groups=3), 1, 3, 4, 4)
    assert left == {
        "b": "its channels can only be removed all at once",
        "out": "it is an output of the model",
    }


def test_a_single_neuron_and_a_single_group() -> None:
    net = nn.Sequential(nn.Linear(3, 1), nn.ReLU(), nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 2))
    assert why(net, 1, 3) == {"0": "it has a single neuron", "4": "it is an output of the model"}
