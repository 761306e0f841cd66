"""The paper's own reading beside the mended one: the kernel, the deviation, the BN inversion.

Every number that a mending hangs on is written down here, not imported: a changed threshold, kernel or clamp
must fail.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.actions import Rewrite
from hope.geometry.parent import Side, alignments, parents
from hope.methods.method import NetworkStatistics
from hope.rewrite.apply import cut
from hope.statistics.checkpoint import Checkpoint
from tests.support import randomise

EXAMPLE = torch.linspace(-1, 1, 2 * 3 * 5 * 5, dtype=torch.float64).reshape(2, 3, 5, 5)
THRESHOLD = 0.99  # |ρ̂| from which on the mended reading takes the exact kernel


def printed(rho: float) -> float:
    """𝓘(ρ̂) of the paper's Equation "approx_kernel"."""
    return (math.sqrt(1 - rho**2) + (math.pi - math.acos(rho)) * rho) / math.pi


def self_kernel(mean: float, spread: float) -> float:
    c = mean / spread
    return spread**2 * ((1 + c * c) * _cdf(c) + c * _pdf(c))


def _cdf(c: float) -> float:
    return (1 + math.erf(c / math.sqrt(2))) / 2


def _pdf(c: float) -> float:
    return math.exp(-c * c / 2) / math.sqrt(2 * math.pi)


def pair(rho: float, means: tuple[float, float] = (1.5, -1.0)) -> tuple[Side, Side, Tensor, Tensor]:
    """Two neurons of unit spread whose filters are such that ρ̂ is as asked; equal outgoing weights.

    With unit norms and spreads κ = c/(1 − c²) for the cosine c, and ρ̂ = 2κ/(1 + √(1 + 4κ²)) gives c = ρ̂.
    """

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64)

    sides = [
        Side(*map(number, (mean, 1.0, 0.0, self_kernel(mean, 1.0), mean, 1.0 + mean**2, 1.0)))
        for mean in means
    ]
    return sides[0], sides[1], number(rho + means[0] * means[1]), number(1.0)


def reached(rho: float, kernel: str) -> tuple[float, float]:
    """K(u, i)/√(K(u, u)·K(i, i)) of the parent and each child."""
    i, j, inner, outer = pair(rho)
    found = parents(i, j, inner, outer, kernel=kernel)
    return tuple(  # type: ignore[return-value]
        float(value / torch.sqrt(found.energy * side.energy))
        for value, side in zip(found.reach, (i, j), strict=True)
    )


def correlations(rho: float) -> tuple[float, float]:
    """ρ̂ of the parent with each child, from the recipe y_u = z₁y_i + z₂y_j."""
    i, j, inner, outer = pair(rho)
    z1, z2 = (float(z) for z in parents(i, j, inner, outer, kernel="printed").rows)
    spread = math.sqrt(z1**2 + z2**2 + 2 * z1 * z2 * rho)
    return (z1 + z2 * rho) / spread, (z1 * rho + z2) / spread


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.7, THRESHOLD - 1e-4, THRESHOLD + 1e-4, 0.9999])
def test_the_literal_kernel_is_the_printed_one_everywhere(rho: float) -> None:
    for got, toward in zip(reached(rho, "printed"), correlations(rho), strict=True):
        assert got == pytest.approx(printed(max(-1.0, min(1.0, toward))), abs=1e-9)


def test_the_mended_kernel_is_exact_above_the_threshold_only() -> None:
    below, above = THRESHOLD - 1e-4, THRESHOLD + 1e-4
    assert reached(below, "zero-bias") == reached(below, "printed")
    assert reached(above, "zero-bias") == reached(above, "exact")
    assert reached(above, "zero-bias") != pytest.approx(reached(above, "printed"), rel=0.05)
    assert reached(-above, "zero-bias") == reached(-above, "exact")


def test_the_literal_alignment_has_no_jump() -> None:
    def b(rho: float, kernel: str) -> float:
        return float(alignments(*pair(rho), kernel=kernel))

    below, above = THRESHOLD - 1e-6, THRESHOLD + 1e-6
    assert b(above, "printed") == pytest.approx(b(below, "printed"), rel=1e-4)
    assert abs(b(above, "zero-bias") / b(below, "zero-bias") - 1) > 0.02


