"""Made-up inputs: patterns, and what absorption learns from them by default."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

import hope
from hope.statistics.patterns import coloured_noise, dead_leaves


def network(seed: int = 0) -> nn.Sequential:
    """Two layers with the BN statistics of noise that went through them."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    for bn in (net[1], net[4]):
        nn.init.uniform_(bn.weight, 0.5, 1.5)
        nn.init.normal_(bn.bias)
        bn.momentum = None
    net.train()
    with torch.no_grad():
        net(2 * coloured_noise(512, 3, (12, 12), seed=7) + 0.5)
    return net.eval()


def test_leaves_are_reproducible_and_have_edges() -> None:
    one, other = dead_leaves(32, 3, 24, 24, seed=1), dead_leaves(32, 3, 24, 24, seed=1)
    assert torch.equal(one, other)
    assert not torch.equal(one, dead_leaves(32, 3, 24, 24, seed=2))
    assert float(one.std()) == pytest.approx(1, abs=1e-3)
    noise = coloured_noise(32, 3, (24, 24), seed=1)

    def kurtosis(image: Tensor) -> float:
        step = image.diff(dim=-1)
        return float((step**4).mean() / (step**2).mean() ** 2)

    assert kurtosis(noise) < 4 < 6 < kurtosis(one)  # steps are rare and large; those of noise are Gaussian


def test_channels_of_leaves_are_related() -> None:
    colours = torch.corrcoef(dead_leaves(256, 3, 16, 16).transpose(0, 1).flatten(1))
    assert bool((colours - torch.eye(3)).abs().max() < 0.97)
    assert bool(colours.min() > 0.75)


def test_absorption_learns_from_patterns_by_default(tmp_path: Path) -> None:
    net, example = network(), torch.zeros(1, 3, 12, 12)
    x = 2 * coloured_noise(512, 3, (12, 12), seed=9) + 0.5
    errors = {}
    for name, method in (("default", hope.Absorb()), ("closed", hope.Absorb(calibration=None))):
        encoding = hope.encode(net, example, density=0.5, method=method, progress=False)
        with torch.no_grad():
            errors[name] = float((encoding.model(x) - net(x)).square().mean())
    assert errors["default"] < 0.8 * errors["closed"]
    encoding = hope.encode(net, example, density=0.5, progress=False)
    assert encoding.method.to_dict()["calibration"] == "patterns"
    assert sum(len(batch[0]) for batch in encoding.inputs) == 256
    encoding.save(tmp_path / "run")
    got = hope.load(tmp_path / "run", network(), density=0.75)
    assert torch.equal(got(x), encoding.at(density=0.75)(x))


def test_where_patterns_cannot_be_run_moments_are_propagated() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] > 2:
                raise ValueError("two at a time")
            return self.net(x)

    encoding = hope.encode(One().eval(), torch.zeros(1, 3, 12, 12), density=0.5, progress=False)
    assert not encoding.inputs
    assert any("propagated only" in note and "two at a time" in note for note in encoding.notes)
    assert encoding.size.neurons == 14


def test_patterns_tell_nothing_of_networks_without_bn() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    with pytest.raises(hope.InfeasibleBudget, match="calibration"):
        hope.encode(net, torch.zeros(1, 4), density=0.5, progress=False)


def test_a_network_that_was_cut_by_hand_is_fitted_without_data() -> None:
    net, example = network(), torch.zeros(1, 3, 12, 12)
    small = hope.cut(net, hope.inspect(net, example), [hope.Prune("0", [0, 3, 5]), hope.Prune("3", [1, 2])])
    x = 2 * coloured_noise(512, 3, (12, 12), seed=9) + 0.5

    def error(one: nn.Module) -> float:
        with torch.no_grad():
            return float((one(x) - net(x)).square().mean())

    for word in ("patterns", "dream"):
        assert error(hope.refit(net, small, word, example=example, progress=False)) < 0.3 * error(small)
    with pytest.raises(hope.UnknownMethod, match='"patterns" or "dream"'):
        hope.refit(net, small, "noise", example=example)


