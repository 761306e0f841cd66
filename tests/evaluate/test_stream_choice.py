"""Streams are thinned where that keeps more of the answers, and stay where it does not."""

from __future__ import annotations

from typing import Any

import pytest

import hope
from hope.evaluate.fidelity import Fidelity
from tests.rewrite.test_streams import EXAMPLE, TOWERS, made

HOW: dict[str, Any] = {"method": hope.Absorb(calibration=None, refit=False), "evict": False}


def thinned(encoding: hope.Encoding) -> bool:
    names = {unit.name for unit in encoding.anatomy.streams}
    return any(step.name in names for step in encoding.trajectory.steps[: encoding.steps])


@pytest.mark.parametrize("kind", [*TOWERS])
@pytest.mark.parametrize("budget", [{"macs": 0.6}, {"params": 0.55}])
def test_never_below_the_run_that_leaves_streams(kind: str, budget: dict[str, float]) -> None:
    net, _ = made(kind, double=False)
    without = hope.encode(net, EXAMPLE, **budget, **HOW)
    either = hope.encode(net, EXAMPLE, streams=True, **budget, **HOW)
    assert either.fidelity >= without.fidelity - 1e-6
    stays = any("streams stay" in note for note in either.notes)
    assert not (stays and thinned(either))
    if stays:
        assert either.trajectory.steps[: either.steps] == without.trajectory.steps[: without.steps]


def test_a_budget_that_only_streams_can_meet_thins_them() -> None:
    net, _ = made("joined", double=False)
    with pytest.raises(hope.InfeasibleBudget):
        hope.encode(net, EXAMPLE, macs=0.45, **HOW)
    found = hope.encode(net, EXAMPLE, macs=0.45, streams=True, **HOW)
    assert thinned(found)
    assert not any("streams stay" in note for note in found.notes)


@pytest.mark.parametrize("likes", ["narrow", "wide"])
def test_the_judge_decides(likes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, _ = made("projection", double=False)

    class Likes(Fidelity):
        def __call__(self, model: Any) -> float:
            share = model.stem.out_channels / net.stem.out_channels  # type: ignore[operator, union-attr]
            return float(1 - share if likes == "narrow" else share)

    monkeypatch.setattr("hope.evaluate.measurements.Fidelity", Likes)
    found = hope.encode(net, EXAMPLE, macs=0.5, streams=True, **HOW)
    assert thinned(found) == (likes == "narrow")
    assert any("streams stay" in note for note in found.notes) == (likes == "wide")
    assert found.size.macs <= 0.5 * found.trajectory.size(0).macs
