"""The fidelity, its probes, and what is decided by them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import hope
from hope._util.calls import as_call
from hope.actions import Action, Evict
from hope.errors import InfeasibleBudget, InvalidExample
from hope.evaluate import eviction_search
from hope.evaluate.eviction_search import LEVELS, TRIED, _EvictionLosses, _EvictionSearch, decide
from hope.evaluate.eviction_search import network as _network
from hope.evaluate.fidelity import Fidelity, float_outputs
from hope.schedule.search_space import SearchSpace
from hope.statistics.bn_inputs import bn_distance, observing
from hope.statistics.dreams import SIDE, smaller, synthetic_inputs
from hope.statistics.patterns import coloured_noise
from tests.evaluate.test_absorb_networks import EXAMPLE, network


def test_noise_has_the_spectrum_of_images() -> None:
    noise = coloured_noise(64, 3, (32, 32))
    power = torch.fft.fft2(noise).abs().square().mean(dim=(0, 1))
    low, high = float(power[0, 2]), float(power[0, 8])
    assert low / high == pytest.approx(16, rel=0.3)  # amplitude 1/f: four times the frequency, 1/16 the power
    rows = noise.transpose(0, 1).flatten(1)
    assert float(torch.corrcoef(rows)[0, 1]) == pytest.approx(0.9, abs=0.03)
    assert float(noise.std()) == pytest.approx(1, abs=1e-3)


def test_probes_come_closer_to_what_the_bns_remember() -> None:
    net = network(0)
    program = hope.inspect(net, EXAMPLE).program

    def far(steps: int) -> float:
        (x,), _ = synthetic_inputs(net, EXAMPLE, program, count=16, steps=steps)
        with torch.no_grad(), observing(net) as heard:
            net(x)
        return float(torch.stack([bn_distance(bn, z) for bn, z in heard]).mean())

    assert far(10) < 0.5 * far(0)


def test_fidelity_is_one_for_the_same_and_ignores_scale_and_constants() -> None:
    net = network(1)
    assert hope.fidelity(net, net, EXAMPLE) == 1.0
    scaled = hope.cut(net, hope.inspect(net, EXAMPLE), [])
    with torch.no_grad():
        scaled[8].weight *= 0.1  # type: ignore[index, union-attr, operator]
        scaled[8].bias += 3  # type: ignore[index, union-attr, operator]
    assert hope.fidelity(net, scaled, EXAMPLE) == pytest.approx(1, abs=1e-5)


class TwoHeads(nn.Module):
    """A body and two heads, whose outputs are nested."""

    def __init__(self) -> None:
        super().__init__()
        body = network(1)
        width = body(EXAMPLE).shape[1]
        self.body, self.boxes, self.classes = body, nn.Linear(width, 4), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        z = self.body(x)
        return {"boxes": [self.boxes(z)], "classes": (self.classes(z), z.argmax(1)), "loss": z.sum()}


@pytest.mark.parametrize("head", ["boxes", "classes"])
def test_of_several_outputs_the_worst_counts(head: str) -> None:
    net = TwoHeads().eval()
    anatomy = hope.inspect(net, EXAMPLE)
    fidelity, broken = Fidelity(net, EXAMPLE, anatomy.program), copy.deepcopy(net)
    assert fidelity.by_output(net) == {"boxes.0": 1.0, "classes.0": 1.0}
    for parameter in broken.get_submodule(head).parameters():
        nn.init.zeros_(parameter)
    assert sorted(fidelity.by_output(broken).values()) == [0.0, 1.0]
    assert fidelity.by_output(broken)[f"{head}.0"] == 0.0
    assert fidelity(broken) == hope.fidelity(net, broken, EXAMPLE) == 0.0
    assert hope.fidelity_by_output(net, broken, EXAMPLE) == fidelity.by_output(broken)


def test_an_encoding_tells_the_fidelity_of_each_output_the_worst_and_the_mean() -> None:
    encoding = hope.encode(TwoHeads().eval(), EXAMPLE, density=0.5)
    found = encoding.fidelity_by_output
    assert found == hope.fidelity_by_output(encoding.original, encoding.model, EXAMPLE)
    least, mean = min(found.values()), sum(found.values()) / 2
    assert encoding.fidelity == least < mean
    worst = min(found, key=lambda name: found[name])
    words = " ".join(str(encoding).split())
    assert f"fidelity {least:.3f} (predicted; 1 is the original), of {worst}, the worst of 2" in words
    assert f"outputs; the mean is {mean:.3f}" in words


def test_a_healed_encoding_tells_the_fidelities_of_its_own_outputs() -> None:
    encoding = hope.encode(TwoHeads().eval(), EXAMPLE, density=0.3)
    before, healed = encoding.fidelity_by_output, encoding.heal(steps=8)
    assert healed.fidelity_by_output == hope.fidelity_by_output(healed.original, healed.model, EXAMPLE)
    assert encoding.fidelity_by_output == before != healed.fidelity_by_output


def test_of_one_output_no_worst_is_told() -> None:
    encoding = hope.encode(network(1), EXAMPLE, density=0.5)
    assert encoding.fidelity_by_output == {"": encoding.fidelity}
    assert "worst" not in str(encoding)


@pytest.mark.parametrize("head", ["boxes", "classes"])
def test_an_eviction_that_hurts_one_of_two_heads_costs_what_that_head_loses(head: str) -> None:
    class Branched(TwoHeads):
        """A residual branch that only one head reads."""

        def __init__(self) -> None:
            super().__init__()
            self.branch = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
            with torch.no_grad():
                self.branch[3].weight *= 100  # type: ignore[operator]

        def forward(self, x: torch.Tensor) -> dict[str, object]:
            z = self.body(x)
            more = z + self.branch(z)
            boxes, classes = (more, z) if head == "boxes" else (z, more)
            return {"boxes": self.boxes(boxes), "classes": self.classes(classes)}

    net = Branched().eval()
    space = SearchSpace.of(net, EXAMPLE, hope.inspect(net, EXAMPLE), hope.Absorb())
    fidelity = Fidelity(net, EXAMPLE, space.anatomy.program)
    (evict,) = (Evict(b.name, b.bias, release=b.release) for b in space.branches if "branch.0" in b.layers)
    by_output = fidelity.by_output(_network(net, space, [evict]))
    other = "classes" if head == "boxes" else "boxes"
    assert by_output[other] == 1.0
    assert by_output[head] < 0.95
    trials = _EvictionLosses(net, space, fidelity)
    assert trials.without([], evict) == pytest.approx(1 - by_output[head], abs=1e-6)


@pytest.mark.parametrize("head", ["boxes", "classes"])
def test_a_refit_repairs_each_of_two_heads(head: str) -> None:
    net = TwoHeads().eval()
    broken = copy.deepcopy(net)
    for parameter in broken.get_submodule(head).parameters():
        nn.init.zeros_(parameter)
    fitted = hope.refit(net, broken, [torch.randn(32, *EXAMPLE.shape[1:])])
    assert min(hope.fidelity_by_output(net, fitted, EXAMPLE).values()) > 0.9


def test_a_model_without_float_outputs_cannot_be_compared() -> None:
    with pytest.raises(InvalidExample, match=r"must return a tensor of floats.*got int"):
        float_outputs(3)


def test_fidelity_falls_along_a_run_and_repeats() -> None:
    net = network(2)
    encoding = hope.encode(net, EXAMPLE, density=0.2, method="absorb", evict=False)
    found = [value for _, value in encoding.fidelities(4)]
    assert found[0] == 1.0
    assert found[1] > found[-1]
    assert found == [value for _, value in encoding.fidelities(4)]


def test_other_networks_are_refused() -> None:
    net = network(3)
    with pytest.raises(InvalidExample, match="must have the same shapes"):
        hope.fidelity(net, nn.Sequential(nn.Flatten(), nn.Linear(432, 7)), EXAMPLE)


def test_inputs_that_are_no_images() -> None:
    net = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)).eval()
    assert hope.fidelity(net, net, torch.zeros(1, 6)) == 1.0
    words = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(20, 3)).eval()
    assert hope.fidelity(words, words, torch.randint(0, 11, (1, 5))) == 1.0


def test_a_batch_is_looked_at_as_far_as_was_asked_and_single_numbers_stay() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            assert by.ndim == 0
            return x[:3] * by

    fidelity = Fidelity(Scaled(), None, count=3, inputs=[{"x": torch.randn(8, 4), "by": torch.tensor(2.0)}])
    assert fidelity(Scaled()) == 1.0


def test_as_many_batches_are_looked_at_as_that_takes() -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return x

    rows = torch.randn(9, 4)
    for batches in ([rows], list(rows.split(2)), list(rows.split(1))):
        seen: list[torch.Tensor] = []
        Fidelity(Counts(), None, count=7, inputs=batches)
        assert torch.equal(seen[0], rows[:7])
    seen = []
    Fidelity(Counts(), None, count=7, inputs=[rows[:2], rows[2:4, :3], rows[4:]])  # of another length
    assert torch.equal(seen[0], rows[:2])


def test_inputs_that_are_not_of_the_batch_stay_whole() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, by: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            assert len(x) == 7
            return x * by + places

    by, places = torch.ones(4), torch.arange(4.0)[None]
    Fidelity(Scaled(), None, count=7, inputs=[(torch.randn(3, 4), by, places) for _ in range(4)])
    single = torch.randn(50)
    assert Fidelity(nn.Linear(50, 3), None, count=7, inputs=[single] * 3)(nn.Linear(50, 3)) < 1


def test_a_fidelity_as_budget_is_the_longest_run_that_holds() -> None:
    net = network(4)
    encoding = hope.encode(net, EXAMPLE, fidelity=0.8, method="absorb", evict=False)
    assert 0 < encoding.steps < len(encoding.trajectory)
    assert encoding.fidelity >= 0.8
    assert hope.encode(net, EXAMPLE, fidelity=1.0, method="absorb", evict=False).fidelity == 1.0
    with pytest.raises(InfeasibleBudget, match="which is the original"):
        hope.encode(net, EXAMPLE, fidelity=1.5)


def test_evictions_are_decided_within_the_stated_number_of_looks() -> None:
    net = network(5)
    plan = SearchSpace.of(net, EXAMPLE, hope.inspect(net, EXAMPLE), hope.Absorb())
    assert [branch.name for branch in plan.branches] == ["1", "2"]
    looks = 0

    class Counting(Fidelity):
        def __call__(self, model: nn.Module) -> float:
            nonlocal looks
            looks += 1
            return super().__call__(model)

    steps = decide(net, plan, list(plan.steps()), Counting(net, EXAMPLE, plan.anatomy.program))
    evicted = sum(isinstance(step, Evict) for step in steps)
    assert looks <= (len(LEVELS) + evicted) * (2 + TRIED)


def test_a_block_taken_out_of_a_copy_is_one_that_was_evicted_with_the_rest() -> None:
    net = network(5)
    plan = SearchSpace.of(net, EXAMPLE, hope.inspect(net, EXAMPLE), hope.Absorb())
    fidelity = Fidelity(net, EXAMPLE, plan.anatomy.program)
    looks, steps = _EvictionLosses(net, plan, fidelity), list(plan.steps())[:6]
    for branch in plan.branches:
        evict = Evict(branch.name, branch.bias, cost=0.0, release=branch.release)
        want = 1 - fidelity(_network(net, plan, [*steps, evict]))
        assert looks.without(steps, evict) == pytest.approx(want, abs=1e-6)
        assert want > looks.after(steps) + 1e-3
    assert looks.after(steps) == 1 - fidelity(_network(net, plan, steps))


def test_the_network_at_a_level_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(5)
    plan = SearchSpace.of(net, EXAMPLE, hope.inspect(net, EXAMPLE), hope.Absorb())
    made: list[int] = []

    def counted(model: nn.Module, space: SearchSpace, steps: list[Action]) -> nn.Module:
        made.append(len(steps))
        return _network(model, space, steps)

    monkeypatch.setattr(eviction_search, "network", counted)
    sequence = list(plan.steps())
    looks = _EvictionLosses(net, plan, Fidelity(net, EXAMPLE, plan.anatomy.program))
    before = [tensor.clone() for tensor in net.state_dict().values()]
    search = _EvictionSearch(plan, sequence, looks)
    reached = search.reach(0.8)
    assert reached is not None
    assert len(search._candidates(search.steps[:reached])) > 1
    search.evict_at(reached)
    assert made.count(reached) == 1
    assert all(map(torch.equal, before, net.state_dict().values()))


@pytest.mark.parametrize(("tail", "side"), [(nn.AdaptiveAvgPool2d(1), SIDE), (nn.Identity(), 2 * SIDE)])
def test_large_images_are_halved_where_the_network_answers_all_the_same(tail: nn.Module, side: int) -> None:
    like = torch.zeros(1, 3, 2 * SIDE, 2 * SIDE)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), tail).eval()
    (made,), _ = as_call(smaller(net, like))
    assert made.shape[2:] == (side, side)
    (batch,) = hope.dream(net, like, count=2, steps=1)
    assert batch[0].shape == (2, 3, side, side)  # type: ignore[index]
    strict = nn.Sequential(nn.Conv2d(3, 1, 3, stride=4), nn.Flatten(), nn.Linear(63 * 63, 2)).eval()
    assert smaller(strict, like) is like


def test_weaving_leaves_out_what_an_evicted_block_contains() -> None:
    net = network(6)
    plan = SearchSpace.of(net, EXAMPLE, hope.inspect(net, EXAMPLE), hope.Absorb())
    sequence = list(plan.steps())
    steps = _EvictionSearch(plan, sequence).interleave([(3, 1)])
    position = next(k for k, step in enumerate(steps) if isinstance(step, Evict))
    inside = set(plan.branches[1].layers)
    assert position == 3
    assert not any(step.name in inside for step in steps[4:])
    small = _network(net, plan, steps[:8])
    with torch.no_grad():
        assert small(EXAMPLE).shape == (2, 5)


def test_an_evicted_branch_leaves_its_mean() -> None:
    net = network(7)
    plan = SearchSpace.of(net, EXAMPLE, hope.inspect(net, EXAMPLE), hope.Absorb())
    shift = net[2].bn2.bias.detach()  # type: ignore[index, union-attr]
    assert plan.branches[1].bias == pytest.approx(shift.tolist())


def test_what_a_dream_is_for() -> None:
    net = network(8)
    one, other = hope.dream(net, EXAMPLE, count=8, steps=3), hope.dream(net, EXAMPLE, count=8, steps=3)
    assert torch.equal(one[0][0], other[0][0])  # type: ignore[index]
    encoding = hope.encode(net, EXAMPLE, density=0.8, method=hope.Absorb(calibration="dream"), evict=False)
    assert encoding.fidelity > 0.5
    with pytest.raises(ValueError, match="dream"):
        hope.Absorb(calibration="nightmare")
    with pytest.raises(TypeError, match="calibration"):
        hope.Score("l1-in", calibration="dream")  # type: ignore[call-arg]
    with pytest.raises(InvalidExample, match="at least one batch"):
        hope.encode(net, EXAMPLE, density=0.8, method=hope.Absorb(calibration=[]))
