"""Small networks whose middle layer is read by the paper's method."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import hope
from hope.methods.pairs import PaperState
from hope.methods.paper import paper_state
from hope.reasons import Reason
from hope.statistics.checkpoint import Checkpoint
from hope.structure.sizes import ParameterSavings
from tests.support import randomise

IMAGES = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
VECTORS = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def conv(activation: nn.Module | None = None, *, bias: bool = True, affine: bool = True) -> nn.Sequential:
    """The second layer, "3", has 7 neurons, 5·3·3 weights in and 2·2·2 out."""
    net = nn.Sequential(
        nn.Conv2d(3, 5, 3, bias=bias), nn.BatchNorm2d(5), nn.ReLU(),
        nn.Conv2d(5, 7, 3, bias=bias), nn.BatchNorm2d(7, eps=1e-2, affine=affine), activation or nn.ReLU(),
        nn.Conv2d(7, 2, 2),
    )  # fmt: skip
    return randomise(net.double()).eval()  # type: ignore[return-value]


def linear(activation: nn.Module | None = None) -> nn.Sequential:
    net = nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(),
        nn.Linear(5, 7), nn.BatchNorm1d(7, eps=1e-2), activation or nn.ReLU(), nn.Linear(7, 3),
    )  # fmt: skip
    return randomise(net.double()).eval()  # type: ignore[return-value]


def read(net: nn.Module, anatomy: hope.Anatomy, name: str) -> PaperState | Reason:
    """A layer's state with these weights."""
    release = ParameterSavings(anatomy).unit(name)
    return paper_state(anatomy.unit(name), Checkpoint.of(net, anatomy), release)


def state_of(net: nn.Module, name: str = "3", example: Tensor | None = None) -> PaperState:
    if example is None:
        example = VECTORS if isinstance(net, nn.Sequential) and isinstance(net[0], nn.Linear) else IMAGES
    anatomy = hope.inspect(net, example)
    state = read(net, anatomy, name)
    assert isinstance(state, PaperState), state
    return state


def energies(bn: nn.Module, activation: Callable[[Tensor], Tensor], draws: int = 200_000) -> Tensor:
    """E Ψ(y)² by Monte Carlo under the surrogate: y ~ N(β, γ²σ²/(σ² + ε)), one column per neuron."""
    spread = bn.weight.abs() * (bn.running_var / (bn.running_var + bn.eps)).sqrt()
    noise = torch.randn(draws, len(spread), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return activation(bn.bias + spread * noise).square().mean(dim=0)


def outgoing(*weights: Tensor) -> Tensor:
    """Outgoing weights of all readers, (neurons, everything)."""
    return torch.cat([weight.detach().movedim(1, 0).flatten(1) for weight in weights], dim=1)
