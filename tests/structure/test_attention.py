"""Attention heads, gated neurons and whatever else transformers are made of, as units."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hope
from tests.support import check_cut


class Heads(nn.Module):
    """Self-attention; keys and values may have fewer heads than queries.

    Args:
        heads, groups: of queries, of keys and values.
        eager: write the products out.
        norm: normalise queries head by head.
    """

    def __init__(self, heads: int = 4, groups: int = 4, eager: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.eager = heads, groups, eager
        self.q, self.k, self.v = nn.Linear(6, 3 * heads), nn.Linear(6, 3 * groups), nn.Linear(6, 3 * groups)
        self.norm = nn.LayerNorm(3) if norm else nn.Identity()
        self.o = nn.Linear(3 * heads, 6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, 3)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q = self.norm(q)
        if self.num_kv_heads < self.num_heads:
            k, v = (one.repeat_interleave(self.num_heads // self.num_kv_heads, 1) for one in (k, v))
        if self.eager:
            found = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        else:
            found = F.scaled_dot_product_attention(q, k, v)
        return self.o(found.transpose(1, 2).flatten(2))


class Fused(nn.Module):
    """Queries, keys and values of one weight; the module counts its heads."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.attn_dim = 4, 12
        self.qkv, self.proj = nn.Linear(6, 36), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).reshape(*x.shape[:2], 3, self.num_heads, 3).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*parts.unbind(0))
        return self.proj(found.transpose(1, 2).reshape(*x.shape[:2], self.attn_dim))


class Gated(nn.Module):
    """A gated MLP, its two halves in one weight or in two."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.up = nn.Linear(6, 16) if fused else nn.Linear(6, 8)
        self.gate = None if fused else nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, -1) if self.gate is None else (self.gate(x), self.up(x))
        return self.down(F.silu(gate) * up)


X = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_heads_are_units_with_all_their_places(eager: bool, norm: bool) -> None:
    anatomy, _ = check_cut(Heads(eager=eager, norm=norm), X, tolerance=1e-5)
    (unit,) = anatomy.layers
    assert (unit.name, unit.neurons, unit.channels) == ("q", 4, 3)
    assert {(part.tensor, part.role) for part in unit.places if part.tensor.endswith("weight")} == {
        ("q.weight", "out"), ("k.weight", "out"), ("v.weight", "out"), ("o.weight", "in"),
    }  # fmt: skip


def test_heads_that_share_keys_go_together() -> None:
    net = Heads(heads=6, groups=2)
    unit = hope.inspect(net, X).unit("q")
    assert (unit.neurons, unit.channels) == (2, 9)
    small = hope.cut(net, hope.inspect(net, X), [hope.Prune("q", 1)])
    assert (small.q.out_features, small.k.out_features, small.o.in_features) == (9, 3, 9)


def test_a_module_that_counts_its_heads_is_brought_up_to_date() -> None:
    net = Fused()
    anatomy, _ = check_cut(net, X, tolerance=1e-5)
    small = hope.cut(net, anatomy, [hope.Prune("qkv", [1, 2])])
    assert (small.num_heads, small.attn_dim, small.qkv.out_features, small.proj.in_features) == (2, 6, 18, 6)
    assert (net.num_heads, net.attn_dim) == (4, 12)


class Columns(nn.Module):
    """A bias for every head, a column each; the shape that it is looked up in is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.bias_shape = (5, 5, 4)
        self.table = nn.Parameter(torch.randn(9, 4))
        place = torch.arange(5)
        self.register_buffer("index", (place[:, None] - place + 4).flatten())

    def forward(self) -> Tensor:
        return self.table[self.index].view(self.bias_shape).permute(2, 0, 1)


