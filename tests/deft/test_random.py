"""Any elasticity on any network that can be read: the core stays, and the source task with it."""

from __future__ import annotations

import os
import random

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, assume, given, settings
from torch import nn
from torch.utils._pytree import tree_leaves

import hope
from hope.deft import Bounds, Partition
from hope.deft.elasticity import Lock
from hope.deft.separable import find_units
from hope.reasons import Cause
from hope.storage.run import fingerprint
from hope.structure.analyse import read_model
from tests.deft.nets import core_entries, slack_entries
from tests.properties.networks import Net, build, example, networks

FEW = 25 if os.environ.get("HYPOTHESIS_PROFILE") != "search" else 300


def random_partition(model: nn.Module, x: torch.Tensor, seed: int) -> Partition | None:
    """Elasticities drawn at random; streams whose channels mix are core as a whole."""
    anatomy, _ = read_model(model, x)
    heads = [one.name for one in anatomy.skipped if one.kind == "layer" and one.reason.cause is Cause.OUTPUT]
    mixed = {stream.name for stream in anatomy.streams if stream.mixed}
    units = [unit for unit in find_units(anatomy) if not heads or heads[0] not in unit.modules]
    if not heads or not units or all(unit.name in mixed for unit in units):
        return None
    rng = random.Random(seed)
    core = {
        unit.name: torch.tensor([unit.name in mixed or rng.random() < 0.5 for _ in range(unit.neurons)])
        for unit in units
    }
    return Partition(
        anatomy=anatomy,
        head=heads[0],
        by="prune-cost",
        percentile=50,
        threshold=1.0,
        lock=Lock(1.0, "one"),
        merge=None,
        core=core,
        merges=(),
        freed={},
        costs={},
        capacities={},
        bounds=Bounds((), True),
        left_alone={},
        original=fingerprint(model),
    )


def _outputs(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        return [leaf for leaf in tree_leaves(model(x)) if isinstance(leaf, torch.Tensor)]


@settings(
    derandomize=True, database=None, deadline=None, max_examples=FEW, suppress_health_check=list(HealthCheck)
)
@given(networks() | networks(residual=True), st.integers(0, 1000), st.sampled_from(["mask", "absorb"]))
def test_training_the_slack_of_any_network_keeps_its_core(net: Net, seed: int, sever: str) -> None:
    model, x = build(net), example(net)
    part = random_partition(model, x, seed)
    assume(part is not None)
    assert part is not None
    tuning = hope.deft.prepare(model, part, sever=sever)
    core, slack = core_entries(tuning), slack_entries(tuning)
    with tuning.source() as one:
        before = _outputs(one, x)
    optimizer = torch.optim.AdamW(tuning.model.parameters(), lr=0.01, weight_decay=0.5)
    tuning.model.train()
    for _ in range(2):
        leaves = [leaf.square().mean() for leaf in tree_leaves(tuning.model(x)) if leaf.requires_grad]
        torch.stack(leaves).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    after = core_entries(tuning)
    assert all(torch.equal(value, after[name]) for name, value in core.items())
    moved = slack_entries(tuning)
    if any(value.abs().sum() > 0 for value in slack.values()):
        assert any(not torch.equal(value, moved[name]) for name, value in slack.items())
    with tuning.source() as one:
        now = _outputs(one, x)
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
