"""The paper's equations as printed, and messages about partitions that cost too much."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hope
from hope.deft import Cost, InvalidPartition, LostSource
from hope.deft.cost import report_cost
from hope.errors import InfeasibleBudget, InvalidExample, UnknownMethod
from tests.deft.nets import chain, images, made


def test_deviations_as_printed_move_neurons_between_core_and_slack() -> None:
    net = made(chain())
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eps = 0.3
    mended, literal, other = (
        hope.deft.partition(net, images(2), percentile=50, by="capacity", merge=False, reading=reading)
        for reading in ("mended", "literal deviation", "literal parent")
    )
    for name, values in mended.capacities.items():
        assert bool((literal.capacities[name] > values).all())  # |γ| is above γ_eff
        assert torch.equal(other.capacities[name], values)


def _with_twins(eps: float) -> nn.Module:
    """Neurons 0 and 1 of the first layer are parallel, with different thresholds."""
    net = made(chain())
    conv, bn, reader = net.get_submodule("0"), net.get_submodule("1"), net.get_submodule("4")
    with torch.no_grad():
        for tensor in (conv.weight, bn.weight, bn.running_mean, bn.running_var):
            tensor[1] = tensor[0]
        bn.weight[:2], bn.bias[0], bn.bias[1] = 2.0, 0.2, 0.3
        reader.weight[:, 1] = reader.weight[:, 0]
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eps = eps
    return net


@pytest.mark.parametrize("options", [{"kernel": "exact"}, {"reading": "literal kernel"}])
def test_the_kernel_decides_about_pair_merges(options: dict[str, str]) -> None:
    net = _with_twins(1e-5)
    usual, other = (
        hope.deft.partition(net, images(2), percentile=60, merge="pair", **some) for some in ({}, options)
    )
    assert usual.lock == other.lock
    assert [one.cost for one in usual.merges] != [one.cost for one in other.merges]


def test_parents_as_printed_have_other_bn_numbers() -> None:
    net = _with_twins(0.1)
    parts = [
        hope.deft.partition(net, images(2), percentile=60, merge="pair", reading=reading)
        for reading in ("mended", "literal parent")
    ]
    assert [m.neurons for m in parts[0].merges] == [m.neurons for m in parts[1].merges] != []
    one, two = (part.consolidated(net).state_dict() for part in parts)
    assert any(not torch.equal(one[name], two[name]) for name in one if name.endswith("running_var"))


@pytest.mark.parametrize("reading", ["literal", "literal kernel"])
@pytest.mark.parametrize("option", [{"merge": "sum"}, {"kernel": "exact"}])
def test_a_printed_kernel_that_would_be_ignored_is_refused(option: dict[str, str], reading: str) -> None:
    ((name, value),) = option.items()
    with pytest.raises(UnknownMethod, match=f"reading='{reading}' of paper must go .* got {name}='{value}'"):
        hope.Paper(reading=reading, **option)
    for one in ("literal deviation", "literal parent", "mended"):
        hope.Paper(reading=one, **option)
    with pytest.raises(UnknownMethod, match="got merge='sum'"):
        hope.deft.partition(made(chain()), images(2), percentile=40, reading=reading)
    assert hope.deft.partition(made(chain()), images(2), percentile=40, merge="pair", reading=reading)


def test_readings_that_would_be_ignored_are_refused() -> None:
    with pytest.raises(InvalidPartition, match="reading= and kernel= must go with"):
        hope.deft.partition(made(chain()), images(2), free=0.2, kernel="exact")


def test_dead_neurons_are_answered_with_a_higher_percentile() -> None:
    net = made(chain())
    with torch.no_grad():
        for name in ("1", "5", "10"):
            bn = net.get_submodule(name)
            bn.weight[:-3], bn.bias[:-3] = 0, -1
    part = hope.deft.partition(net, images(2), percentile=20, merge=False)
    with pytest.warns(LostSource, match="use a percentile from 8[0-9], as most neurons cost nothing"):
        report_cost(Cost(fidelity=0.1), part)
    higher = hope.deft.partition(net, images(2), percentile=90, merge=False)
    assert higher.lock.reason == "percentile"
    assert sum(int(mask.sum()) for mask in higher.core.values()) > sum(
        int(mask.sum()) for mask in part.core.values()
    )


def test_a_source_task_of_another_size_is_refused_in_one_line() -> None:
    tuning = hope.deft.wrap(made(chain()), images(2), free=0.2, head=4)
    with pytest.raises(InvalidExample, match=r"got \(4, 5, 8, 8\), on which it does not run") as caught:
        tuning.measure([(torch.zeros(4, 5, 8, 8), torch.zeros(4))])
    assert len(str(caught.value).splitlines()) == 1


def test_nothing_to_compress_meets_no_density() -> None:
    with pytest.raises(InfeasibleBudget, match="absorb must have something to remove"):
        hope.encode(nn.Sequential(nn.Linear(4, 3)), torch.zeros(2, 4), density=0.5)
