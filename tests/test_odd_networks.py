"""Odd networks: the right result, or a refusal that names the layer; never a raw error, never NaN."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import hope
from hope.demo import DigitsNet
from hope.storage.run import fingerprint
from tests.support import randomise

EXAMPLE = torch.zeros(1, 1, 8, 8)
METHODS = ("absorb", "paper")
Change = Callable[[nn.Sequential], object]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first: list[nn.Module] = [nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()]
    second = [nn.Conv2d(6, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    return randomise(nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(256, 3))).eval()


def fill(index: int, name: str, value: float, some: slice = slice(None)) -> Change:
    """Set the entries of a tensor."""
    return lambda net: getattr(net[index], name)[some].fill_(value)


def everything(value: float) -> Change:
    return lambda net: [parameter.fill_(value) for parameter in net.parameters()]


NUMBERS: dict[str, Change] = {
    f"{name} = {value:g}{' in one' if one else ''}": fill(1, name, value, slice(1) if one else slice(None))
    for name, value, one in [
        *(("weight", value, one) for value in (1e-45, 1e-30, 1e18, 1e30) for one in (False, True)),
        ("running_var", 1e-45, False),
        ("running_var", 0.0, True),
        ("running_var", 1e30, False),
        ("running_mean", -1e18, False),
        ("bias", 1e18, False),
        ("bias", -100.0, False),
    ]
} | {
    "weights of 1e-40": everything(1e-40),
    "weights of 1e30": everything(1e30),
    "weights of 0": everything(0.0),
    "BN without data": lambda net: net[1].reset_running_stats(),
    "no ε and no variance": lambda net: (setattr(net[1], "eps", 0.0), net[1].running_var.zero_()),
}


def check(net: nn.Module, example: Tensor, method: str, folder: Path) -> None:
    """Encode, save and load: right, or refused in one line."""
    before = {name: value.clone() for name, value in net.state_dict().items()}
    inputs = torch.randn(4, *example.shape[1:], generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        finite = bool(net(inputs.clone()).isfinite().all())
    with suppress(hope.HopeError):
        compare(net, hope.encode(net, example, params=0.7, method=method), inputs, finite, folder)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


def compare(net: nn.Module, encoding: hope.Encoding, inputs: Tensor, finite: bool, folder: Path) -> None:
    """A run that was not refused has finite numbers, and is the same after it was saved."""
    small = encoding.model
    assert "nan" not in str(encoding).split()
    assert all(step.cost >= 0 for step in encoding.trajectory.steps)
    with torch.no_grad():
        assert not finite or bool(small(inputs).isfinite().all())
    loaded = hope.load(encoding.save(folder), net)
    for name, value in small.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NUMBERS)
def test_extreme_numbers(name: str, method: str, tmp_path: Path) -> None:
    net = network()
    with torch.no_grad():
        NUMBERS[name](net)
    check(net, EXAMPLE, method, tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("tensor", ["3.weight", "1.weight", "1.running_var"])
def test_numbers_that_are_none_are_refused_by_name(tensor: str, value: float) -> None:
    net = network()
    net.state_dict()[tensor].view(-1)[0] = value
    with pytest.raises(hope.UnsupportedModel, match=rf"{tensor} must be finite, got NaN or infinite"):
        hope.encode(net, EXAMPLE, params=0.5)


STRUCTURES: dict[str, Change] = {
    "weight norm": lambda net: parametrizations.weight_norm(net[3]),
    "a pruning mask": lambda net: prune.l1_unstructured(net[3], "weight", 0.5),
    "a forward hook": lambda net: net[3].register_forward_hook(lambda module, given, out: 2 * out),
    "a pre-hook": lambda net: net[3].register_forward_pre_hook(lambda module, given: (given[0] + 1,)),
    "no momentum": lambda net: setattr(net[1], "momentum", None),
    "a buffer that is NaN": lambda net: net.register_buffer("unused", torch.full((3,), float("nan"))),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_odd_structures(name: str, tmp_path: Path) -> None:
    net = network()
    STRUCTURES[name](net)
    if name == "a buffer that is NaN":
        assert hope.encode(net, EXAMPLE, params=0.7).steps > 0
        return
    check(net, EXAMPLE, "absorb", tmp_path)


def test_half_precision_weights_on_a_float_example_are_refused_with_the_types() -> None:
    with pytest.raises(hope.InvalidExample, match="pass an example of the shape, dtype and device"):
        hope.encode(network().bfloat16(), EXAMPLE, params=0.5)


def test_one_neuron(tmp_path: Path) -> None:
    net = randomise(nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1), nn.ReLU(), nn.Linear(1, 3))).eval()
    check(net, torch.zeros(2, 4), "absorb", tmp_path)


class InPlace(nn.Module):
    """Writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.add_(1))  # type: ignore[no-any-return]


def test_a_forward_that_writes_into_its_input_is_refused_and_the_example_restored() -> None:
    example = EXAMPLE.clone()
    with pytest.raises(hope.UnsupportedModel, match="InPlace must not write into its input"):
        hope.inspect(InPlace().eval(), example)
    assert torch.equal(example, EXAMPLE)


def test_a_run_leaves_its_original_as_it_is() -> None:
    net = randomise(DigitsNet(), 3).eval()
    before = fingerprint(net)
    _ = hope.encode(net, EXAMPLE, density=0.5).model
    assert hope.storage.run.fingerprint(net) == before
