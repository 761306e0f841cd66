"""The baselines against sums that are written out: which weights, which sign, and which order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hope
from tests.methods.layers import IMAGES
from tests.support import randomise


def network() -> nn.Sequential:
    """Two layers of very different ΔP, with γ of both signs."""
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.BatchNorm2d(5), nn.ReLU(),
        nn.Flatten(), nn.Linear(5 * 4, 2),
    )  # fmt: skip
    net = randomise(net.double(), seed=1).eval()
    with torch.no_grad():
        net[3].weight.mul_(0.6)  # so that the layers' scores interleave
        net[1].weight.copy_(torch.tensor([0.5, -0.9, 0.1, -0.05, 1.2, -2.0]))
        net[4].weight.copy_(torch.tensor([-3.0, 0.4, -0.3, 0.02, 0.8]))
    return net  # type: ignore[return-value]


def scores(net: nn.Sequential) -> dict[str, dict[str, Tensor]]:
    """Score -> layer -> one number per neuron."""
    into = {name: net[int(name)].weight.detach().abs().sum(dim=(1, 2, 3)) for name in ("0", "3")}
    out = {
        "0": net[3].weight.detach().abs().sum(dim=(0, 2, 3)),
        "3": net[7].weight.detach().abs().reshape(2, 5, 4).sum(dim=(0, 2)),
    }
    return {
        "l1-in": into,
        "l1-joint": {name: into[name] + out[name] for name in into},
        "bn-scale": {name: net[int(name) + 1].weight.detach().abs() for name in into},
    }


@pytest.mark.parametrize("by", ["l1-in", "l1-joint", "bn-scale"])
def test_scores_are_sums_over_the_weights_that_the_name_says(by: str) -> None:
    net = network()
    encoding = hope.encode(net, IMAGES, density=0.9, method=by, progress=False)
    for name, want in scores(net)[by].items():
        assert encoding.measures[name] == pytest.approx(want.tolist(), rel=1e-12)


@pytest.mark.parametrize("by", ["l1-in", "l1-joint", "bn-scale"])
def test_the_lowest_raw_score_of_the_whole_network_goes_first_whatever_it_releases(by: str) -> None:
    net = network()
    reported = {(layer, k): float(s) for layer, some in scores(net)[by].items() for k, s in enumerate(some)}
    encoding = hope.encode(net, IMAGES, density=0.2, method=by, progress=False)
    steps = encoding.trajectory.steps
    assert all(isinstance(step, hope.Prune) for step in steps)
    left = dict(reported)
    for step in steps:
        open_ = {key: s for key, s in left.items() if sum(layer == key[0] for layer, _ in left) > 1}
        first = min(open_, key=lambda key: open_[key])  # never the last neuron of a layer
        assert (step.name, *step.removed) == first
        assert step.cost == pytest.approx(reported[first], rel=1e-12)
        del left[first]
    assert len(left) == 2
    release = {step.name: step.release for step in steps}
    assert release["0"] != release["3"]
    ranked = sorted(reported, key=lambda key: reported[key] / release[key[0]])
    assert ranked != sorted(reported, key=lambda key: reported[key])  # by score/ΔP it would be another order


def test_random_scores_are_the_same_whenever_they_are_drawn() -> None:
    net = network()
    one, two = (hope.encode(net, IMAGES, density=0.5, method="random", progress=False) for _ in range(2))
    assert one.measures == two.measures
    assert all(0 <= score < 1 for some in one.measures.values() for score in some)
    assert all(len(set(some)) == len(some) for some in one.measures.values())
