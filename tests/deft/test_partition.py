"""Core and slack: both definitions of the paper, merges, ties of streams, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hope
from hope.deft.checks import PERCENTILE
from hope.deft.elasticity import EPSILON
from hope.deft.freed import consolidate
from hope.errors import InvalidPartition, NotSeparable
from hope.methods import Paper
from hope.methods.pairs import PairPath, PaperState
from hope.schedule.search_space import SearchSpace
from tests.deft.nets import Residual, chain, images, made
from tests.support import randomise
from zoo.networks import CifarResNet


def _states(net: nn.Module) -> list[PaperState]:
    plan = SearchSpace.of(net, images(2), hope.inspect(net, images(2)), Paper(), evict=False)
    return [state for state in plan.states if isinstance(state, PaperState)]


# ---- by prune cost -----------------------------------------------------------------------------------------


def test_slack_is_what_leaves_below_the_percentile_of_all_prune_costs() -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=30, merge=False)
    costs: dict[str, dict[int, float]] = {}
    for state in _states(net):
        costs[state.name] = {}
        live = dict(enumerate(state.capacities.tolist()))
        while len(live) > 1:  # the definition, neuron by neuron
            gone = min(live, key=lambda i: live[i])
            rest = sum(live.values()) - live[gone]
            costs[state.name][gone] = len(live) * live[gone] / rest
            del live[gone]
    lock = np.percentile([cost for some in costs.values() for cost in some.values()], 30)
    assert part.threshold == pytest.approx(lock)
    assert part.lock.reason == "percentile"
    for name, some in costs.items():
        for neuron in range(len(part.core[name])):
            assert bool(part.core[name][neuron]) == (some.get(neuron, np.inf) >= lock * (1 - 1e-9))


def test_the_last_neuron_of_every_layer_is_core() -> None:
    for by in ("prune-cost", "capacity"):
        part = hope.deft.partition(made(Residual()), images(2), percentile=100, by=by, merge=False)
        assert all(mask.any() for mask in part.core.values())
        assert sum(int(mask.sum()) for mask in part.core.values()) < 2 * len(part.core) + 1


def test_percentile_zero_leaves_no_slack() -> None:
    part = hope.deft.partition(made(chain()), images(2), percentile=0, merge=False)
    assert all(mask.all() for mask in part.core.values())
    assert part.bounds.cumulative == 0


def test_dead_neurons_make_the_supremum_the_threshold() -> None:
    net = made(chain())
    with torch.no_grad():  # most neurons say nothing at all
        for name in ("1", "5", "10"):
            bn = net.get_submodule(name)
            bn.weight[:-3] = 0
            bn.bias[:-3] = -1
    part = hope.deft.partition(net, images(2), percentile=20, merge=False)
    assert part.lock.reason == "supremum"
    assert part.threshold == max(c for costs in part.costs.values() for c in costs.tolist() if c < np.inf)
    assert all(not part.core[name][:-3].any() for name in part.core)


def test_the_default_keeps_a_predicted_fidelity_of_095() -> None:
    net = made(chain())
    part, asked = hope.deft.partition(net, images(2)), hope.deft.partition(net, images(2), fidelity=0.95)
    assert (part.sever, part.percentile) == ("refit", asked.percentile)
    cost = hope.deft.prepare(net, part, head=3).cost
    assert (cost.fidelity if cost and cost.fidelity else 0) >= 0.95
    assert hope.deft.partition(net, images(2), by="capacity").percentile == PERCENTILE


def test_the_default_does_not_merge_if_merging_costs_more(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    with pytest.raises(InvalidPartition, match="merge=False"):
        hope.deft.partition(net, torch.zeros(2, 4), fidelity=0.95, sever="mask")
    part = hope.deft.partition(net, torch.zeros(2, 4), sever="mask")
    assert (part.merge, part.merges) == (None, ())
    assert "nothing is merged" in capsys.readouterr().err


@pytest.mark.parametrize("sever", ["mask", "absorb"])
def test_wrap_is_partition_and_prepare(sever: str) -> None:
    net, x = made(chain()), images(16)
    wrapped = hope.deft.wrap(net, images(2), head=5, sever=sever, calibration=iter([x]), percentile=40)
    part = hope.deft.partition(net, images(2), percentile=40, sever=sever, calibration=[x])
    tuning = hope.deft.prepare(net, part, head=5, calibration=[x] if sever == "absorb" else None)
    assert wrapped.model.eval()(x).shape == (16, 5)
    own, other = wrapped.model.state_dict(), tuning.model.state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own if not name.startswith(part.head))


def test_costs_are_those_of_the_encoder() -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=5)
    for state in _states(net):
        for step in PairPath(state, merge=None, kernel="zero-bias").steps():
            assert part.costs[state.name][list(step.removed)].tolist() == [step.cost]
            assert step.left > EPSILON


@pytest.mark.parametrize("merge", ["sum", "pair"])
def test_merging_happens_within_the_core_below_the_lock(merge: str) -> None:
    net = _with_twins()
    part = hope.deft.partition(net, images(2), percentile=40, merge=merge)
    plain = hope.deft.partition(net, images(2), percentile=40, merge=False)
    assert part.lock == plain.lock
    assert part.merges
    for merged in part.merges:
        assert plain.core[merged.name][[merged.keep, merged.drop]].all()
    for name, core in plain.core.items():
        want = core.clone()
        want[list(part.freed.get(name, ()))] = False
        assert torch.equal(part.core[name], want)


# ---- by capacity -------------------------------------------------------------------------------------------


def test_by_capacity_slack_is_at_most_the_percentile_of_all_capacities() -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=40, by="capacity", merge=False)
    capacities = hope.capacities(net, images(2))
    tau = np.percentile(torch.cat(list(capacities.values())).numpy(), 40)
    assert part.threshold == pytest.approx(tau)
    for name, values in capacities.items():
        want = values > tau
        want[values.argmax()] = True
        assert torch.equal(part.core[name], want)


@pytest.mark.parametrize(("merge", "seed"), [("sum", 0), ("sum", 4), ("pair", 0)])
def test_by_capacity_with_merges_is_that_of_the_merged_network(merge: str, seed: int) -> None:
    net = made(chain(), seed)
    part = hope.deft.partition(net, images(2), percentile=50, by="capacity", merge=merge)
    assert part.freed
    merged = part.consolidated(net)
    left = {name: torch.ones(len(mask), dtype=torch.bool) for name, mask in part.core.items()}
    with torch.no_grad():
        for name, freed in part.freed.items():
            left[name][list(freed)] = False
            merged.get_parameter(f"{name}.weight")[list(freed)] = 0  # empty vessels are no readers
    capacities = hope.capacities(merged, images(2))
    active = torch.cat([capacities[name][mask] for name, mask in left.items()])
    assert part.threshold == pytest.approx(np.percentile(active.numpy(), 50))
    for name, values in capacities.items():
        torch.testing.assert_close(part.capacities[name], values)
        want = (values > part.threshold) & left[name]
        want[values.argmax()] = True
        assert torch.equal(part.core[name], want)


# ---- merges ------------------------------------------------------------------------------------------------


def _with_twins() -> nn.Module:
    """Neurons 0 and 1 of the first layer are the same, and strong."""
    net = made(chain())
    conv, bn, reader = net.get_submodule("0"), net.get_submodule("1"), net.get_submodule("4")
    with torch.no_grad():
        for tensor in (conv.weight, bn.weight, bn.bias, bn.running_mean, bn.running_var):
            tensor[1] = tensor[0]
        bn.weight[:2] = 2.5
        reader.weight[:, 1] = reader.weight[:, 0]
        reader.weight[:, :2] *= 4
    return net


@pytest.mark.parametrize("by", ["prune-cost", "capacity"])
def test_merging_duplicates_frees_a_vessel_and_keeps_the_function(by: str) -> None:
    net = _with_twins()
    part = hope.deft.partition(net, images(2), percentile=10, by=by)
    merge = next(m for m in part.merges if m.name == "0" and {m.keep, m.drop} == {0, 1})
    assert part.freed["0"] == (1,)
    assert part.core["0"][merge.keep]
    assert not part.core["0"][merge.drop]
    assert part.bounds["0"].merging == pytest.approx(0, abs=1e-5)
    again = copy.deepcopy(net)
    consolidate(again, part.anatomy, [merge], {"0": [merge.drop]})  # without the merges of other layers
    torch.testing.assert_close(again(images()), net(images()), rtol=1e-4, atol=1e-5)


def test_freed_vessels_are_silent_and_can_learn() -> None:
    net = _with_twins()
    part = hope.deft.partition(net, images(2), percentile=20)
    tuning = hope.deft.prepare(net, part, head=4)
    freed = list(part.freed["0"])
    reader = tuning.model.get_parameter("4.weight")
    heard = torch.ones(len(reader), dtype=torch.bool)
    heard[list(part.freed.get("4", ()))] = False  # empty vessels may listen to one another: nobody hears them
    assert not reader[heard][:, freed].any()
    assert tuning.model.get_parameter("0.weight")[freed].abs().sum() > 0
    loud = part.consolidated(net)
    before = loud(images())
    with torch.no_grad():
        loud.get_parameter("0.weight")[freed] *= 10
    assert torch.equal(loud(images()), before)
    tuning.model.train()
    tuning.model(images()).square().sum().backward()
    assert reader.grad is not None
    slack = ~part.core["4"]
    assert reader.grad[slack][:, freed].abs().sum() > 0
    assert not reader.grad[~slack][:, freed].any()


def test_nothing_is_merged_when_asked_not_to() -> None:
    part = hope.deft.partition(_with_twins(), images(2), merge=False)
    assert part.merges == ()
    assert part.freed == {}


def test_a_sum_merge_is_bounded_and_a_pair_merge_is_labelled() -> None:
    net = _with_twins()
    exact, paper = (hope.deft.partition(net, images(2), percentile=60, merge=m) for m in ("sum", "pair"))
    assert exact.bounds.proven
    assert paper.merges
    assert not paper.bounds.proven
    assert "not a bound" in str(paper)
    assert "not a bound" not in str(exact)


# ---- streams -----------------------------------------------------------------------------------------------


def test_a_channel_of_a_stream_has_one_elasticity_over_all_writers_and_readers() -> None:
    net = randomise(CifarResNet(20)).eval()  # 16 channels run through all stages, zero-padded twice
    part = hope.deft.partition(net, torch.zeros(1, 3, 32, 32), percentile=50, merge=False)
    core = part.core["conv1"]
    frozen = {name: mask.flatten() for name, mask in part.frozen.items() if name.endswith("bn2.weight")}
    assert torch.equal(part.frozen["bn1.weight"], core[:16])
    for block in range(3):
        assert torch.equal(frozen[f"layer1.{block}.bn2.weight"], core[:16])
        assert torch.equal(frozen[f"layer2.{block}.bn2.weight"][8:24], core[:16])
        assert torch.equal(frozen[f"layer3.{block}.bn2.weight"][24:40], core[:16])
    weight = part.severed["layer1.0.conv1.weight"]
    inner = part.core["layer1.0.conv1"]
    assert torch.equal(weight[:, :, 0, 0], inner[:, None] & ~core[None, :16])


def _moments(net: nn.Module, bn: str) -> tuple[Tensor, Tensor]:
    """Mean and variance of what a BN writes."""
    module = net.get_submodule(bn)
    ratio = module.running_var / (module.running_var + module.eps)
    return module.bias.detach().double(), (module.weight.square() * ratio).detach().double()


def _rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """E z and E z² of z = max(0, y), y normal."""
    normal, spread = torch.distributions.Normal(0.0, 1.0), variance.sqrt()
    density, share = normal.log_prob(mean / spread).exp(), normal.cdf(mean / spread)
    return mean * share + spread * density, (mean**2 + variance) * share + mean * spread * density


def test_the_capacity_of_a_stream_is_its_readers_weights_times_what_they_read() -> None:
    net = made(Residual())
    mean, energy = _rectified(*_moments(net, "stem.1"))
    more, variance = _moments(net, "first.bn2")  # added to the stream, then rectified again
    _, later = _rectified(mean + more, energy - mean**2 + variance)
    square = torch.zeros(8, dtype=torch.float64)
    for reader, read in (("first.conv1", energy), ("second.conv1", later), ("second.skip.0", later)):
        square += net.get_parameter(f"{reader}.weight").detach().double().square().sum((0, 2, 3)) * read
    part = hope.deft.partition(net, images(2), merge=False)
    torch.testing.assert_close(part.capacities["stem.0"], square.sqrt(), rtol=1e-6, atol=0)
    with torch.no_grad():  # what is written and read by no one has no capacity
        for writer in ("stem.1", "first.bn2"):
            net.get_submodule(writer).weight[0] = 0
            net.get_submodule(writer).bias[0] = 0
    again = hope.deft.partition(net, images(2), merge=False)
    assert again.capacities["stem.0"][0] < 1e-6
    assert not again.core["stem.0"][0]


class _Normed(nn.Module):
    """A stream whose channels are normalised together."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.norm = nn.GroupNorm(1, 8)
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.conv2(torch.relu(self.bn1(self.conv1(self.norm(x)))))
        return self.head(x.mean((2, 3)))


