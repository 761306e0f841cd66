"""GroupNorm in front of the activation: a group depends on no other group, so it is a neuron."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hope
from tests.support import assert_same, masked, randomise, run


class Net(nn.Module):
    """A convolution, a norm, and two that read it."""

    def __init__(self, groups: int, *, affine: bool = True) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(groups, 8, affine=affine)
        self.second, self.other = nn.Conv2d(8, 6, 3), nn.Conv2d(8, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.second(x)).mean((2, 3)) + self.other(x).mean((2, 3)))


def _images(count: int = 16, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, 7, 7, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("groups", [8, 4, 2])
def test_removing_groups_is_silencing_them(groups: int, tmp_path: Path) -> None:
    net, x = randomise(Net(groups)).eval(), _images()
    encoding = hope.encode(net, x[:1], density=0.6, method=hope.Paper(calibration=[x]))
    steps = [step for step in encoding.trajectory.steps[: encoding.steps] if step.name == "first"]
    assert steps
    assert {step.kind for step in steps} == {"prune"}
    gone = [hope.Prune(step.name, step.removed) for step in encoding.trajectory.steps[: encoding.steps]]
    assert_same(run(encoding.model, x), run(masked(net, encoding.anatomy, gone), x), 1e-5)
    norm = encoding.model.get_submodule("norm")
    assert (norm.num_groups, norm.num_channels) == (groups - len(steps), 8 - 8 // groups * len(steps))
    encoding.save(tmp_path)
    assert torch.equal(hope.load(tmp_path, randomise(Net(groups)).eval())(x), encoding.model(x))


@pytest.mark.parametrize("groups", [8, 4, 2])
def test_the_capacity_of_a_group_is_what_sampled_signals_have(groups: int) -> None:
    net, x = randomise(Net(groups)).eval(), _images(64)
    found = hope.capacities(net, x[:1], calibration=[x])["first"]
    with torch.no_grad():
        y = net.norm(net.first(x)).double().movedim(1, 0).flatten(1)
    mean, spread = y.mean(dim=1), y.std(dim=1, correction=0)
    drawn = mean[:, None] + spread[:, None] * torch.randn(8, 200_000, dtype=torch.float64)
    energy = drawn.clamp(min=0).square().mean(dim=1)
    sent = sum(w.detach().double().square().sum((0, 2, 3)) for w in (net.second.weight, net.other.weight))
    assert found == pytest.approx((energy * sent).reshape(groups, -1).sum(dim=1).sqrt(), rel=0.01)
    true = (y.clamp(min=0).square().mean(dim=1) * sent).reshape(groups, -1).sum(dim=1).sqrt()
    assert found == pytest.approx(true, rel=0.15)  # signals are only nearly Gaussian


def test_absorption_removes_groups_too() -> None:
    net, x = randomise(Net(4)).eval(), _images(64)
    encoding = hope.encode(net, x[:1], density=0.7, calibration=[x])
    assert encoding.model.get_submodule("norm").num_groups < 4
    assert encoding.model(x).isfinite().all()


@pytest.mark.parametrize("groups", [8, 4])
def test_slack_groups_learn_and_core_groups_do_not_notice(groups: int) -> None:
    net, x = randomise(Net(groups)).eval(), _images()
    part = hope.deft.partition(net, x[:2], percentile=50, merge=False, calibration=[x])
    core = part.core["first"]
    assert 0 < int(core.sum()) < len(core) == groups
    tuning = hope.deft.prepare(net, part, head=3)
    with tuning.source() as model:
        source = model(x)
    optimizer = torch.optim.AdamW(tuning.model.parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(3):
        tuning.model.train()(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        before, after = (m.norm(m.first(x)) for m in (net, tuning.model))
    same = (before == after).flatten(2).all(dim=2).all(dim=0).reshape(groups, -1)
    assert torch.equal(same.all(dim=1), core)
    assert tuning.moved() == []
    with tuning.source() as model:
        assert torch.equal(model(x), source)


def test_groups_that_nothing_counts_are_kept_with_the_reason() -> None:
    anatomy = hope.inspect(randomise(Net(4, affine=False)).eval(), _images(1))
    why = {one.name: one.reason.cause for one in anatomy.skipped}
    assert why["first"] is hope.Cause.FIXED_WIDTH


class Block(nn.Module):
    """Pre-activation, with a norm of groups on the stream."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, 12), nn.Conv2d(12, 8, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, 8), nn.Conv2d(8, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(torch.relu(self.norm2(self.conv1(torch.relu(self.norm1(x))))))


def _residual(*groups: int) -> nn.Module:
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4)
    blocks = [Block(one) for one in groups]
    return randomise(nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), *blocks, *ends)).eval()


def test_a_stream_in_groups_loses_whole_groups() -> None:
    net, x = _residual(4, 4), _images()
    method = hope.Paper(calibration=[x], merge=None)
    encoding = hope.encode(net, x[:1], params=0.5, method=method, streams=True, evict=False)
    gone = [hope.Prune(step.name, step.removed) for step in encoding.trajectory.steps[: encoding.steps]]
    assert "0" in {step.name for step in gone}
    assert_same(run(encoding.model, x), run(masked(net, encoding.anatomy, gone), x), 1e-5)


def test_streams_of_groups_that_do_not_fit_are_kept_whole() -> None:
    net, x = _residual(4, 3), _images()
    anatomy = hope.inspect(net, x[:1], streams=True)
    why = {one.name: one.reason.cause for one in anatomy.skipped}
    assert why["0"] is hope.Cause.ALL_AT_ONCE
    part = hope.deft.partition(net, x[:2], percentile=50, merge=False, calibration=[x])
    assert part.core["0"].all()
    assert not all(mask.all() for mask in part.core.values())
