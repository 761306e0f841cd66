"""The bounds hold for what severing and merging really do under the surrogate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hope
from tests.deft.nets import Residual, chain, images, made

SAMPLES = 20_000


@pytest.mark.parametrize("by", ["prune-cost", "capacity"])
@pytest.mark.parametrize("seed", range(3))
def test_every_bound_of_the_paper_is_above_the_one_before_it(by: str, seed: int) -> None:
    for net in (chain(), Residual()):
        part = hope.deft.partition(made(net, seed), images(2), percentile=50, by=by)
        for bound in part.bounds.groups:
            assert bound.shock is None or bound.shock <= bound.directed * (1 + 1e-9)
            assert bound.directed <= bound.severed * (1 + 1e-9)
            if by == "capacity":
                assert bound.uniform is not None
                assert bound.severed <= bound.uniform * (1 + 1e-6) + 1e-12
            else:
                assert bound.uniform is None
        total = part.bounds.uniform
        assert total is None or total >= part.bounds.cumulative * (1 - 1e-6)


def _signals(net: nn.Module, bn: str, correlation: float) -> Tensor:
    """(samples, channels) behind BN and ReLU, as the BN describes them, with some correlation between all."""
    module = net.get_submodule(bn)
    spread = module.weight.abs() * torch.sqrt(module.running_var / (module.running_var + module.eps))
    common = torch.randn(SAMPLES, 1)
    own = torch.randn(SAMPLES, len(spread))
    y = module.bias + spread * (correlation**0.5 * common + (1 - correlation) ** 0.5 * own)
    return torch.relu(y).detach()


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("by", ["prune-cost", "capacity"])
def test_the_masked_networks_shock_is_within_its_bound(by: str, correlation: float) -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=60, by=by, merge=False)
    tuning = hope.deft.prepare(net, part)
    for layer, bn, reader in (("0", "1", "4"), ("4", "5", "9")):
        g = _signals(net, bn, correlation)
        lost = (
            net.get_parameter(f"{reader}.weight") - tuning.model.get_parameter(f"{reader}.weight")
        ).detach()
        assert lost.abs().sum() > 0
        sent = g @ lost.movedim(1, 0).flatten(1)  # what core units no longer get, all taps side by side
        shock = sent.square().sum(dim=1).mean().sqrt().item()
        bound = part.bounds[layer]
        assert 0 < shock <= bound.directed * 1.02
        assert shock <= bound.severed * 1.02


def test_the_shock_is_that_of_sampled_signals() -> None:
    net = nn.Sequential(
        nn.Linear(40, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, 2),
    )
    with torch.no_grad():
        net[0].weight.copy_(torch.linalg.qr(torch.randn(40, 6))[0].T)  # orthogonal filters: no correlation
    part = hope.deft.partition(made(net), torch.zeros(2, 40), percentile=70, merge=False)
    tuning = hope.deft.prepare(net, part)
    g = _signals(net, "1", 0.0)
    lost = (net.get_parameter("3.weight") - tuning.model.get_parameter("3.weight")).detach()
    shock = (g @ lost.T).square().sum(dim=1).mean().sqrt().item()
    assert part.bounds["0"].shock == pytest.approx(shock, rel=0.03)


def test_merging_loses_no_more_than_its_distortion() -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=80)
    assert any(merge.layer == "9" for merge in part.merges)
    # δ adds up over merges, each measured under its own pair's surrogate; ‖f_i + f_j‖ is its trivial bound
    capacities = hope.capacities(net, images(2))
    for name, freed in part.freed.items():
        assert 0 < part.bounds[name].merging <= 2 * float(capacities[name].sum())
        assert len(freed) == sum(merge.layer == name for merge in part.merges)


def test_what_only_the_head_reads_has_no_core_behind_it() -> None:
    part = hope.deft.partition(made(chain()), images(2), percentile=60, merge=False)
    last = part.bounds["9"]
    assert last.behind is None
    assert last.share == 0
    assert last.directed == 0
    assert last.head > 0
