"""States of layers and blocks read off real networks: Gram matrices, releases, anchors, and what they do not
depend on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hope
from hope.geometry.pairwise import warped_correlation
from hope.methods.pairs import PairPath
from hope.methods.paper import AnchoredBranch
from hope.reasons import Cause
from hope.schedule.search_space import SearchSpace
from tests.methods.layers import IMAGES, VECTORS, conv, linear, outgoing, state_of
from tests.support import assert_same, randomise, run

# ---- pair geometry -------------------------------------------------------------------------------------


def effective(net: nn.Sequential) -> Tensor:
    """(N, n + 1): what the activation sees is rows·[x, 1], the filter's own bias included."""
    layer, bn = net[3], net[4]
    gain = bn.weight / (bn.running_var + bn.eps).sqrt()
    bias = bn.bias - gain * (bn.running_mean - (layer.bias if layer.bias is not None else 0))
    return torch.cat([gain[:, None] * layer.weight.flatten(1), bias[:, None]], dim=1).detach()


@pytest.mark.parametrize("make", [conv, linear, lambda: conv(bias=False)], ids=["conv", "linear", "no bias"])
def test_gram_matrices_are_those_of_explicit_vectors(make: Callable[[], nn.Sequential]) -> None:
    net = make()
    state, rows = state_of(net), effective(net)
    outs = outgoing(net[6].weight)
    biases = torch.outer(rows[:, -1], rows[:, -1])
    assert state.inner.numpy() == pytest.approx((rows @ rows.T).numpy(), abs=1e-12)
    assert state.outer.numpy() == pytest.approx((outs @ outs.T).numpy(), abs=1e-12)
    filters = rows[:, :-1]
    assert (state.inner - biases).numpy() == pytest.approx((filters @ filters.T).numpy(), abs=1e-12)
    assert state.bias.numpy() == pytest.approx(rows[:, -1].numpy(), rel=1e-12)
    assert state.mean.numpy() == pytest.approx(net[4].bias.detach().numpy(), rel=1e-12)
    assert (state.energy * state.outer.diagonal()).sqrt().numpy() == pytest.approx(state.capacities.numpy())


def test_effective_rows_are_what_the_activation_sees() -> None:
    net = linear()
    with torch.no_grad():
        inputs, seen = net[:3](VECTORS), net[:5](VECTORS)
    ones = torch.ones(len(inputs), 1, dtype=torch.float64)
    assert_same([torch.cat([inputs, ones], dim=1) @ effective(net).T], [seen], 1e-12)


def test_a_bias_in_front_of_the_bn_is_part_of_the_signal() -> None:
    """It shifts b; shifted along, the running mean takes it back, and nothing has changed."""
    net = conv()
    before = state_of(net)
    with torch.no_grad():
        net[3].bias += torch.linspace(-1, 1, 7, dtype=torch.float64)
    shifted = state_of(net)
    gain = (net[4].weight / (net[4].running_var + net[4].eps).sqrt()).detach()
    assert torch.allclose(shifted.bias - before.bias, gain * torch.linspace(-1, 1, 7, dtype=torch.float64))
    assert torch.allclose(shifted.capacities, before.capacities, rtol=1e-12)  # the BN still says mean = β
    with torch.no_grad():
        net[4].running_mean += torch.linspace(-1, 1, 7, dtype=torch.float64)
    again = state_of(net)
    assert torch.allclose(again.bias, before.bias, rtol=1e-9)
    assert torch.allclose(again.inner, before.inner, rtol=1e-9)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.1), nn.PReLU(7), nn.PReLU(), nn.Identity()])
def test_slopes_of_positively_homogeneous_activations_are_read(activation: nn.Module) -> None:
    net = conv(copy.deepcopy(activation).double())
    if isinstance(activation, nn.PReLU):
        with torch.no_grad():
            net[5].weight.copy_(torch.linspace(0.1, 0.7, activation.num_parameters, dtype=torch.float64))
    below = -net[5](-torch.ones(1, 7, 1, 1, dtype=torch.float64)).detach().flatten()
    assert torch.allclose(state_of(net).slope, below, rtol=1e-12)