def test_a_stream_that_mixes_its_channels_is_refused_with_the_place() -> None:
    net = made(_Normed())
    with pytest.raises(NotSeparable, match=r"stem.*group_norm in norm.*core=\['stem'\]"):
        hope.deft.partition(net, images(2), sever="mask")
    part = hope.deft.partition(net, images(2), core=["stem"], percentile=60, merge=False)
    assert part.core["stem"].all()
    assert not part.core["conv1"].all()
    assert str(part.left_alone["stem"]) == "requested with core="


def test_a_layer_that_cannot_be_split_is_refused_with_the_place() -> None:
    net = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, 8), nn.Softmax(dim=1),
        nn.Linear(8, 3),
    )  # fmt: skip
    with pytest.raises(NotSeparable, match=r"3 cannot be split.*softmax.*core=\['3'\]"):
        hope.deft.partition(made(net), torch.zeros(2, 6))
    part = hope.deft.partition(made(net), torch.zeros(2, 6), core=["3"])
    assert part.frozen["3.weight"].all()


def test_a_layer_of_unknown_capacity_is_refused_with_the_way_out() -> None:
    net = nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    )
    with pytest.raises(NotSeparable, match=r"no BN between it and 2.*core=\['0'\]"):
        hope.deft.partition(made(net), torch.zeros(2, 6), sever="mask")
    part = hope.deft.partition(made(net), torch.zeros(2, 6), core=["0"], sever="mask")
    assert set(part.core) == {"0", "2"}
    assert part.bounds.cumulative >= 0


