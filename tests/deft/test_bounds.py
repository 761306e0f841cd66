"""The bounds hold for what severing and merging really do under the surrogate."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.deft.freed import consolidate
from tests.deft.nets import Residual, chain, images, made

SAMPLES = 20_000


@pytest.mark.parametrize("by", ["prune-cost", "capacity"])
@pytest.mark.parametrize("merge", ["sum", "pair"])
@pytest.mark.parametrize("seed", range(6))
def test_every_bound_of_the_paper_is_above_the_one_before_it(by: str, merge: str, seed: int) -> None:
    for net in (chain(), Residual()):
        part = hope.deft.partition(made(net, seed), images(2), percentile=50, by=by, merge=merge)
        for bound in part.bounds.units:
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


def test_what_is_directed_at_the_core_and_at_the_head_adds_up() -> None:
    """Σ ‖w_j‖·√K(j, j) over slack: of the weights that a mask takes from the core, and of the head's."""
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=60, merge=False)
    masked = hope.deft.prepare(net, part).model
    for layer, reader in (("0", "4"), ("4", "9"), ("9", "12")):
        weight = net.get_parameter(f"{reader}.weight").detach().movedim(1, 0).flatten(1).double()
        energy = (part.capacities[layer] / weight.norm(dim=1)) ** 2
        lost, bound = torch.zeros_like(weight), part.bounds[layer]
        if reader != part.head:
            lost = weight - masked.get_parameter(f"{reader}.weight").detach().movedim(1, 0).flatten(1)
            assert bool(lost.any())
        directed = (lost.norm(dim=1) * energy.sqrt()).sum().item()
        assert bound.directed == pytest.approx(directed, rel=1e-6)
        assert bound.head == pytest.approx(bound.severed if reader == part.head else 0, rel=1e-6)


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


def _lost(net: nn.Module, other: nn.Module, x: Tensor, rows: Tensor) -> float:
    """‖Δs‖ at some outputs of the second layer of dense networks, over sampled inputs."""
    with torch.no_grad():
        one, two = (model[3](model[2](model[1](model[0](x))))[:, rows] for model in (net, other))
    return (one - two).square().sum(dim=1).mean().sqrt().item()


@pytest.mark.parametrize("percentile", [30, 60, 90])
@pytest.mark.parametrize("seed", range(4))
def test_sum_merges_lose_their_distortion_and_all_is_within_the_unified_bound(
    seed: int, percentile: int
) -> None:
    torch.manual_seed(seed)
    net = made(
        nn.Sequential(
            nn.Linear(40, 8), nn.BatchNorm1d(8), nn.ReLU(),
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(),
            nn.Linear(8, 5),
        ),
        seed,
    )  # fmt: skip
    x = torch.randn(SAMPLES, 40)
    with torch.no_grad():  # the BN tells the truth, so the surrogate is exact for what the second layer reads
        z = net[0](x)
        net[1].running_mean.copy_(z.mean(dim=0))
        net[1].running_var.copy_(z.var(dim=0))
    part = hope.deft.partition(net, x[:2], percentile=percentile)
    bound, core = part.bounds["0"], part.core["3"]
    alone = {}
    for layer in ("0", "3"):
        alone[layer] = copy.deepcopy(net)
        merges = [merge for merge in part.merges if merge.name == layer]
        consolidate(alone[layer], part.anatomy, merges, {layer: part.freed.get(layer, ())})
    count = len(part.freed.get("0", ()))
    merged = _lost(net, alone["0"], x, torch.ones(8, dtype=torch.bool))
    if count == 1:
        assert merged == pytest.approx(bound.merging, rel=0.03)
    assert merged <= bound.merging * 1.03 + 1e-6
    assert (bound.merging > 0) == (count > 0)
    # what the second layer merges is not the first one's loss
    assert 0 < _lost(alone["3"], hope.deft.prepare(net, part).model, x, core) <= (
        (bound.severed + bound.merging) * 1.03
    )  # fmt: skip


def test_a_core_of_unknown_capacity_is_left_out_and_reported() -> None:
    net = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, 8), nn.ReLU(),
        nn.Linear(8, 3),
    )  # fmt: skip
    part = hope.deft.partition(made(net), torch.zeros(2, 6), percentile=60, core="6", merge=False)
    assert part.bounds.left_out == ("3",)
    assert part.bounds["3"].readers_capacity is None
    assert part.bounds["3"].severed > 0
    assert part.bounds.cumulative == part.bounds["0"].share > 0
    assert "not included, because the capacity of their readers is unknown: 3" in " ".join(str(part).split())


def test_what_only_the_head_reads_has_no_core_behind_it() -> None:
    part = hope.deft.partition(made(chain()), images(2), percentile=60, merge=False)
    last = part.bounds["9"]
    assert last.readers_capacity is None
    assert last.share == 0
    assert last.directed == 0
    assert last.head > 0


@pytest.mark.parametrize("by", ["prune-cost", "capacity"])
def test_the_cumulative_bound_is_the_definition_worked_out_by_hand(by: str) -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=60, by=by, merge=False)
    norms = {}
    for layer, bn, reader in (("0", "1", "4"), ("4", "5", "9"), ("9", "10", "12")):
        energy = torch.relu(_sampled(net, bn)).square().mean(dim=0)
        weight = net.get_parameter(f"{reader}.weight").detach().double()
        norms[layer] = weight.movedim(1, 0).flatten(1).norm(dim=1) * energy.sqrt()
    total = uniform = 0.0
    for layer, behind in (("0", "4"), ("4", "9")):
        core, slack = norms[behind][part.core[behind]].sum(), norms[layer][~part.core[layer]]
        assert 0 < len(slack) < len(norms[layer])
        assert float(core) < 0.99 * float(norms[behind].sum())  # slack behind it is no part of E_core
        assert part.bounds[layer].readers_capacity == pytest.approx(float(core), rel=0.02)
        assert part.bounds[layer].severed == pytest.approx(float(slack.sum()), rel=0.02)
        total += float(slack.sum() / core)
        uniform += float(len(slack) * part.threshold / core)
    assert part.bounds.cumulative == pytest.approx(total, rel=0.02)
    if by == "capacity":
        assert part.bounds.uniform == pytest.approx(uniform, rel=0.02)


def _sampled(net: nn.Module, bn: str) -> Tensor:
    """(samples, channels) in front of the activation: the BN's own Gaussians, spread out evenly."""
    module = net.get_submodule(bn)
    levels = (torch.arange(SAMPLES, dtype=torch.float64) + 0.5) / SAMPLES
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0).icdf(levels)
    spread = module.weight.abs() * torch.sqrt(module.running_var / (module.running_var + module.eps))
    return (module.bias + spread * normal[:, None]).detach()
