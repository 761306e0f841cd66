"""What a layer's loss does to the answers, as layers' costs count by it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import hope
from hope.evaluate.fidelity import Fidelity
from hope.evaluate.sensitivity import LEAST, LEFT, with_sensitivities
from hope.methods.absorption_path import AbsorbState
from hope.schedule.search_space import SearchSpace
from tests.evaluate.test_absorb_networks import EXAMPLE, network

LOOKING = hope.Absorb(sensitivity=True)


def shares(plan: SearchSpace) -> dict[str, float]:
    return {state.name: state.share for state in plan.states if isinstance(state, AbsorbState)}


def test_a_layer_counts_by_the_fidelity_that_its_own_loss_costs() -> None:
    net = network(2)
    anatomy = hope.inspect(net, EXAMPLE)
    plan, fidelity = SearchSpace.of(net, EXAMPLE, anatomy, LOOKING), Fidelity(net, EXAMPLE, anatomy.program)
    before = {name: [s.cost for s in plan.method.path(state).steps()] for name, state in named(plan).items()}
    old = shares(plan)
    plan = with_sensitivities(net, plan, fidelity)
    for name, state in named(plan).items():
        path, steps = hope.Absorb().path(state), []
        while path.left > LEFT and path.neurons > 1:
            steps.append(next(path.steps()))
        small = hope.cut(net, anatomy, steps, input_statistics=plan.statistics.input_statistics)
        assert len(steps) > 0
        assert state.share == pytest.approx(max(LEAST, 1 - fidelity(small)) / -math.log(path.left))
        after = [s.cost for s in plan.method.path(state).steps()]
        assert after == pytest.approx([cost * state.share / old[name] for cost in before[name]])


def named(plan: SearchSpace) -> dict[str, AbsorbState]:
    return {state.name: state for state in plan.states if isinstance(state, AbsorbState)}


def test_a_branch_that_says_nothing_goes_first() -> None:
    net = network(3)
    with torch.no_grad():
        net[1].bn2.weight *= 1e-3  # type: ignore[index, union-attr, operator]
    found = hope.encode(net, EXAMPLE, steps=4, method=LOOKING, evict=False)
    assert {step.name for step in found.trajectory.steps[:4]} == {"1.conv1"}


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    net, file = network(4), tmp_path / "partial.json"
    whole = hope.encode(net, EXAMPLE, density=0.5, method=LOOKING)
    with pytest.raises(KeyboardInterrupt):
        interrupted(net, file)
    again = hope.encode(net, EXAMPLE, density=0.5, method=LOOKING, checkpoint=file)
    assert again.trajectory.steps == whole.trajectory.steps
    plain = hope.encode(net, EXAMPLE, density=0.5)
    assert [step.cost for step in plain.trajectory] != [step.cost for step in whole.trajectory]


def interrupted(net: torch.nn.Module, file: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "hope.evaluate.eviction_search.decide", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        hope.encode(net, EXAMPLE, density=0.5, method=LOOKING, checkpoint=file)


def test_inputs_are_looked_at_where_there_are_some() -> None:
    net = network(4)
    batch = 3 * torch.randn(8, *EXAMPLE.shape[1:], generator=torch.Generator().manual_seed(0))
    seen: list[torch.Tensor] = []

    class Listening(Fidelity):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            seen.append(self._args[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hope.evaluate.measurements.Fidelity", Listening)
        hope.encode(
            net, EXAMPLE, density=0.7, method=hope.Absorb(sensitivity=True, calibration=[batch]), evict=False
        )
    assert len(seen) == 1
    assert torch.equal(seen[0], batch)


def test_layers_are_looked_at_by_default_where_no_bn_tells_and_there_are_inputs() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x = torch.randn(32, 4)

    def looks(net: torch.nn.Module, example: torch.Tensor, method: hope.Absorb) -> bool:
        return SearchSpace.of(net, example, hope.inspect(net, example), method).method.needs_sensitivity

    assert looks(plain, x, hope.Absorb(calibration=[x]))
    assert not looks(plain, x, hope.Absorb(calibration=[x], sensitivity=False))
    assert not looks(network(2), EXAMPLE, hope.Absorb())
    assert looks(network(2), EXAMPLE, LOOKING)


def test_every_token_of_a_text_has_its_own_answer() -> None:
    """Half of the tokens answered wrongly: half of the fidelity, however loud they are."""

    class Says(torch.nn.Module):
        def __init__(self, wrong: float) -> None:
            super().__init__()
            self.wrong = wrong

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loud = torch.tensor([1.0, 100.0])[None, :, None]
            return torch.stack([x, torch.roll(x, int(self.wrong), -1)], dim=1) * loud

    x = torch.randn(64, 500)
    fidelity = Fidelity(Says(0), x, inputs=[x], count=64)
    assert fidelity(Says(1)) == pytest.approx(0.5, abs=0.02)