def test_a_signal_that_does_not_move_is_exact_only_in_the_mended_reading() -> None:
    i, j, inner, outer = pair(0.0)
    still = j._replace(spread=torch.zeros((), dtype=torch.float64))
    mended, literal = (
        float(parents(i, still, inner, outer, kernel=kernel).alignment) for kernel in ("zero-bias", "printed")
    )
    assert mended == float(parents(i, still, inner, outer, kernel="exact").alignment)
    assert mended != pytest.approx(literal, rel=1e-3)


def network(eps: float) -> nn.Sequential:
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=eps), nn.ReLU(), nn.Conv2d(4, 5, 2))
    return randomise(made.double()).eval()  # type: ignore[return-value]


@pytest.mark.parametrize("reading", ["mended", "literal"])
def test_the_deviation_is_gamma_literally_and_what_the_bn_gives_otherwise(reading: str) -> None:
    net = network(eps=0.5)
    encoding = hope.encode(net, EXAMPLE, density=0.5, method=hope.Paper(reading=reading))
    bn = net[1]
    gamma = bn.weight.detach().abs()
    spread = gamma if reading == "literal" else gamma * (bn.running_var / (bn.running_var + 0.5)).sqrt()
    sent = net[3].weight.detach().square().sum(dim=(0, 2, 3)).sqrt()
    want = [
        math.sqrt(self_kernel(float(m), float(s))) * float(o)
        for m, s, o in zip(bn.bias.detach(), spread, sent, strict=True)
    ]
    assert encoding.measures["0"] == pytest.approx(want, rel=1e-10)


def merged(spread: float, *, clamp: bool, eps: float = 1e-3) -> tuple[nn.Sequential, nn.Sequential]:
    net = network(eps)
    step = hope.Merge("0", 1, 3, (0.3, -1.2), (0.5, 2.0), spread)
    return net, cut(net, hope.inspect(net, EXAMPLE), [step], rewrite=Rewrite(clamp=clamp))  # type: ignore[return-value]


def test_the_printed_inversion_above_the_clamp() -> None:
    net, small = merged(0.7, clamp=True)
    bn = small[1]
    assert bn.weight[1].item() == pytest.approx(0.7, rel=1e-12)
    assert bn.running_var[1].item() == pytest.approx(0.7**2 - 1e-3, rel=1e-12)
    with torch.no_grad():
        before, after = net[:2](EXAMPLE), small[:2](EXAMPLE)
    assert torch.allclose(after[:, 1], 0.3 * before[:, 1] - 1.2 * before[:, 3], rtol=0, atol=1e-10)


def test_below_the_clamp_the_printed_parent_is_a_constant() -> None:
    spread = 0.9 * math.sqrt(1e-3)  # s² < ε
    net, small = merged(spread, clamp=True)
    bn = small[1]
    assert bn.running_var[1].item() == 0
    assert bn.weight[1].item() == pytest.approx(spread, rel=1e-12)
    assert not small[0].weight[1].any()
    with torch.no_grad():
        after = small[:2](EXAMPLE)[:, 1]
    beta = 0.3 * net[1].bias[1] - 1.2 * net[1].bias[3]
    assert torch.allclose(after, beta.detach().expand_as(after), atol=1e-12)
    _, mended = merged(spread, clamp=False)
    with torch.no_grad():
        assert mended[:2](EXAMPLE)[:, 1].std() > 1e-3  # the mended parent keeps its signal


def test_a_run_writes_its_parents_as_it_reads() -> None:
    """The saved method decides: literal runs clamp, mended runs do not."""
    assert hope.Paper(reading="literal").rewrite.clamp
    assert not hope.Paper().rewrite.clamp
    net = network(1e-3)
    anatomy = hope.inspect(net, EXAMPLE)
    known = hope.Paper(reading="literal").collect(net, EXAMPLE, anatomy)
    assert isinstance(known, NetworkStatistics)
    assert known.numbers == Checkpoint(known.numbers.tensors, anatomy.eps, literal=True)
    with pytest.raises(hope.UnknownMethod, match="reading"):
        hope.Paper(reading="free")


@pytest.mark.parametrize("what", ["kernel", "deviation", "parent"])
def test_each_mending_can_be_undone_alone(what: str) -> None:
    method, net = hope.Paper(reading=f"literal {what}"), network(0.5)
    known = method.collect(net, EXAMPLE, hope.inspect(net, EXAMPLE))
    assert known.numbers.literal == (what == "deviation")
    assert method.rewrite.clamp == (what == "parent")
    assert method.path.keywords["kernel"] == ("printed" if what == "kernel" else "zero-bias")