class Deep(nn.Module):
    """Weights one level further down than the module that counts the heads, values wider than keys, a bias;
    beside them an MLP, as deep, that has nothing to do with heads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.key_attn_dim, self.val_attn_dim = 4, 8, 12
        self.qkv = nn.Sequential(nn.Linear(6, 2 * 8 + 12), nn.Identity())
        self.bias, self.proj = Columns(), nn.Sequential(nn.SiLU(), nn.Linear(12, 6))
        self.mlp = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).view(*x.shape[:2], self.num_heads, -1).transpose(1, 2).split([2, 2, 3], dim=3)
        found = F.scaled_dot_product_attention(*parts, attn_mask=self.bias())
        return self.mlp(self.proj(found.transpose(1, 2).reshape(*x.shape[:2], self.val_attn_dim)))


def test_what_counts_heads_may_stand_further_up() -> None:
    net = Deep()
    anatomy, _ = check_cut(net, X, tolerance=1e-5)
    assert [(unit.name, unit.neurons, unit.attends) for unit in anatomy.layers] == [
        ("qkv.0", 4, True), ("proj.1", 6, False), ("mlp.0", 8, False),
    ]  # fmt: skip
    small = hope.cut(net, anatomy, [hope.Prune("qkv.0", [1, 2]), hope.Prune("mlp.0", range(6))])
    assert (small.num_heads, small.key_attn_dim, small.val_attn_dim, small.bias.bias_shape) == (
        2,
        4,
        6,
        (5, 5, 2),
    )
    small = hope.cut(net, anatomy, [hope.Prune("mlp.0", range(4))])
    assert (small.num_heads, small.key_attn_dim) == (4, 8)


class Normed(nn.Module):
    """A BN over tokens, whatever their order."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(28)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x.flatten(0, 1)).view(x.shape)


def test_a_bn_in_front_of_attention_does_not_say_what_is_read_behind_it() -> None:
    """By the paper's method heads need calibration: a BN's numbers are not those of what attention makes."""
    net = Deep().eval()
    net.qkv[1] = Normed().eval()
    batches = [torch.randn(8, 5, 6) for _ in range(2)]
    with pytest.raises(hope.errors.InfeasibleBudget, match="need calibration"):
        hope.encode(net, X, steps=1, method=hope.Paper())
    encoding = hope.encode(net, X, steps=8, method=hope.Paper(calibration=batches))
    assert "qkv.0" in {step.name for step in encoding.trajectory.steps}


def test_heads_whose_width_the_code_takes_from_its_input_stay() -> None:
    class Bound(Fused):
        def forward(self, x: Tensor) -> Tensor:
            wide = torch.cat([x, x], dim=-1)
            self.attn_dim = wide.shape[-1]
            return super().forward(x)

    class Torch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.attention(x, x, x, need_weights=False)[0]
            return out

    for net in (Bound(), Torch().eval()):
        (why,) = {
            str(one.reason)
            for one in hope.inspect(net, X).skipped
            if "qkv" in one.name or "in_proj" in one.name
        }
        assert why.endswith(
            "(it takes the width of its heads from the attention's input, or has it written down)"
        )


@pytest.mark.parametrize("fused", [False, True])
def test_both_halves_of_a_gated_neuron_go_together(fused: bool) -> None:
    anatomy, _ = check_cut(Gated(fused), X, tolerance=1e-5)
    (unit,) = anatomy.layers
    assert unit.neurons == 8
    assert unit.release == 6 * 2 + 2 + 6


def test_heads_are_absorbed_and_fitted_from_a_few_inputs() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Heads(), nn.Linear(6, 6))
    batches = [torch.randn(8, 5, 6) for _ in range(8)]
    same = net[0]
    with torch.no_grad():  # the third head says what the first does
        for layer in (same.q, same.k, same.v):
            layer.weight[6:9], layer.bias[6:9] = layer.weight[:3], layer.bias[:3]
    encoding = hope.encode(net, X, steps=1, method=hope.Absorb(calibration=batches))
    assert encoding.trajectory.steps[0].removed in ((0,), (2,))
    torch.testing.assert_close(encoding.model(X), net(X), atol=1e-3, rtol=1e-3)


def test_a_conversion_that_changes_nothing_hides_no_block() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mlp = Rms(), Gated(fused=False)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.mlp(self.norm(x))

    class Rms(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.to(torch.float32)
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    net = nn.Sequential(Block(), Block())
    assert [block.name for block in hope.inspect(net, X).blocks] == ["0", "1"]