def test_two_outputs_need_a_named_head() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
            self.left, self.right = nn.Linear(8, 3), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.body(x)
            return self.left(x), self.right(x)

    net = made(Two())
    with pytest.raises(NotSeparable, match=r"left, right.*head="):
        hope.deft.partition(net, torch.zeros(2, 6))
    part = hope.deft.partition(net, torch.zeros(2, 6), head="left")
    assert not part.frozen["left.weight"].any()
    assert part.frozen["right.weight"].all()  # another output is core, and does not listen to slack
    assert torch.equal(part.severed["right.weight"][0], ~part.core["body.0"])
    with pytest.raises(NotSeparable, match="got 'middle'"):
        hope.deft.partition(net, torch.zeros(2, 6), head="middle")


def test_a_parameter_that_core_and_slack_share_is_core() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.PReLU(), nn.Linear(8, 3))
    part = hope.deft.partition(made(net), torch.zeros(2, 6), percentile=60)
    assert part.frozen["2.weight"].all()
    assert not part.frozen["1.weight"].all()


# ---- shown -------------------------------------------------------------------------------------------------


def test_the_table_names_every_layer_and_the_picture_is_drawn(tmp_path: Path) -> None:
    part = hope.deft.partition(made(Residual()), images(2), percentile=20)
    shown = str(part)
    assert all(name in shown for name in part.core)
    assert "unified cumulative bound" in shown
    pytest.importorskip("matplotlib")
    assert part.plot(tmp_path / "part.png").stat().st_size > 1000
