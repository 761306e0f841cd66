"""A merge writes exactly the parent it was asked for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.actions.merge import write_parent
from tests.support import assert_same, randomise, run

EXAMPLE = torch.linspace(-1, 1, 2 * 3 * 5 * 5, dtype=torch.float64).reshape(2, 3, 5, 5)


def network(*, bn: bool, bias: bool = True) -> nn.Sequential:
    layers = [
        nn.Conv2d(3, 4, 3, bias=bias),
        *([nn.BatchNorm2d(4, eps=1e-3)] if bn else []),
        nn.ReLU(),
        nn.Conv2d(4, 5, 2),
    ]
    return randomise(nn.Sequential(*layers).double()).eval()  # type: ignore[return-value]


def signals(model: nn.Sequential) -> Tensor:
    """What the first layer hands to its activation."""
    with torch.no_grad():
        return model[:-2](EXAMPLE)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.7, 3.0, None])
def test_parent_has_the_signal_of_its_recipe(spread: float | None, bias: bool) -> None:
    model = network(bn=spread is not None, bias=bias or spread is None)
    anatomy = hope.inspect(model, EXAMPLE)
    rows = (0.3, -1.2)
    small = hope.cut(model, anatomy, [hope.Merge("0", 1, 3, rows, (0.5, 2.0), spread)])
    before, after = signals(model), signals(small)
    assert_same([after[:, 1]], [rows[0] * before[:, 1] + rows[1] * before[:, 3]], 1e-10)
    assert_same([after[:, [0, 2]]], [before[:, [0, 2]]], 1e-12)
    old, new = model[-1].weight, small[-1].weight
    assert_same([new[:, 1]], [0.5 * old[:, 1] + 2.0 * old[:, 3]], 1e-12)


def test_parent_read_back_has_the_spread_it_was_given() -> None:
    model = network(bn=True)
    anatomy = hope.inspect(model, EXAMPLE)
    bn = hope.cut(model, anatomy, [hope.Merge("0", 0, 1, (1.0, 1.0), (1.0, 1.0), 0.4)])[1]
    read = bn.weight[0].abs() * (bn.running_var[0] / (bn.running_var[0] + bn.eps)).sqrt()
    assert read.item() == pytest.approx(0.4, rel=1e-12)
    means = model[1].bias
    assert bn.bias[0].item() == pytest.approx((means[0] + means[1]).item(), rel=1e-12)


def test_merging_twins_by_sum_is_lossless() -> None:
    model = network(bn=True)
    with torch.no_grad():
        for tensor in (
            model[0].weight,
            model[0].bias,
            model[1].weight,
            model[1].bias,
            model[1].running_mean,
            model[1].running_var,
        ):
            tensor[2] = tensor[0]
    anatomy = hope.inspect(model, EXAMPLE)
    small = hope.cut(model, anatomy, [hope.Merge("0", 0, 2, (1.0, 0.0), (1.0, 1.0), 0.9)])
    assert_same(run(small, EXAMPLE), run(model, EXAMPLE), 1e-12)


def test_merges_compose_on_live_weights() -> None:
    model = network(bn=False)
    anatomy = hope.inspect(model, EXAMPLE)
    merges = [hope.Merge("0", 0, 1, (1.0, 2.0), (1.0, 1.0)), hope.Merge("0", 0, 2, (3.0, 1.0), (1.0, -1.0))]
    small = hope.cut(model, anatomy, merges)
    row = 3 * (model[0].weight[0] + 2 * model[0].weight[1]) + model[0].weight[2]
    out = model[-1].weight[:, 0] + model[-1].weight[:, 1] - model[-1].weight[:, 2]
    assert_same([small[0].weight[0], small[-1].weight[:, 0]], [row, out], 1e-12)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand, self.deep = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6)
        self.project = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(torch.relu(self.deep(torch.relu(self.expand(x)))))


def test_neurons_with_a_depthwise_filter_are_not_merged() -> None:
    model = Gated().double().eval()
    anatomy = hope.inspect(model, EXAMPLE)
    with pytest.raises(hope.InvalidAction, match="got deep that would merge too"):
        hope.cut(model, anatomy, [hope.Merge("expand", 0, 1, (1.0, 0.0), (1.0, 1.0))])


def test_only_equal_slopes_are_merged() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.PReLU(6), nn.Linear(6, 2)).double().eval()
    with torch.no_grad():
        model[1].weight[3] = 0.9
    anatomy = hope.inspect(model, torch.zeros(1, 4, dtype=torch.float64))
    hope.cut(model, anatomy, [hope.Merge("0", 0, 1, (1.0, 0.0), (1.0, 1.0))])
    with pytest.raises(hope.InvalidAction, match="slopes"):
        hope.cut(model, anatomy, [hope.Merge("0", 0, 3, (1.0, 0.0), (1.0, 1.0))])


def test_a_bn_behind_the_activation_is_not_merged_through() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 2)).double().eval()
    anatomy = hope.inspect(model, torch.zeros(2, 4, dtype=torch.float64))
    with pytest.raises(hope.InvalidAction, match="must follow the filter directly"):
        hope.cut(model, anatomy, [hope.Merge("0", 0, 1, (1.0, 0.0), (1.0, 1.0), 1.0)])


@pytest.mark.parametrize("missing", ["affine", "track_running_stats"])
def test_a_bn_without_scale_or_statistics_takes_no_parent(missing: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **{missing: False}), nn.ReLU(), nn.Conv2d(4, 5, 2)
    )
    model = model.double().eval()
    anatomy = hope.inspect(model, EXAMPLE)
    with pytest.raises(
        hope.InvalidAction, match="1 must have a scale and statistics to write the parent into"
    ):
        hope.cut(model, anatomy, [hope.Merge("0", 1, 3, (1.0, 1.0), (1.0, 1.0), 0.5)])


def test_a_parent_is_written_without_the_clamp_unless_asked_for() -> None:
    model = network(bn=True)
    write_parent(
        model, hope.inspect(model, EXAMPLE).unit("0"), hope.Merge("0", 1, 3, (1.0, 1.0), (1.0, 1.0), 0.02)
    )
    assert model[1].running_var[1].item() == pytest.approx(0.02**2, rel=1e-12)  # s² < ε: 0 with it
    assert model[1].weight[1].item() == pytest.approx((0.02**2 + 1e-3) ** 0.5, rel=1e-12)
