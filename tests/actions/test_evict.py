"""What is left of an evicted block: its skip, the bias if there is one, and the activation that matters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.actions.evict import ZeroOutput
from tests.support import assert_same, randomise

EXAMPLE = torch.randn(2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))


@pytest.mark.parametrize("bias", [None, (-0.5, 0.3, -1.0, 0.0)], ids=["no bias", "a bias"])
@pytest.mark.parametrize("positive", [True, False], ids=["behind a ReLU", "behind no ReLU"])
def test_an_evicted_block_computes_its_activation_unless_that_does_nothing(
    positive: bool, bias: tuple[float, ...] | None
) -> None:
    """relu(x + bias); it is left out only for a positive x without a bias."""
    stem = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU() if positive else nn.Tanh())
    net = randomise(nn.Sequential(stem, Block(), nn.Conv2d(4, 2, 1)).double()).eval()
    small = hope.cut(net, hope.inspect(net, EXAMPLE), [hope.Evict("1", bias)])
    with torch.no_grad():
        x = net[0](EXAMPLE)
        shift = 0 if bias is None else torch.tensor(bias, dtype=torch.float64)[:, None, None]
        assert (x + shift).min() < 0 or (positive and bias is None)
        assert_same([small(EXAMPLE)], [net[2](torch.relu(x + shift))], 1e-12)
    left = [type(module) for module in small[1].modules()]
    assert (nn.ReLU in left) == (not positive or bias is not None)
    assert not any("conv" in name or "bn" in name for name, _ in small[1].named_parameters())


@pytest.mark.parametrize("returns", [0, 1, 3])
@pytest.mark.parametrize("full", [False, True])
def test_a_silenced_module_returns_as_many_things_as_it_did(returns: int, full: bool) -> None:
    bias = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)[:, None, None]
    out = ZeroOutput(full=full, returns=returns, bias=bias)(EXAMPLE, "ignored", more=1)
    first = out[0] if returns else out
    assert first.shape == (EXAMPLE.shape if full else (1, 3, 1, 1))
    assert torch.equal(first, bias.expand_as(first))
    assert not returns or (isinstance(out, tuple) and out[1:] == (None,) * (returns - 1))


def test_a_cache_that_holds_no_keys_of_a_layer_is_left_alone() -> None:
    """As of models that have attentions in some layers only."""
    from hope.actions.evict import ZeroOutput

    class Cache:
        layers = (object(),)

        def get_seq_length(self) -> int:
            return 0

    replacement = ZeroOutput(full=True, returns=0, layer=0)
    assert not replacement(torch.randn(2, 5, 4), past_key_values=Cache()).any()
