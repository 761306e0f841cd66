"""Inspection depends on what a network computes, not on how it is written down, and changes nothing."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn
from torch.nn.modules.conv import _ConvNd

import hope
from hope.storage.codec import decode, encode
from hope.storage.record import StoredAnatomy
from hope.structure.anatomy import Anatomy
from tests.properties.networks import Net, build, example, networks, original_name, skipless
from tests.properties.reference import random_evictions
from tests.support import random_cut, run, same

seeds = st.integers(0, 1000)


def summary(anatomy: Anatomy) -> dict[str, Any]:
    """Everything that must not depend on names or on the order of registration."""
    return {
        "layers": [
            (
                original_name(layer.name),
                layer.neurons,
                layer.channels,
                layer.fan_in,
                layer.fan_out,
                layer.release,
                layer.activation,
                [original_name(consumer.weight) for consumer in layer.readers],
                {(original_name(s.tensor), s.dim, s.role): s.index.tolist() for s in layer.places},
                original_name(layer.bn or ""),
                original_name(layer.block or ""),
            )
            for layer in anatomy.layers
        ],
        "blocks": [
            (original_name(b.name), b.skip, b.channels, b.release, b.bias, type(b.way))
            for b in anatomy.blocks
        ],
        "streams": [
            (original_name(s.name), s.neurons, len(s.writers), len(s.readers)) for s in anatomy.streams
        ],
        "skipped": Counter((original_name(one.name), one.outputs, one.kind) for one in anatomy.skipped),
    }


def state(model: nn.Module) -> list[tuple[str, bytes]]:
    return [(name, tensor.numpy().tobytes()) for name, tensor in model.state_dict().items()]


@given(networks())
def test_names_and_order_of_registration_do_not_matter(net: Net) -> None:
    x = example(net)
    want = summary(hope.inspect(build(net), x))
    assert summary(hope.inspect(build(net, renamed=True), x)) == want
    assert summary(hope.inspect(build(net, backwards=True), x)) == want


@given(networks(), seeds)
def test_inspect_and_cut_leave_the_model_as_it_was(net: Net, seed: int) -> None:
    model, x = build(net), example(net)
    rng = random.Random(seed)
    for module in model.modules():
        module.training = rng.random() < 0.5
    flags, before, given_x = [module.training for module in model.modules()], state(model), x.clone()
    anatomy = hope.inspect(model, x)
    small = hope.cut(model, anatomy, random_cut(anatomy, 0.5, seed))
    assert [module.training for module in small.modules()] == flags
    with pytest.raises(hope.InvalidExample):
        hope.inspect(model, x.flatten())
    assert [module.training for module in model.modules()] == flags
    assert state(model) == before
    assert torch.equal(x, given_x)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


@given(networks())
def test_every_producer_is_a_layer_or_goes_with_one_or_has_a_reason(net: Net) -> None:
    model, x = build(net), example(net)
    ran: set[str] = set()
    handles = [
        module.register_forward_hook(lambda *_, name=name: ran.add(name))
        for name, module in model.named_modules()
        if isinstance(module, (_ConvNd, nn.Linear))
    ]
    run(model, x)
    for handle in handles:
        handle.remove()
    anatomy = hope.inspect(model, x)
    named = {name for layer in anatomy.layers for name in (layer.name, *layer.along)}
    assert ran <= named | {one.name for one in anatomy.skipped}
    assert not named & {one.name for one in anatomy.skipped}
    assert all(one.reason for one in anatomy.skipped)


@given(networks() | skipless(), seeds)
def test_a_loaded_run_gives_bitwise_the_same_outputs(net: Net, seed: int) -> None:
    model, x = build(net), example(net)
    anatomy = hope.inspect(model, x)
    prunings = random_cut(anatomy, 0.4, seed)
    actions = [*prunings, *random_evictions(anatomy, random.Random(seed), prunings)]
    want = run(hope.cut(model, anatomy, actions), x)
    with TemporaryDirectory() as folder:
        loaded = hope.load(hope.save(Path(folder) / "run", model, anatomy, actions), build(net, seed=1))
    assert all(torch.equal(a, b) for a, b in zip(run(loaded, x), want, strict=True))


@given(networks())
def test_an_anatomy_survives_json(net: Net) -> None:
    anatomy = replace(hope.inspect(build(net), example(net)), roundable={})  # which is not saved
    data = json.loads(json.dumps(encode(StoredAnatomy.of(anatomy))))
    back = decode(data, StoredAnatomy).read()
    assert same(back, replace(anatomy, program=(), taps={}, made={}, trace=back.trace))
    assert str(back) == str(anatomy)
