"""Layer states read off real networks: capacities, Gram matrices, releases, and their symmetries."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.encoder.path import LayerPath
from hope.encoder.state import LayerState
from hope.surrogate.pairwise import warped_correlation
from hope.surrogate.signals import layer_state
from tests.support import randomise

EXAMPLE = torch.zeros(2, 3, 6, 6, dtype=torch.float64)


def network(activation: nn.Module | None = None) -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(3, 5, 3, bias=True), nn.BatchNorm2d(5), nn.ReLU(),
        nn.Conv2d(5, 7, 3), nn.BatchNorm2d(7, eps=1e-2), activation or nn.ReLU(), nn.Conv2d(7, 2, 2),
    )  # fmt: skip
    return randomise(net.double()).eval()  # type: ignore[return-value]


def state_of(net: nn.Module, name: str = "3") -> LayerState:
    anatomy = hope.inspect(net, EXAMPLE)
    tensors = {n: t.detach() for n, t in [*net.named_parameters(), *net.named_buffers()]}
    state = layer_state(anatomy.layer(name), anatomy, tensors)
    assert isinstance(state, LayerState)
    return state


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.LeakyReLU(0.2), nn.PReLU(7), nn.PReLU(), nn.SiLU(), nn.Identity()]
)
def test_capacity_is_the_norm_of_the_neurons_function(activation: nn.Module) -> None:
    """By Monte Carlo: y ~ N(β, γ²σ²/(σ² + ε)), through the activation, times the outgoing weights."""
    net = network(activation.double())
    state, bn, reader = state_of(net), net[4], net[6]
    spread = bn.weight.abs() * (bn.running_var / (bn.running_var + bn.eps)).sqrt()
    signal = bn.bias + spread * torch.randn(200_000, 7, dtype=torch.float64)
    with torch.no_grad():
        energy = net[5](signal).square().mean(dim=0)
    outgoing = reader.weight.square().sum(dim=(0, 2, 3))
    assert state.capacities.numpy() == pytest.approx((energy * outgoing).sqrt().detach().numpy(), rel=0.02)


def test_release_counts_weights_bias_and_four_bn_numbers() -> None:
    assert state_of(network()).release == 5 * 9 + 1 + 4 + 2 * 4


def effective(net: nn.Sequential) -> Tensor:
    conv, bn = net[3], net[4]
    gain = bn.weight / (bn.running_var + bn.eps).sqrt()
    bias = bn.bias - gain * (bn.running_mean - conv.bias)
    return torch.cat([gain[:, None] * conv.weight.flatten(1), bias[:, None]], dim=1).detach()


def test_gram_matrices_are_those_of_explicit_vectors() -> None:
    net = network()
    state, rows = state_of(net), effective(net)
    outgoing = net[6].weight.detach().movedim(1, 0).flatten(1)
    assert torch.allclose(state.inner, rows @ rows.T, rtol=1e-12)
    assert torch.allclose(state.outer, outgoing @ outgoing.T, rtol=1e-12)
    assert torch.allclose(state.bias, rows[:, -1], rtol=1e-12)


def test_what_only_looks_different_costs_the_same() -> None:
    """Rescaling a filter with its BN statistics, and λ, 1/λ across a neuron, change no capacity and no ρ̂."""
    net = network()
    for bn in (net[1], net[4]):
        bn.eps = 0.0
    other = copy.deepcopy(net)
    scale = torch.tensor([0.1, 3.0, 1.0, 7.0, 0.5, 2.0, 1.3], dtype=torch.float64)
    lam = torch.tensor([2.0, 0.3, 1.0, 5.0, 0.7, 1.1, 0.9], dtype=torch.float64)
    with torch.no_grad():
        conv, bn, reader = other[3], other[4], other[6]
        conv.weight *= scale[:, None, None, None]
        conv.bias *= scale
        bn.running_mean *= scale
        bn.running_var *= scale**2
        bn.weight *= lam
        bn.bias *= lam
        reader.weight /= lam[None, :, None, None]
    one, two = state_of(net), state_of(other)
    assert torch.allclose(one.capacities, two.capacities, rtol=1e-10)
    costs = [[m.cost for m in LayerPath(s, merge=None, kernel="zero-bias").moves()] for s in (one, two)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-9)
    assert torch.allclose(
        *(warped_correlation(s.inner - torch.outer(s.bias, s.bias), s.spread) for s in (one, two))
    )


def test_the_isotropic_prior_feels_a_rescaling_of_the_layer_before() -> None:
    """λ on a neuron before and 1/λ on the weights that read it change no output, but they change ρ̂."""
    net = network()
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[1].weight[0] *= 5
        other[1].bias[0] *= 5
        other[3].weight[:, 0] /= 5
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    assert torch.allclose(net(x), other(x), rtol=1e-9)
    one, two = state_of(net), state_of(other)
    assert torch.allclose(one.capacities, two.capacities, rtol=1e-10)
    rho = [warped_correlation(s.inner - torch.outer(s.bias, s.bias), s.spread) for s in (one, two)]
    assert (rho[0] - rho[1]).abs().max() > 1e-3


def test_only_single_filters_behind_one_bn_are_merged() -> None:
    assert state_of(network()).mergeable
    assert state_of(network(nn.LeakyReLU(0.1))).mergeable
    assert not state_of(network(nn.SiLU())).mergeable
