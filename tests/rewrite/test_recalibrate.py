"""BN statistics of given inputs, in a copy, with everything else as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hope

BATCHES = [torch.randn(8, 3, generator=torch.Generator().manual_seed(seed)) + seed for seed in range(3)]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.BatchNorm1d(3, momentum=0.3), nn.Dropout(0.5), nn.BatchNorm1d(3, track_running_stats=False)
    ).eval()


def test_statistics_are_averages_over_all_batches() -> None:
    net = network()
    fresh = hope.recalibrate_bn(net, iter(BATCHES))
    means, variances = torch.stack([x.mean(0) for x in BATCHES]), torch.stack([x.var(0) for x in BATCHES])
    assert torch.allclose(fresh[0].running_mean, means.mean(0), atol=1e-6)
    assert torch.allclose(fresh[0].running_var, variances.mean(0), atol=1e-6)
    assert fresh[0].num_batches_tracked == 3


def test_the_model_itself_and_all_else_stay_as_they_were() -> None:
    net = network()
    fresh = hope.recalibrate_bn(net, BATCHES)
    assert not net[0].running_mean.any()
    assert fresh[0].momentum == 0.3
    assert fresh[2].running_mean is None
    assert not any(module.training for module in fresh.modules())


def test_dropout_stays_off_while_statistics_are_taken() -> None:
    net = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(3)).eval()
    fresh = hope.recalibrate_bn(net, BATCHES[:1])
    assert torch.allclose(fresh[1].running_mean, BATCHES[0].mean(0), atol=1e-6)


def test_no_inputs_are_refused_where_there_is_a_bn() -> None:
    with pytest.raises(
        hope.InvalidExample, match="at least one input for BN statistics, got none: give some"
    ):
        hope.recalibrate_bn(network(), [])
    plain = nn.Sequential(nn.Linear(3, 2))
    assert torch.equal(hope.recalibrate_bn(plain, [])[0].weight, plain[0].weight)