def test_only_single_filters_behind_one_bn_are_merged() -> None:
    assert state_of(conv()).mergeable
    assert state_of(linear(nn.LeakyReLU(0.1))).mergeable
    assert not state_of(conv(nn.SiLU())).mergeable
    assert not state_of(conv(affine=False)).mergeable


class TwoReaders(nn.Module):
    """One layer, read by a convolution and, through something else, by another."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.conv, self.bn, self.between = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), between
        self.one, self.other = nn.Conv2d(6, 2, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.bn(self.conv(x)))
        return self.one(x), self.other(self.between(x))


@pytest.mark.parametrize(
    ("between", "plain"), [(nn.AvgPool2d(2), True), (nn.Conv2d(6, 6, 3, groups=6), False)]
)
def test_a_layer_is_merged_only_if_all_its_readers_see_plain_signals(between: nn.Module, plain: bool) -> None:
    net = randomise(TwoReaders(between).double()).eval()
    assert len(hope.inspect(net, IMAGES).unit("conv").readers) == 2
    assert state_of(net, "conv", IMAGES).mergeable == plain


# ---- releases ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "release"),
    [
        (conv(), 5 * 9 + 1 + 4 + 2 * 4),
        (conv(bias=False), 5 * 9 + 4 + 2 * 4),
        (linear(), 5 + 1 + 4 + 3),
        (conv(nn.PReLU(7)), 5 * 9 + 1 + 4 + 2 * 4 + 1),
        (conv(nn.PReLU()), 5 * 9 + 1 + 4 + 2 * 4),
    ],
    ids=["conv", "no bias", "linear", "slopes", "one slope"],
)
def test_release_is_weights_in_and_out_the_bias_and_four_bn_numbers(net: nn.Sequential, release: int) -> None:
    assert state_of(net.double()).release == release


# ---- symmetries ----------------------------------------------------------------------------------------

SCALE = torch.tensor([2.0, 0.3, 1.0, 5.0, 0.7, 1.1, 0.9], dtype=torch.float64)


def rescaled_filters(net: nn.Sequential) -> None:
    """All filters by 3, with the statistics and ε that follow."""
    net[3].weight *= 3
    net[3].bias *= 3
    net[4].running_mean *= 3
    net[4].running_var *= 9
    net[4].eps *= 9


def mirrored_filters(net: nn.Sequential) -> None:
    """γ, w and μ change sign."""
    for tensor in (net[3].weight, net[3].bias, net[4].running_mean, net[4].weight):
        tensor[[1, 4, 5]] *= -1


def rescaled_across(net: nn.Sequential) -> None:
    """λ in front of the activation, 1/λ behind it."""
    net[4].weight *= SCALE
    net[4].bias *= SCALE
    net[6].weight /= SCALE.reshape(1, -1, *[1] * (net[6].weight.ndim - 2))


def rescaled_outputs(net: nn.Sequential) -> None:
    """All outgoing weights by one factor: not the same function, but the same layer up to its size."""
    net[6].weight *= 40


@pytest.mark.parametrize("change", [rescaled_filters, mirrored_filters, rescaled_across, rescaled_outputs])
@pytest.mark.parametrize("make", [conv, linear])
def test_what_only_looks_different_is_the_same(
    make: Callable[..., nn.Sequential], change: Callable[[nn.Sequential], None]
) -> None:
    """Capacities, prune costs, and alignments and distances of all pairs, by both merges and both kernels."""
    net = make(nn.LeakyReLU(0.05))
    other = copy.deepcopy(net)
    with torch.no_grad():
        change(other)
    size = 40.0 if change is rescaled_outputs else 1.0
    example = VECTORS if make is linear else IMAGES
    if size == 1:
        assert_same(run(other, example), run(net, example), 1e-9)
    one, two = state_of(net), state_of(other)
    assert (two.capacities / size).numpy() == pytest.approx(one.capacities.numpy(), rel=1e-9)
    for merge, kernel in ((None, "exact"), ("pair", "zero-bias"), ("pair", "exact"), ("sum", "exact")):
        first, second = (PairPath(state, merge=merge, kernel=kernel) for state in (one, two))
        if merge is not None:
            unit = first.capacities.max()
            assert second.alignment / size == pytest.approx(first.alignment, abs=1e-9 * unit)
            assert second.distance / size == pytest.approx(first.distance, abs=1e-7 * unit)
        moves, others = list(first.steps()), list(second.steps())
        assert [m.neurons for m in others] == [m.neurons for m in moves]
        assert [m.cost for m in others] == pytest.approx([m.cost for m in moves], rel=1e-6)


def test_the_isotropic_prior_feels_a_rescaling_of_the_layer_before() -> None:
    """λ on a neuron before and 1/λ on the weights that read it change no output and no capacity here, but ρ̂
    and with it the pairs: the warp takes the inputs as isotropic.
    """
    net = conv()
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[1].weight[0] *= 5
        other[1].bias[0] *= 5
        other[3].weight[:, 0] /= 5
    assert_same(run(other, IMAGES), run(net, IMAGES), 1e-9)
    one, two = state_of(net), state_of(other)
    assert torch.allclose(one.capacities, two.capacities, rtol=1e-10)
    rho = [warped_correlation(s.inner - torch.outer(s.bias, s.bias), s.spread) for s in (one, two)]
    assert (rho[0] - rho[1]).abs().max() > 0.01
    distances = [PairPath(s, merge="pair", kernel="exact").distance for s in (one, two)]
    first, second = (distance[np.triu_indices(7, 1)] for distance in distances)
    assert np.abs(first - second).max() > 1e-3 * first.max()


# ---- blocks --------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """A stem and two bottleneck blocks: the skip carries the stem's BN, then the first block's last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(Bottleneck(), Bottleneck())
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


class Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.branch(x))


def test_blocks_are_held_against_the_bn_that_wrote_what_their_skip_carries() -> None:
    net = randomise(Residual().double()).eval()
    plan = SearchSpace.of(net, IMAGES, hope.inspect(net, IMAGES), hope.Paper())
    assert len(plan.states) == len(plan.anatomy.layers)
    bns = (net.stem[1], net.blocks[0].branch[7])
    for number, (branch, bn) in enumerate(zip(plan.branches, bns, strict=True)):
        assert isinstance(branch, AnchoredBranch)
        identity = (bn.weight**2 + bn.bias**2).sqrt().sum().item()
        assert branch.anchors == pytest.approx([identity, identity], rel=1e-12)
        assert branch.layers == tuple(f"blocks.{number}.branch.{k}" for k in (0, 3))
        assert branch.release == 8 * 4 + 4 * 6 * 9 + 4 * (4 + 6 + 8)  # W₁, W₂, all BN numbers; not W₃


class PreActivation(nn.Module):
    """A stem without a BN and two pre-activation blocks: BN, ReLU, convolution, twice; a BN at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1, bias=False),
                nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1, bias=False),
            )
            for _ in range(2)
        )  # fmt: skip
        self.norm, self.head = nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(torch.relu(self.norm(x)))


def test_pre_activation_blocks_are_held_against_what_their_first_bn_remembers_of_the_skip() -> None:
    """E_identity is the RMS of what the skip carries, on real inputs too, once the BNs have seen them."""
    net = randomise(PreActivation().double())
    inputs = torch.randn(64, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # averages, here of one batch
            module.reset_running_stats()
    seen: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _, x: seen.append(x[0])) for block in net.blocks]
    with torch.no_grad():
        net.train()(inputs)
    for hook in hooks:
        hook.remove()
    net.eval()
    plan = SearchSpace.of(net, IMAGES, hope.inspect(net, IMAGES), hope.Paper())
    for number, (branch, carried) in enumerate(zip(plan.branches, seen, strict=True)):
        assert isinstance(branch, AnchoredBranch)
        block = plan.anatomy.block(branch.name)
        assert (block.skip_bn, block.read_bn) == (None, f"blocks.{number}.0")
        rms = carried.square().mean(dim=(0, 2, 3)).sqrt().sum().item()
        assert branch.anchors == pytest.approx([rms], rel=1e-3)  # σ² is the unbiased one
        state = next(state for state in plan.states if state.name == branch.layers[0])
        assert branch.cost([4], [state.capacity]) == pytest.approx(4 * state.capacity / rms, rel=1e-3)


def test_a_skip_that_no_bn_tells_of_leaves_each_layer_its_initial_capacity() -> None:
    net = randomise(PreActivation().double()).eval()
    for block in net.blocks:
        block[0] = nn.Identity()
    plan = SearchSpace.of(net, IMAGES, hope.inspect(net, IMAGES), hope.Paper())
    first = plan.branches[0]
    assert isinstance(first, AnchoredBranch)
    assert plan.anatomy.block(first.name).read_bn is None
    capacity = {state.name: state.capacity for state in plan.states}
    assert first.anchors == tuple(capacity[name] for name in first.layers)
    assert first.cost([4], first.anchors) == 4  # as many as there are: E_active = E_init


class Odd(nn.Module):
    """A block beside a projection, and one of which nothing is known: its branch has no BN."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.projected = nn.Sequential(
            nn.Conv2d(8, 5, 1), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 6, 1), nn.BatchNorm2d(6)
        )
        self.skip = nn.Sequential(nn.Conv2d(8, 6, 1), nn.BatchNorm2d(6))
        self.bare = nn.Sequential(nn.Conv2d(6, 7, 1), nn.ReLU(), nn.Conv2d(7, 6, 1))
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.stem(x)))
        x = torch.relu(self.projected(x) + self.skip(x))
        return self.head(x + self.bare(x))