def test_dreams_stop_where_real_batches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    net, example = network(), torch.zeros(1, 3, 12, 12)
    net[4].running_mean += 0.25 * net[4].running_var.sqrt()  # real data had more of everything
    made: list[int] = []
    step = torch.optim.Adam.step

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", counted)
    hope.dream(net, example, count=64, steps=200, progress=False)
    assert 0 < len(made) < 100


def test_dreams_see_the_first_half_of_a_network_first() -> None:
    net, example = network(), torch.zeros(1, 3, 12, 12)
    for k in (1, 4):
        net[k].running_mean += 2 * net[k].running_var.sqrt()  # so far away that it takes all steps
    calls = Counter[int]()

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.convolution.default:
                calls[len(args[1])] += not isinstance(args[0], FakeTensor)
            return func(*args, **(kwargs or {}))

    distance, more = [], []
    for steps in (0, 12):
        calls.clear()
        with Counted():
            (batch, *_) = hope.dream(net, example, count=32, steps=steps, progress=False)
        more.append(calls[12] - calls[16])
        heard = net[:4](batch[0]).detach().transpose(0, 1).flatten(1)
        distance.append(float(((heard.mean(dim=1) - net[4].running_mean) ** 2 / net[4].running_var).mean()))
    assert more == [
        1,
        1 + 5,
    ]  # the scale of the input; of twelve steps, all but one of the first half
    assert distance[1] < 0.95 * distance[0]  # the second half is seen, too


class Remembering(nn.Module):
    """It keeps features on the way, and counts: left in the middle, it would be another."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.kept, self.depth = network(), list[Tensor](), 0

    def forward(self, x: Tensor) -> Tensor:
        self.depth += 1
        self.kept.append(self.net[0](x))
        x = self.net[1](self.kept[-1])
        for layer in self.net[2:4]:
            x = layer(x)
        x = self.net[4](input=x) + 0 * self.kept.pop().mean()
        self.depth -= 1
        return self.net[5:](x)  # type: ignore[no-any-return]


class Unseen(nn.Module):
    """The first BN sees nothing of the image."""

    def __init__(self, closed: bool = False) -> None:
        super().__init__()
        self.table, self.bn, self.net, self.closed = nn.Embedding(8, 5), nn.BatchNorm1d(5), network(), closed

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.closed and torch.is_grad_enabled()):
            return self.net(x) + self.bn(self.table(ids))  # type: ignore[no-any-return]


def test_a_model_is_not_left_in_the_middle() -> None:
    net = Remembering().eval()
    for k in (1, 4):
        net.net[k].running_mean += net.net[k].running_var.sqrt()
    hope.dream(net, torch.zeros(1, 3, 12, 12), count=32, steps=8, progress=False)
    assert (net.depth, net.kept) == (0, [])


@pytest.mark.parametrize("closed", [False, True])
def test_dreams_go_on_where_the_first_norms_see_no_image(closed: bool) -> None:
    net, example = Unseen(closed).eval(), (torch.zeros(1, dtype=torch.long), torch.zeros(1, 3, 12, 12))
    net.net[4].running_mean += net.net[4].running_var.sqrt()
    start, end = (hope.dream(net, example, count=32, steps=steps, progress=False)[0] for steps in (0, 6))
    assert torch.equal(start[1], end[1]) == closed  # no gradient leads there


def test_numbers_among_the_inputs_stay() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, image: Tensor, scale: Tensor) -> Tensor:
            return self.net(image) * scale

    example = {"image": torch.zeros(1, 3, 12, 12), "scale": torch.tensor(2.0)}
    batches = hope.dream(Scaled().eval(), example, count=40, steps=1, progress=False)
    assert [len(batch["image"]) for batch in batches] == [32, 8]
    assert all(float(batch["scale"]) == 2 for batch in batches)
