"""What is refused before any work, and numbers of other libraries that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hope
from hope.schedule.budget import one_budget

EXAMPLE = torch.zeros(2, 3)
METHODS = ("absorb", "paper", "l1-in", "random")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()


class Optional(nn.Module):
    """Takes a second input that must look like the first."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor, more: Tensor | None = None) -> Any:
        return self.net(x if more is None else x + more)


class Residual(nn.Module):
    """A branch without a BN."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.head = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.branch(x))


@pytest.mark.parametrize(
    "value",
    [np.float32(0.5), np.float64(0.5), np.array(0.5), torch.tensor(0.5), np.int64(4), torch.tensor(4), 4.0],
)
def test_scalars_of_numpy_and_torch_are_budgets(value: Any) -> None:
    assert hope.encode(network(), EXAMPLE, density=value).size.neurons == 4


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"params": "0.5"}, "params must be a fraction between 0 and 1 or a whole count, got '0.5': give"),
        ({"params": -3}, "whole count, got -3: give params=0.6 or params=15000000"),
        ({"params": True}, "got True: give"),
        ({"params": [0.5]}, "got [0.5]: give"),
        ({"params": torch.tensor([0.5])}, "got tensor([0.5000]): give"),
        ({"params": torch.zeros(9, 9)}, "got tensor([[0., 0., "),
        ({"macs": float("inf")}, "macs must be a fraction between 0 and 1 or a whole count, got inf: give"),
        ({"macs": float("nan")}, "got nan: give"),
        ({"density": -0.1}, "got -0.1: give density=0.6"),
        ({"density": 1.5}, "whole count, got 1.5: give"),
        ({"steps": 1.5}, "steps must be a whole number from 0, got 1.5: give steps=100"),
        ({"steps": -1}, "got -1: give"),
        (
            {"fidelity": -1},
            "fidelity must be between 0 and 1, which is the original, got -1: give fidelity=0.9",
        ),
        ({"fidelity": 2.0}, "got 2: give fidelity=0.9"),
        ({}, "the budget must be exactly one of"),
        ({"steps": 1, "params": 0.5}, "the budget must be exactly one of"),
    ],
)
def test_a_budget_that_there_is_not_is_reported_with_the_range(budget: dict[str, Any], words: str) -> None:
    with pytest.raises(hope.InfeasibleBudget) as caught:
        one_budget(**{"density": None, **budget})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ("0.weight", float("nan"), "0.weight must be finite, got NaN or infinite entries"),
        ("3.bias", float("inf"), "3.bias must be finite"),
        ("1.running_mean", float("nan"), "1.running_mean must be finite"),
        ("1.running_var", float("inf"), "1.running_var must be finite"),
        ("1.running_var", -1.0, "1.running_var must not be negative"),
    ],
)
def test_numbers_that_nothing_follows_from_are_named_by_all(where: str, value: float, words: str) -> None:
    net = network()
    net.state_dict()[where].view(-1)[0] = value
    for method in METHODS:
        with pytest.raises(hope.UnsupportedModel, match=words):
            hope.encode(net, EXAMPLE, density=0.5, method=method)
    with pytest.raises(hope.UnsupportedModel, match=words):
        hope.capacities(net, EXAMPLE)
    with pytest.raises(hope.deft.InvalidPartition, match=words):
        hope.deft.partition(net, EXAMPLE)


def test_a_mask_may_be_infinite() -> None:
    net = network()
    net.register_buffer("mask", torch.full((2,), -torch.inf))
    assert hope.encode(net, EXAMPLE, density=0.5).steps == 4


CALIBRATED: dict[str, Callable[[Any], object]] = {
    "absorb": lambda some: hope.encode(network(), EXAMPLE, density=0.5, method=hope.Absorb(calibration=some)),
    "paper": lambda some: hope.encode(network(), EXAMPLE, density=0.5, method=hope.Paper(calibration=some)),
    "capacities": lambda some: hope.capacities(network(), EXAMPLE, calibration=some),
    "deft": lambda some: hope.deft.partition(network(), EXAMPLE, calibration=some),
}


@pytest.mark.parametrize("call", CALIBRATED.values(), ids=CALIBRATED)
@pytest.mark.parametrize(
    ("some", "words"),
    [
        ([torch.randn(4, 3), torch.full((4, 3), torch.nan)], "batch 1 must have finite entries"),
        ([torch.full((4, 3), torch.inf)], "batch 0 must have finite entries"),
        ([torch.randn(4, 3), torch.randn(4, 5)], "that the model runs on, got batch 1"),
        ([torch.randn(4, 3, 2, 2)], "that the model runs on, got batch 0"),
        ([], "must have at least one batch, got none"),
        (DataLoader(TensorDataset(torch.zeros(0, 3))), "must have at least one batch, got none"),
        (torch.randn(4, 3), "calibration must be a list of batches, got one tensor"),
        (3, "calibration must be a list of batches, got a int"),
    ],
    ids=["nan", "inf", "narrow", "images", "none", "empty loader", "one tensor", "a number"],
)
def test_bad_calibration_inputs_are_one_line(call: Callable[[Any], object], some: Any, words: str) -> None:
    with pytest.raises(hope.InvalidExample, match=words) as caught:
        call(some)
    assert len(str(caught.value).splitlines()) == 1


def test_signals_that_overflow_are_named() -> None:
    net, huge = network(), [torch.full((4, 3), 3e38)]
    with torch.no_grad():
        net[0].weight.fill_(10)
    for method in (hope.Absorb, hope.Paper):
        with pytest.raises(hope.InvalidExample, match=r"finite.*got NaN or infinite ones"):
            hope.encode(net, EXAMPLE, density=0.5, method=method(calibration=huge))


@pytest.mark.parametrize("call", CALIBRATED.values(), ids=CALIBRATED)
def test_a_loader_of_pairs_works_everywhere_with_a_note(
    call: Callable[[Any], object], capsys: pytest.CaptureFixture[str]
) -> None:
    call(DataLoader(TensorDataset(torch.randn(40, 3), torch.arange(40)), batch_size=16))
    assert capsys.readouterr().err.count("the second as labels") == 1


@pytest.mark.parametrize("net", [network(), Optional().eval()], ids=["one input", "an optional second"])
def test_labels_of_a_loader_are_left_out_and_that_is_reported(
    net: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = [torch.randn(16, 3) for _ in range(3)]
    pairs = [[x, torch.arange(16)] for x in inputs]
    runs = [
        hope.encode(net, EXAMPLE, density=0.5, method=hope.Absorb(calibration=some))
        for some in (inputs, pairs)
    ]
    assert runs[0].trajectory.steps == runs[1].trajectory.steps
    assert capsys.readouterr().err.count("the second as labels") == 1


def test_two_inputs_that_a_model_takes_are_both_given(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [(torch.randn(16, 3), torch.ones(16, 3)) for _ in range(2)]
    hope.encode(Optional().eval(), EXAMPLE, density=0.5, method=hope.Absorb(calibration=pairs))
    assert capsys.readouterr().err == ""


def test_networks_without_a_bn_are_told_what_to_type() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    for budget in ({"density": 0.5}, {"steps": 2}, {"fidelity": 0.5}):
        for method in ("absorb", "paper"):
            with pytest.raises(hope.InfeasibleBudget) as caught:
                hope.encode(net, EXAMPLE, method=method, **budget)  # type: ignore[arg-type]
            assert "8 neurons have no BN" in str(caught.value)
            assert ": give a few inputs, calibration=batches or --calibration inputs" in str(caught.value)
            assert "larger budget" not in str(caught.value)
    with pytest.raises(hope.InfeasibleBudget, match=r"8 neurons have no BN.* inputs\.npy$"):
        hope.encode(Residual().eval(), EXAMPLE, params=0.5)  # its block alone is no run
    batches = [torch.randn(32, 3)]
    for calibrated in (hope.Absorb(calibration=batches), hope.Paper(calibration=batches)):
        assert hope.encode(net, EXAMPLE, density=0.5, method=calibrated).steps == 4
    with pytest.raises(
        hope.InvalidExample, match=r"8 neurons.*hope\.capacities\(\.\.\., calibration=batches\)"
    ):
        hope.capacities(net, EXAMPLE)
    assert hope.capacities(net, EXAMPLE, calibration=batches)["0"].shape == (8,)
    assert hope.capacities(nn.Linear(3, 2), EXAMPLE) == {}  # nothing that calibration would help
    with pytest.raises(hope.InfeasibleBudget, match=r"lists the reasons"):
        hope.encode(net, EXAMPLE, density=0.5, method="bn-scale")


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(
        hope.UnknownMethod, match=r"of Sequential, got 'head\*', which fits none: they are called 0"
    ):
        hope.encode(network(), EXAMPLE, density=0.5, exclude=["head*"])
    assert hope.encode(network(), EXAMPLE, density=0.5, exclude="2").settings["exclude"] == ["2"]
    for multiple in (0, 1.5, "8"):
        with pytest.raises(hope.UnknownMethod, match="must be a whole number from 1, got"):
            hope.encode(network(), EXAMPLE, density=0.5, multiple_of=multiple)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_has_as_many_steps_as_there_are_neurons_but_one_of_each_layer(method: str) -> None:
    assert len(hope.encode(network(), EXAMPLE, steps=7, method=method).trajectory) == 7
    with pytest.raises(hope.InfeasibleBudget, match="steps must be at most 7, got 8: take fewer steps"):
        hope.encode(network(), EXAMPLE, steps=8, method=method)


class Block(nn.Module):
    """Has no bias: one stays in the stream when it goes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm1d(6), nn.BatchNorm1d(6)])

    def forward(self, x: Tensor) -> Any:
        return x + self.norms[1](self.last(torch.relu(self.norms[0](self.first(x)))))


@pytest.mark.parametrize("exclude", ["", "1*"])
@pytest.mark.parametrize("unit", ["params", "macs"])
def test_the_least_that_is_reported_can_be_had(unit: str, exclude: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), Block(), Block(), nn.Linear(6, 2))
    net(torch.randn(64, 3))
    net.eval()
    given: dict[str, Any] = {"exclude": exclude or (), "progress": False}
    with pytest.raises(hope.InfeasibleBudget) as caught:
        hope.encode(net, EXAMPLE, **{unit: 1}, **given)
    least = int(str(caught.value).partition("(")[2].partition(" of")[0].replace(",", ""))
    small = hope.encode(net, EXAMPLE, **{unit: least}, **given)
    found = small.size.parameters if unit == "params" else small.size.macs
    assert found == least
    with pytest.raises(hope.InfeasibleBudget):
        hope.encode(net, EXAMPLE, **{unit: least - 1}, **given)