def test_blocks_beside_a_projection_or_without_capacities_have_no_price() -> None:
    net = randomise(Odd().double()).eval()
    plan = SearchSpace.of(net, IMAGES, hope.inspect(net, IMAGES), hope.Paper())
    projected, bare = plan.anatomy.blocks
    assert (projected.skip, bare.skip) == ("projection", "identity")
    known = hope.Paper().collect(net, IMAGES, plan.anatomy)
    found = [hope.Paper().branch(block, known, plan.states) for block in (projected, bare)]
    assert [getattr(one, "cause", None) for one in found] == [Cause.PROJECTION, Cause.NO_CAPACITY]
    assert not plan.branches


class Parts(nn.Module):
    """An activation that is written out."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        nn.functional.softsign,
        nn.functional.tanhshrink,
        lambda x: x * torch.sigmoid(x),
        lambda x: torch.sigmoid(x) * x,
        lambda x: torch.relu(x) + x,
        lambda x: x * x,
    ],
)
def test_activations_in_several_parts_are_not_taken_for_one_of_them(
    function: Callable[[Tensor], Tensor],
) -> None:
    net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), Parts(function), nn.Linear(12, 4)).eval()
    x = torch.randn(64, 6)
    with pytest.raises(hope.InfeasibleBudget, match="activations whose moments are not known"):
        hope.encode(net, x, density=0.5, method=hope.Paper())
    measured = hope.encode(net, x, density=0.5, method=hope.Paper(calibration=[x], merge=None))
    said = function(net[1](net[0](x))).detach().double()  # type: ignore[operator]
    heard = torch.tensor(measured.measures["0"], dtype=torch.float64)
    wanted = said.square().mean(dim=0).sqrt() * net[3].weight.detach().double().norm(dim=0)  # type: ignore
    assert float((heard * wanted).sum() / (heard.norm() * wanted.norm())) > 0.9
