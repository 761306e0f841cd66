"""Rules that hold for every run are checked while it is made: whoever breaks one gets an error and a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from torch import nn

import hope
from hope._util.tensors import get
from hope.actions import Action, Prune, register, unregister
from hope.actions.base import RewriteContext
from hope.demo import DigitsNet
from hope.errors import InvariantViolated
from hope.invariants import _is_plain
from hope.methods.scores import Score, ScorePath, ScoreState
from hope.structure.anatomy import Anatomy
from tests.support import randomise

EXAMPLE = torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8)


def filters(anatomy: Anatomy, action: Action) -> list[str]:
    return [part.tensor for part in anatomy.unit(action.name).places if part.role == "out"]


class Louder(Prune, frozen=True, array_like=True, tag="louder"):
    """Removes a neuron, and doubles the weights that write the layer, which no removal does."""

    kind: ClassVar[str] = "louder"
    letter: ClassVar[str] = "l"

    @classmethod
    def finish(cls, model: nn.Module, context: RewriteContext, actions: Sequence[Self]) -> None:
        """Double what is left."""
        for name in {name for one in actions for name in filters(context.anatomy, one)}:
            get(model, name).data.mul_(2)


class Longer(Prune, frozen=True, array_like=True, tag="longer"):
    """Removes a neuron, and gives the network a parameter that nothing counts."""

    kind: ClassVar[str] = "longer"
    letter: ClassVar[str] = "o"

    @classmethod
    def finish(cls, model: nn.Module, context: RewriteContext, actions: Sequence[Self]) -> None:
        """One more parameter."""
        model.register_parameter("extra", nn.Parameter(torch.zeros(3)))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(Louder)
    register(Longer)
    yield
    unregister(Louder)
    unregister(Longer)


class Changed(ScorePath):
    """The path of a score, with other actions or costs."""

    change: ClassVar[Callable[[Action], Action]]

    def steps(self) -> Iterator[Action]:
        """All steps down to one neuron."""
        yield from map(type(self).change, super().steps())


@dataclass(frozen=True)
class Broken(Score):
    """A baseline whose steps are replaced."""

    change: Any = None

    @property
    def path(self) -> Callable[[ScoreState], ScorePath]:
        """The changed path."""
        return type("Some", (Changed,), {"change": staticmethod(self.change)})

    def to_dict(self) -> dict[str, Any]:
        """Without the function."""
        return {"name": self.name, "by": self.by}


def as_kind(kind: type[Prune]) -> Callable[[Action], Action]:
    return lambda one: kind(one.name, one.removed[0], cost=one.cost, release=one.release, left=one.left)


def costing(cost: float) -> Callable[[Action], Action]:
    return lambda one: Prune(one.name, one.removed[0], cost=cost, release=one.release, left=one.left)


@pytest.fixture
def model() -> nn.Module:
    return randomise(DigitsNet()).eval()


def broken(model: nn.Module, change: Callable[[Action], Action], folder: Path) -> hope.Encoding:
    return hope.encode(
        model, EXAMPLE, density=0.7, method=Broken("l1-in", change), checkpoint=folder / "partial.json"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (as_kind(Louder), "must equal the original whose removed neurons nothing reads"),
        (as_kind(Longer), r"must have [\d,]+ parameters, got"),
        (costing(-1.0), "costs must be finite and at least 0, got -1.0 at step 0"),
        (costing(float("nan")), "costs must be finite and at least 0, got nan"),
    ],
    ids=["rewrite", "size", "negative", "nan"],
)
def test_a_broken_rule_is_an_error_with_a_file_of_what_reproduces_it(
    model: nn.Module, change: Callable[[Action], Action], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvariantViolated, match=words) as error:
        broken(model, change, tmp_path)
    found = re.search(r"with (\S+\.json)", str(error.value))
    assert found is not None
    assert Path(found[1]).parent == tmp_path
    data = json.loads(Path(found[1]).read_text())
    assert data["original"] == hope.encode(model, EXAMPLE, steps=1).run.record.original
    assert data["steps"]
    assert data["versions"]["torch"] == torch.__version__
    assert "\n" not in str(error.value)


def test_an_original_that_changes_during_the_run_is_noticed(model: nn.Module) -> None:
    def careless(small: nn.Module) -> float:
        with torch.no_grad():
            next(model.parameters()).add_(1)
        return 1.0

    with pytest.raises(InvariantViolated, match="the original must be as it was before the run"):
        hope.encode(model, EXAMPLE, drop=0.1, method="l1-in", evaluate=careless)


@pytest.mark.parametrize("method", ["absorb", "paper", "l1-in", hope.Paper(merge="sum")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sound_runs_pass(model: nn.Module, method: Any, dtype: torch.dtype) -> None:
    encoding = hope.encode(model.to(dtype), EXAMPLE.to(dtype), density=0.5, method=method)
    assert sum(one.numel() for one in encoding.model.parameters()) == encoding.size.parameters


def test_a_cut_before_compensation_is_probed(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absorptions are not exact, and the cut that they begin with is held to silencing all the same."""
    anatomy, rewrite = hope.inspect(model, EXAMPLE), Prune.replace_modules

    def wrongly(self: Prune, small: nn.Module, context: RewriteContext) -> None:
        rewrite(self, small, context)
        for name in filters(context.anatomy, self):
            get(small, name).data.mul_(2)

    monkeypatch.setattr(Prune, "replace_modules", wrongly)
    with pytest.raises(InvariantViolated, match="nothing reads"):
        _ = hope.encode(
            model, EXAMPLE, density=0.5, method=hope.Absorb(calibration=None), evict=False, anatomy=anatomy
        ).model


def test_layers_that_an_eviction_takes_as_a_whole_are_not_probed(model: nn.Module) -> None:
    run = hope.encode(model, EXAMPLE, steps=1, method="l1-in").run
    layer = run.anatomy.layers[0]
    assert _is_plain(run, layer.name, layer.neurons - 1)
    assert not _is_plain(run, layer.name, layer.neurons)


def test_networks_that_differ_from_themselves_or_overflow_are_left_alone() -> None:
    class Huge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).abs().sqrt().sub(1e9).log()  # type: ignore[no-any-return]

    encoding = hope.encode(Huge().eval(), torch.zeros(2, 4), density=0.5)
    assert isinstance(encoding.anatomy, Anatomy)
    assert encoding.model is not None
