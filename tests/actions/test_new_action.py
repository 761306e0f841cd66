"""A new action is one class: what is registered here goes through a run, a folder, the command line and the
page, and no module outside of `hope.actions` tells kinds of actions apart.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hope
from hope._util.tensors import get
from hope.actions import Absorption, Action, Evict, Merge, Prune, Quantise, kinds, register, unregister
from hope.actions.base import RewriteContext
from hope.cli.main import main
from hope.methods.scores import Score, ScorePath, ScoreState
from hope.report.page import page_data, write_page
from hope.storage.run import read_run
from hope.structure.anatomy import Anatomy
from tests.report.conftest import slide
from tests.support import randomise

EXAMPLE = torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8)
BUILD = "from hope.demo import DigitsNet\n\n\ndef build():\n    return DigitsNet()\n"


class Round(Action, frozen=True, array_like=True, tag="round"):
    """Round the weights of a layer to multiples of a step, and store them in 8 bits."""

    kind: ClassVar[str] = "round"
    letter: ClassVar[str] = "r"
    done: ClassVar[str] = "rounded"
    plural: ClassVar[str] = "roundings"
    sentence: ClassVar[str] = "round the weights of {name}"

    name: str
    grid: float

    def entry_bits(self, anatomy: Anatomy) -> Mapping[str, float]:
        """8 bits for each of its weights."""
        return dict.fromkeys(anatomy.unit(self.name).written, 8)

    @classmethod
    def finish(cls, model: nn.Module, context: RewriteContext, actions: Sequence[Self]) -> None:
        """Round what is left of the weights."""
        for action in actions:
            for name in context.anatomy.unit(action.name).written:
                weight = get(model, name)
                weight.data.copy_((weight / action.grid).round() * action.grid)


class RoundPath(ScorePath):
    """A layer is rounded, and then loses neurons."""

    def steps(self) -> Iterator[Action]:
        """All steps down to one neuron."""
        yield Round(self._state.name, 0.25, cost=1e-6, release=1, left=self.left)
        yield from super().steps()


@dataclass(frozen=True)
class Rounding(Score):
    """A baseline that rounds."""

    @property
    def path(self) -> Callable[[ScoreState], ScorePath]:
        """Roundings first."""
        return RoundPath


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    register(Round)
    yield
    unregister(Round)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return randomise(hope.demo.DigitsNet()).eval()


@pytest.fixture(scope="module")
def encoding(model: nn.Module) -> hope.Encoding:
    return hope.encode(model, EXAMPLE, method=Rounding("l1-in"), size=0.5, progress=False)


@pytest.fixture(scope="module")
def folder(encoding: hope.Encoding, model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rounded")
    (path / "net.py").write_text(BUILD)
    save_file(model.state_dict(), path / "weights.safetensors")
    source = {"model": f"{path / 'net.py'}:build", "weights": str(path / "weights.safetensors")}
    return encoding.save(path / "run", source={**source, "input": "1x1x8x8"})


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, str]:
    return {"rounded": write_page([read_run(folder)], folder.with_name("run.html")).as_uri()}


def first(encoding: hope.Encoding) -> Round:
    step = encoding.trajectory[0]
    assert isinstance(step, Round)
    return step


def test_a_run_takes_it_and_counts_what_it_frees(encoding: hope.Encoding) -> None:
    step, stored = first(encoding), encoding.trajectory.counts("size")
    entries = sum(prod(encoding.anatomy.shapes[name]) for name in encoding.anatomy.unit(step.name).written)
    assert stored[0] - stored[1] == 3 * entries
    assert encoding.trajectory.mix()["round"] == len(encoding.anatomy.layers)
    assert "roundings" in repr(encoding.trajectory)


def test_it_rewrites_weights_at_every_moment_of_the_run(encoding: hope.Encoding, model: nn.Module) -> None:
    name = first(encoding).name
    (weight,) = encoding.anatomy.unit(name).written
    original, rounded = get(model, weight), get(encoding.at(steps=1), weight)
    assert torch.equal(get(encoding.at(steps=0), weight), original)
    assert torch.equal(rounded, (original / 0.25).round() * 0.25)
    assert not torch.equal(rounded, original)


def test_a_folder_keeps_it(encoding: hope.Encoding, folder: Path, model: nn.Module) -> None:
    assert read_run(folder).trajectory.steps == encoding.trajectory.steps
    small, again = encoding.model.state_dict(), hope.load(folder, model).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in small.items())


def test_the_command_line_extracts_it(encoding: hope.Encoding, folder: Path, tmp_path: Path) -> None:
    for steps in (1, encoding.steps):
        target = tmp_path / f"{steps}.safetensors"
        call = ["extract", str(folder), f"{folder.with_name('net.py')}:build", "--steps", str(steps)]
        assert main([*call, "--out", str(target)]) == 0
        want, found = encoding.at(steps=steps).state_dict(), load_file(target)
        assert all(torch.equal(tensor, found[name]) for name, tensor in want.items())


def test_the_page_has_its_words(folder: Path, visit: Any) -> None:
    run = read_run(folder)
    assert page_data([run])["runs"][0]["kinds"].startswith("r")
    page = visit("rounded")
    slide(page, 0)
    assert page.locator("#next .what").first.inner_text() == f"Round the weights of {run.trajectory[0].name}"
    slide(page, len(run.trajectory))
    layers = len(run.anatomy.layers)
    assert f"{layers} rounded" in page.locator("#mix").inner_text()


def test_a_run_of_an_action_that_is_not_registered_says_so(folder: Path) -> None:
    unregister(Round)
    try:
        with pytest.raises(
            hope.HopeError, match=r"'round': actions must be one of .*: import the module that registers"
        ):
            read_run(folder)
    finally:
        register(Round)


def test_kinds_and_letters_are_taken_once() -> None:
    class Other(Prune, frozen=True, array_like=True, tag="prune"):
        kind = "prune"
        letter = "x"

    class Same(Prune, frozen=True, array_like=True, tag="same"):
        kind = "same"

    for action, word in ((Other, "kind"), (Same, "letter")):
        with pytest.raises(ValueError, match=f"the {word} of {action.__name__} must be its own, got .*Prune"):
            register(action)
    assert kinds() == (Prune, Merge, Absorption, Evict, Quantise, Round)


def told_apart(node: ast.AST) -> set[str]:
    """The names of actions, or their kinds, that an expression tells apart."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "issubclass")
    ):
        return {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
    if isinstance(node, ast.MatchClass):
        return {one.id for one in ast.walk(node.cls) if isinstance(one, ast.Name)}
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        called = any(isinstance(one, ast.Call) and ast.unparse(one.func) == "type" for one in sides)
        kind = any(isinstance(one, ast.Attribute) and one.attr in ("kind", "letter") for one in sides)
        names = {one.id for side in sides for one in ast.walk(side) if called and isinstance(one, ast.Name)}
        return names | {str(one.value) for one in sides if kind and isinstance(one, ast.Constant)}
    return set()


@pytest.mark.parametrize("code", ["isinstance(s, Evict | Merge)", "type(s) is Prune", "s.kind == 'evict'"])
def test_telling_kinds_apart_is_seen(code: str) -> None:
    assert any(told_apart(node) & {"Evict", "Prune", "evict"} for node in ast.walk(ast.parse(code)))


def test_nobody_else_tells_kinds_of_actions_apart() -> None:
    root = Path(hope.__file__).parent
    words = {"Action"}.union(*({one.__name__, one.kind} for one in kinds()))
    found = [
        f"{path.relative_to(root)}:{getattr(node, 'lineno', 0)} {sorted(told_apart(node) & words)}"
        for path in sorted(root.rglob("*.py"))
        if root / "actions" not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if told_apart(node) & words
    ]
    assert found == []
