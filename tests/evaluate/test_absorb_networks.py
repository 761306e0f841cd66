"""Absorption on whole networks: surgery against the surrogate, lossless removals, replay, calibration."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import hope
from hope.geometry.projection import RIDGE
from hope.schedule.search_space import SearchSpace
from hope.statistics.bn_recalibration import recalibrated_copy
from hope.statistics.patterns import coloured_noise
from tests.support import randomise

EXAMPLE = torch.zeros(2, 3, 12, 12)


class Residual(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + x)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        Residual(),
        Residual(),
        nn.Conv2d(8, 16, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    randomise(net, seed)
    settle(net)
    return net.eval()


def settle(net: nn.Module) -> None:
    """BN statistics of signals with the spectrum of images, as training would leave them."""
    net.train()
    for bn in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        bn.reset_running_stats()
        bn.momentum = None
    with torch.no_grad():
        for seed in range(4):
            net(coloured_noise(64, 3, (12, 12), seed))


def inputs(seed: int = 9, count: int = 64) -> torch.Tensor:
    return coloured_noise(count, 3, (12, 12), seed)


def error(one: nn.Module, other: nn.Module) -> float:
    with torch.no_grad():
        a, b = one(inputs()), other(inputs())
    return float((a - b).norm() / (a - a.mean(dim=0)).norm())


def test_a_twin_is_absorbed_without_loss() -> None:
    net = network()
    conv, bn, after = net[1].conv1, net[1].bn1, net[1].conv2  # type: ignore[union-attr]
    with torch.no_grad():
        for tensor in (conv.weight, bn.weight, bn.bias, bn.running_mean, bn.running_var):  # type: ignore[union-attr]
            tensor[7] = tensor[2]  # type: ignore[index]
        after.weight[:, 7] = torch.randn_like(after.weight[:, 7])  # type: ignore[union-attr, operator, index]
    settle(net)
    net.eval()
    encoding = hope.encode(net, EXAMPLE, steps=1, method="absorb", evict=False)
    (step,) = encoding.trajectory
    assert (step.kind, step.name) == ("absorb", "1.conv1")
    assert set(step.neurons) <= {2, 7}
    assert error(net, encoding.model) < 5 * RIDGE  # lossless up to the ridge


def test_a_dead_neuron_and_a_constant_are_absorbed_without_loss_behind_a_1x1_consumer() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4)
    )
    randomise(net, 1)
    settle(net)
    net.eval()
    with torch.no_grad():
        net[1].weight[4] = 0  # type: ignore[union-attr, operator, index]
        net[1].bias[4] = 1.5  # type: ignore[union-attr, operator, index]
        net[1].weight[1], net[1].bias[1] = 1e-3, -1.0  # type: ignore[union-attr, operator, index]
    encoding = hope.encode(net, EXAMPLE, steps=2, method=hope.Absorb(calibration=None))
    assert {step.neurons[0] for step in encoding.trajectory} == {1, 4}
    assert error(net, encoding.model) < 5 * RIDGE


def test_absorbing_beats_pruning_the_same_neurons() -> None:
    net = network(3)
    encoding = hope.encode(net, EXAMPLE, density=0.6, method="absorb", evict=False)
    actions = encoding.trajectory.steps[: encoding.steps]
    pruned = hope.cut(net, encoding.anatomy, [hope.Prune(a.name, a.removed) for a in actions])
    assert error(net, encoding.model) < 0.7 * error(net, pruned)


def test_measured_moments_are_those_of_the_inputs_and_one_propagated_sample_per_channel() -> None:
    net = network(4)
    anatomy, x = hope.inspect(net, EXAMPLE), inputs(5, 128)
    prior, statistics = (
        SearchSpace.of(net, EXAMPLE, anatomy, method, evict=False).statistics.input_statistics["8.weight"]
        for method in (hope.Absorb(calibration=None), hope.Absorb(calibration=[x]))
    )
    with torch.no_grad():
        seen = recalibrated_copy(net, [x])[:8](x).double()  # type: ignore[index]
    trust = 128 / (128 + seen.shape[1])
    mean = trust * seen.mean(dim=0) + (1 - trust) * prior.mean
    covariance = trust * torch.cov(seen.T, correction=0) + (1 - trust) * prior.covariance
    assert torch.allclose(statistics.mean, mean, atol=1e-5)
    assert torch.allclose(statistics.covariance, covariance, atol=1e-5)


def test_calibration_helps_on_the_inputs_it_saw() -> None:
    plain = calibrated = 0.0
    for seed in range(4):
        net = network(seed)
        settings = {"density": 0.8, "evict": False}
        plain += error(net, hope.encode(net, EXAMPLE, **settings).model)  # type: ignore[arg-type]
        with_inputs = hope.encode(net, EXAMPLE, method=hope.Absorb(calibration=[inputs()]), **settings)  # type: ignore[arg-type]
        calibrated += error(net, with_inputs.model)
    assert calibrated < 0.9 * plain


def test_any_moment_saved_loaded_and_replayed(tmp_path: Path) -> None:
    net = network(7)
    encoding = hope.encode(net, EXAMPLE, density=0.4, method="absorb")
    encoding.save(tmp_path / "run")
    saved = hope.load(tmp_path / "run", network(99))
    assert error(encoding.model, saved) == 0
    again = hope.load(tmp_path / "run", net, density=0.7)
    assert error(encoding.at(density=0.7), again) == 0
    earlier = hope.encode(net, EXAMPLE, density=0.7, method="absorb")
    assert error(earlier.model, again) == 0


def test_the_argument_is_not_changed_and_runs_repeat() -> None:
    net = network(8)
    before = copy.deepcopy(net.state_dict())
    one = hope.encode(net, EXAMPLE, density=0.4, method="absorb")
    other = hope.encode(net, EXAMPLE, density=0.4, method="absorb")
    assert one.trajectory.steps == other.trajectory.steps
    assert one.fidelity == other.fidelity
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("kind", ["depthwise", "concat", "flatten", "gate", "no bias", "grouped"])
def test_other_shapes_of_network(kind: str) -> None:
    torch.manual_seed(2)

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
            self.b = nn.Sequential(nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5), nn.SiLU())
            self.c = nn.Conv2d(11, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(torch.cat([self.a(x), self.b(x)], dim=1))  # type: ignore[no-any-return]

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            self.squeeze, self.excite = nn.Linear(8, 3), nn.Linear(3, 8)
            self.c = nn.Conv2d(8, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x)
            gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3))))))
            return self.c(x * gate[:, :, None, None])  # type: ignore[no-any-return]

    start = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    nets: dict[str, nn.Module] = {
        "depthwise": nn.Sequential(
            *start,
            nn.Conv2d(8, 8, 3, groups=8, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(),
            nn.Conv2d(8, 4, 1),
        ),
        "concat": Joined(),
        "gate": Gated(),
        "flatten": nn.Sequential(*start, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 4)),
        "no bias": nn.Sequential(*start, nn.Conv2d(8, 4, 3, bias=False)),
        "grouped": nn.Sequential(
            *start, nn.Conv2d(8, 12, 3, groups=4), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 4, 1)
        ),
    }
    net = nets[kind]
    ours = theirs = 0.0
    for seed in range(3):
        randomise(net, seed)
        settle(net)
        net.eval()
        encoding = hope.encode(net, EXAMPLE, density=0.75, method="absorb")
        actions = encoding.trajectory.steps[: encoding.steps]
        assert encoding.steps > 0
        pruned = hope.cut(net, encoding.anatomy, [hope.Prune(a.name, a.removed) for a in actions])
        ours, theirs = ours + error(net, encoding.model), theirs + error(net, pruned)
    assert ours < theirs


def test_layers_without_bn_are_left_alone_until_there_is_calibration() -> None:
    net = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3)).eval()
    example = torch.zeros(2, 4)
    plan = SearchSpace.of(net, example, hope.inspect(net, example), hope.Absorb())
    assert "calibration" in str(plan.left_alone["0"])
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    encoding = hope.encode(net, example, density=0.6, method=hope.Absorb(calibration=[x]))
    pruned = hope.cut(net, encoding.anatomy, [hope.Prune(a.name, a.removed) for a in encoding.trajectory])
    with torch.no_grad():
        right, ours, theirs = net(x), encoding.model(x), pruned(x)
    assert (ours - right).norm() < 0.5 * (theirs - right).norm()


def test_repaired_variances_are_those_of_the_signals() -> None:
    """On Gaussian inputs to a single layer, the repaired BN describes what it really gets."""
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 5, bias=False), nn.BatchNorm1d(5)
    )
    randomise(net, 3)
    x = torch.randn(20_000, 6, generator=torch.Generator().manual_seed(4))
    net.train()
    for bn in (net[1], net[4]):
        bn.reset_running_stats()  # type: ignore[operator, union-attr]
        bn.momentum = None  # type: ignore[assignment, union-attr]
    with torch.no_grad():
        net(x)
    net.eval()
    encoding = hope.encode(net, x[:2], density=0.5, method=hope.Absorb(calibration=None))
    small = encoding.model
    with torch.no_grad():
        z = small[:4](x)  # type: ignore[index]
    bn = small[4]  # type: ignore[index]
    assert torch.allclose(z.mean(dim=0), bn.running_mean, atol=0.1 * float(z.std()))  # type: ignore[arg-type, union-attr]
    assert torch.allclose(z.var(dim=0), bn.running_var, rtol=0.15)  # type: ignore[arg-type, union-attr]


def test_weights_that_grow_are_reported() -> None:
    net = network(3)
    encoding = hope.encode(net, EXAMPLE, density=0.6, method="absorb", evict=False)
    assert set(encoding.growth) == set(encoding.input_statistics)
    assert all(0 < times < 4 for times in encoding.growth.values())
    assert "grew" not in str(encoding)
    with torch.no_grad():
        encoding.model[8].weight *= 1000  # type: ignore[index, operator, union-attr]
    again = dataclasses.replace(encoding)
    vars(again)["model"] = encoding.model
    assert "weight grew by more than 4 times, most 8.weight" in str(again)
    assert "use a larger budget or calibration=batches if it is too low" in " ".join(str(again).split())
    calibrated = dataclasses.replace(encoding, method=hope.Absorb(calibration=[EXAMPLE]))
    vars(calibrated)["model"] = encoding.model
    assert "use a larger budget if it is too low" in " ".join(str(calibrated).split())
