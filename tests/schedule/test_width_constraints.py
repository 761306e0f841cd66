"""Widths that are multiples: at every budget, for every method, saved and loaded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hope
from hope.demo import DigitsNet
from hope.schedule.width_constraints import aligned
from tests.support import assert_same, randomise, run

EXAMPLE = torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(1)
    return randomise(DigitsNet()).eval()


def widths(model: nn.Module, anatomy: hope.Anatomy) -> list[tuple[int, int]]:
    """(before, after) of the layers that are still there."""
    modules = dict(model.named_modules())
    found = []
    for layer in anatomy.layers:
        weight = getattr(modules.get(layer.name), "weight", None)
        if isinstance(weight, torch.Tensor):
            found.append((layer.neurons * layer.channels, len(weight)))
    return found


@pytest.mark.parametrize("method", ["paper", "absorb", "l1-joint"])
@pytest.mark.parametrize("multiple", [4, 8])
def test_widths_are_multiples_at_every_budget(
    model: nn.Module, method: str, multiple: int, tmp_path: Path
) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    encoding = hope.encode(
        model, EXAMPLE, params=0.5, method=method, multiple_of=multiple, anatomy=anatomy, progress=False
    )
    assert encoding.size.parameters <= 0.5 * encoding.trajectory.size(0).parameters
    for budget in (0.9, 0.75, 0.6, 0.5):
        small = encoding.at(params=budget)
        assert sum(p.numel() for p in small.parameters()) <= budget * encoding.trajectory.size(0).parameters
        assert all(
            after in (before, after // multiple * multiple) for before, after in widths(small, anatomy)
        )
    assert any(after < before for before, after in widths(encoding.model, anatomy))
    folder = encoding.save(tmp_path / "run")
    again = hope.load(folder, model, params=0.75)
    assert_same(run(again, EXAMPLE), run(encoding.at(params=0.75), EXAMPLE), 1e-6)


def test_within_a_layer_the_order_stays_and_nothing_is_done_twice(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    actions = hope.encode(
        model, EXAMPLE, density=0.3, method="paper", anatomy=anatomy, evict=False
    ).trajectory.steps
    order, stops = aligned(anatomy, actions, 8)
    assert max(Counter(order).values()) == 1
    for layer in anatomy.layers:
        mine = [k for k in order if actions[k].name == layer.name]
        assert mine == sorted(mine)
        assert (layer.neurons - len(mine)) % 8 == 0 or not mine
    assert stops[0] == 0
    assert stops[-1] == len(order)


def test_a_fidelity_and_a_number_of_steps_end_at_a_multiple(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    for budget in ({"fidelity": 0.5}, {"steps": 21}):
        encoding = hope.encode(
            model, EXAMPLE, method="absorb", multiple_of=8, anatomy=anatomy, progress=False, **budget
        )
        assert encoding.steps in encoding.trajectory.stops
        assert all(after % 8 == 0 or after == before for before, after in widths(encoding.model, anatomy))


def test_nonsense_is_refused(model: nn.Module) -> None:
    with pytest.raises(hope.HopeError, match="multiple_of must be a whole number from 1, got 0"):
        hope.encode(model, EXAMPLE, params=0.5, multiple_of=0)


def test_a_multiple_beyond_every_layer_leaves_blocks_and_says_so(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    most = max(layer.neurons for layer in anatomy.layers)
    options: dict[str, Any] = {"method": "paper", "anatomy": anatomy, "progress": False}
    encoding = hope.encode(model, EXAMPLE, steps=1, multiple_of=most, **options)
    assert all(before == after for before, after in widths(encoding.model, anatomy))
    assert f"multiple_of={most}: no layer is wider than {most}, so only whole blocks can go" in str(encoding)
    assert not hope.encode(model, EXAMPLE, steps=1, multiple_of=most - 1, **options).notes
    with pytest.raises(hope.InfeasibleBudget, match=f"from 1 to {most - 1}; no layer is wider than {most}"):
        hope.encode(model, EXAMPLE, steps=1, multiple_of=most, evict=False, **options)
