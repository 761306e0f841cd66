"""Removing neurons for real is the same as nobody reading them."""

from __future__ import annotations

import copy
import random

import hypothesis.strategies as st
import torch
from hypothesis import assume, given
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves

import hope
from tests.properties.networks import Net, build, example, networks
from tests.support import assert_same, check_cut, masked, random_cut, run

TOLERANCE = 1e-10
seeds = st.integers(0, 1000)


@given(networks(), seeds)
def test_cutting_a_third_of_the_neurons_equals_masking_them(net: Net, seed: int) -> None:
    check_cut(build(net), example(net), tolerance=TOLERANCE, fraction=0.3, seed=seed)


@given(networks(), seeds)
def test_cutting_all_neurons_but_one_equals_masking_them(net: Net, seed: int) -> None:
    check_cut(build(net), example(net), tolerance=TOLERANCE, fraction=1.0, seed=seed)


@given(networks(), seeds)
def test_one_layer_can_be_cut_alone(net: Net, seed: int) -> None:
    model, x = build(net), example(net)
    anatomy = hope.inspect(model, x)
    for action in random_cut(anatomy, 0.5, seed):
        small = hope.cut(model, anatomy, [action])
        assert_same(run(small, x), run(masked(model, anatomy, [action]), x), TOLERANCE)
        released = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in small.parameters())
        if len(action.neurons) == 1:
            assert released == anatomy.unit(action.name).release


@given(networks(), seeds)
def test_a_cut_network_learns_what_the_masked_one_learns(net: Net, seed: int) -> None:
    model, x = build(net), example(net)
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
    anatomy = hope.inspect(model, x)
    actions = random_cut(anatomy, 0.3, seed)
    small, full = hope.cut(model, anatomy, actions), masked(model, anatomy, actions)
    for one in (small, full):
        leaves = [leaf.square().sum() for leaf in tree_leaves(one.train()(x))]
        torch.stack(leaves).sum().backward()
    with torch.no_grad():  # the full network's gradients, cut like its weights
        for parameter in full.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    wanted = dict(hope.cut(full, anatomy, actions).named_parameters())
    scale = max(parameter.abs().max().item() for parameter in wanted.values())
    for name, parameter in small.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert (grad - wanted[name]).abs().max() <= TOLERANCE * scale, name


@given(networks(), seeds)
def test_the_order_of_prunes_does_not_matter(net: Net, seed: int) -> None:
    model = build(net)
    anatomy = hope.inspect(model, example(net))
    actions = [hope.Prune(a.name, n) for a in random_cut(anatomy, 0.5, seed) for n in a.neurons]
    shuffled = random.Random(seed).sample(actions, len(actions))
    one, other = (
        hope.cut(model, anatomy, actions).state_dict(),
        hope.cut(model, anatomy, shuffled).state_dict(),
    )
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)


@given(networks(), seeds)
def test_cutting_in_two_goes_equals_cutting_in_one(net: Net, seed: int) -> None:
    model, x = build(net), example(net)
    anatomy = hope.inspect(model, x)
    first = random_cut(anatomy, 0.3, seed)
    middle = hope.cut(model, anatomy, first)
    again = hope.inspect(middle, x)
    gone = {action.name: action.neurons for action in first}
    left = {
        layer.name: [n for n in range(layer.neurons) if n not in gone[layer.name]] for layer in anatomy.layers
    }
    assert {layer.name: layer.neurons for layer in again.layers if len(left.get(layer.name, ())) > 1} == {
        name: len(kept) for name, kept in left.items() if len(kept) > 1
    }
    second = [action for action in random_cut(again, 0.4, seed) if len(left.get(action.name, ())) > 1]
    assume(second)
    whole = first + [hope.Prune(a.name, [left[a.name][n] for n in a.neurons]) for a in second]
    one, two = hope.cut(model, anatomy, whole).state_dict(), hope.cut(middle, again, second).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


@given(networks(), seeds)
def test_permuting_a_layers_neurons_permutes_nothing_but_indices(net: Net, seed: int) -> None:
    model, x = build(net), example(net)
    anatomy = hope.inspect(model, x)
    assume(anatomy.layers)
    rng = random.Random(seed)
    layer = rng.choice(anatomy.layers)
    order = rng.sample(range(layer.neurons), layer.neurons)
    permuted = copy.deepcopy(model)
    tensors = {**dict(permuted.named_parameters()), **dict(permuted.named_buffers())}
    with torch.no_grad():
        for part in layer.places:
            new, old = torch.from_numpy(part.index.ravel()), torch.from_numpy(part.index[order].ravel())
            tensor = tensors[part.tensor]
            tensor.index_copy_(part.dim, new, tensor.index_select(part.dim, old))
    assert_same(run(permuted, x), run(model, x), TOLERANCE)
    gone = rng.sample(range(layer.neurons), rng.randrange(1, layer.neurons))
    one = hope.cut(permuted, hope.inspect(permuted, x), [hope.Prune(layer.name, gone)])
    other = hope.cut(model, anatomy, [hope.Prune(layer.name, [order[n] for n in gone])])
    assert_same(run(one, x), run(other, x), TOLERANCE)
