"""A budget unit is one class: the one below is used everywhere that a budget is given."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hope
from hope.actions import Action
from hope.cli.main import main
from hope.schedule.budget import Budget, ReplayBudget, RunBudget
from hope.schedule.cost_model import CostModel, MacCost
from hope.schedule.resources import UNITS, Resource, register
from hope.storage.run import read_run
from hope.structure.anatomy import Anatomy
from hope.structure.sizes import Counts, sizes, stored

EXAMPLE = torch.zeros(2, 3)
MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
"""


class PackedBytes(Resource):
    """Bytes of the parameters at four bits each."""

    name, noun = "packed", "bytes at four bits"
    scales: ClassVar[Mapping[str, int]] = {"B": 1, "kB": 1000}
    accepts = "a fraction between 0 and 1 or an amount with its unit (B, kB)"
    examples = (0.6, "10kB")

    def counts(self, anatomy: Anatomy, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) bytes."""
        return -(-sizes(anatomy, steps)[:, 1] // 2)


class Flash(Resource):
    """Bytes in a device's flash: as they are stored, and a header of 64."""

    name, noun, rounds = "flash", "bytes in flash", True
    scales: ClassVar[Mapping[str, int]] = {"B": 1, "kB": 1000}
    examples = (0.6, "10kB")

    def counts(self, anatomy: Anatomy, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) bytes."""
        return stored(anatomy, steps) + 64


class Energy(Resource):
    """Nanojoules that only a measurement knows: here three for each MAC."""

    name, noun, measured = "energy", "nanojoules", True

    def counts(self, anatomy: Anatomy, steps: Sequence[Action]) -> None:
        """Nothing: it is measured."""

    def cost_model(self, model: nn.Module, example: Any, anatomy: Anatomy) -> CostModel:
        """Three nanojoules for each MAC."""
        return EnergyCost(anatomy)


class EnergyCost(MacCost):
    """Nanojoules (see `CostModel`)."""

    resource = "energy"

    def counts(self, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) nanojoules."""
        return 3 * super().counts(steps)

    def after(self, removed: Mapping[str, int], evicted: Collection[str] = ()) -> int:
        """Nanojoules after a cut."""
        return 3 * super().after(removed, evicted)


@pytest.fixture(autouse=True)
def packed() -> Iterator[Resource]:
    units = dict(UNITS)
    for resource in (PackedBytes(), Flash(), Energy()):
        register(resource)
    yield UNITS["packed"]
    UNITS.clear()
    UNITS.update(units)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def build() -> nn.Sequential:
    names: dict[str, Any] = {}
    exec(MODEL, names)
    return names["build"]().eval()


def packed_bytes(model: nn.Module) -> int:
    return -(-sum(p.numel() for p in model.parameters()) // 2)


def test_a_registered_unit_is_a_budget_of_every_call(tmp_path: Path) -> None:
    net, whole = build(), packed_bytes(build())
    encoding = hope.encode(net, EXAMPLE, packed=0.6)  # type: ignore[call-arg]
    assert packed_bytes(encoding.model) <= 0.6 * whole < packed_bytes(encoding.at(steps=encoding.steps - 1))
    other = encoding.at(packed="24B")  # type: ignore[call-arg]
    assert packed_bytes(other) <= 24 < whole
    folder = encoding.save(tmp_path / "run")
    loaded = hope.load(folder, net, packed="24B")  # type: ignore[call-arg]
    assert all(map(torch.equal, loaded.parameters(), other.parameters()))
    trained = hope.save_finetuned(tmp_path / "trained", folder, other, packed="24B")  # type: ignore[call-arg]
    assert packed_bytes(hope.load(trained, net)) == packed_bytes(other)


def test_a_registered_unit_is_an_option_of_the_command_line(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, model = str(tmp_path / "run"), [f"{file}:build", "--input", "2x3"]
    encode = ["encode", *model, "--out", run]
    assert main([*encode, "--packed", "16B"]) == 0
    saved, out = read_run(run), tmp_path / "small.safetensors"
    assert saved.trajectory.counts("packed")[saved.steps] <= 16
    assert main(["extract", run, *model, "--packed", "0.9", "--out", str(out)]) == 0
    steps = saved.trajectory.steps_to("packed", 0.9)
    assert 0 < steps < saved.steps
    assert len(load_file(out)["0.weight"]) == 8 - steps
    capsys.readouterr()
    assert main([*encode, "--force", "--packed", "10ms"]) == 2
    assert "packed must be a fraction between 0 and 1 or an amount" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["encode", "--help"])
    assert "bytes at four bits to keep: a fraction (0.6) or an amount (10kB)" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_registered_unit_that_cannot_be_met_is_refused_in_its_own_words() -> None:
    words = r"packed=2B cannot be met: the smallest reachable is packed=0\.\d+ \(\d+B of"
    with pytest.raises(hope.InfeasibleBudget, match=words):
        hope.encode(build(), EXAMPLE, packed="2B")  # type: ignore[call-arg]


@pytest.mark.parametrize("method", ["absorb", "paper", "l1-in"])
def test_a_measured_unit_ranks_the_steps_and_is_a_budget_of_its_own_runs(method: str, tmp_path: Path) -> None:
    net = build()
    encoding = hope.encode(net, EXAMPLE, energy=0.5, method=method)  # type: ignore[call-arg]
    macs = encoding.trajectory.sizes[:, 2]
    assert encoding.trajectory.counts("energy").tolist() == (3 * macs).tolist()
    assert macs[encoding.steps] <= 0.5 * macs[0] < macs[encoding.steps - 1]
    assert encoding.run.details.settings["ranked"] == "energy"
    small = encoding.at(energy=3 * int(macs[1]))  # type: ignore[call-arg]
    assert all(map(torch.equal, small.parameters(), encoding.at(steps=1).parameters()))
    folder = encoding.save(tmp_path / "run")
    assert read_run(folder).trajectory.counts("energy").tolist() == (3 * macs).tolist()
    loaded = hope.load(folder, net, energy=3 * int(macs[1]))  # type: ignore[call-arg]
    assert all(map(torch.equal, loaded.parameters(), small.parameters()))
    other = hope.encode(net, EXAMPLE, params=0.5, method=method)
    with pytest.raises(hope.InfeasibleBudget, match="does not know its energy: encode again with energy="):
        other.at(energy=0.5)  # type: ignore[call-arg]


def test_a_registered_unit_that_rounding_saves_is_met_by_bits_too() -> None:
    net = build()
    encoding = hope.encode(net, EXAMPLE, flash=0.5)  # type: ignore[call-arg]
    assert encoding.trajectory.mix(encoding.steps)["quantise"]
    assert encoding.trajectory.steps == hope.encode(net, EXAMPLE, size=0.3).trajectory.steps
    only = hope.encode(net, EXAMPLE, flash=0.5, bits=8)  # type: ignore[call-arg]
    assert {step.bits for step in only.trajectory if isinstance(step, hope.Quantise)} == {8}
    words = "bits must go with size=, got packed, which they do not save"
    with pytest.raises(hope.UnknownMethod, match=words):
        hope.encode(net, EXAMPLE, packed=0.5, bits=8)  # type: ignore[call-arg]


def test_a_run_in_a_registered_measured_unit_is_found_again(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["encode", f"{file}:build", "--input", "2x3", "--out", str(tmp_path / "run"), "--energy", "0.5"]
    assert main(run) == 0
    capsys.readouterr()
    assert main([*run, "--resume"]) == 0
    assert "already has this run" in capsys.readouterr().out


def test_no_unit_is_known_by_its_name_outside_its_class() -> None:
    names = {unit.name for unit in UNITS.values()}
    for path in sorted(Path(hope.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                texts = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
                named = {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node)}
                told = {"unit", "resource"} & named and names & texts
                assert not told, f"{path.name}:{node.lineno} compares a unit with {told}"


def test_a_name_is_taken_once(packed: Resource) -> None:
    with pytest.raises(hope.UnknownMethod, match="must be a new identifier, got 'packed'"):
        register(packed)


@pytest.mark.parametrize(
    ("call", "keywords"),
    [
        (hope.encode, RunBudget),
        (hope.Encoding.at, ReplayBudget),
        (hope.load, ReplayBudget),
        (hope.save_finetuned, ReplayBudget),
    ],
)
def test_help_and_editors_list_the_budgets(call: Any, keywords: type[ReplayBudget]) -> None:
    own = {name: unit for name, unit in UNITS.items() if not isinstance(unit, (PackedBytes, Flash, Energy))}
    names = [name for name, unit in own.items() if keywords is RunBudget or unit.replayable]
    assert list(keywords.__annotations__) == names
    assert [name for name in inspect.signature(call).parameters if name in own] == names


def test_an_unknown_keyword_is_told_what_it_may_have_been() -> None:
    words = r"option of the call or a budget \(density, .* got 'parms': did you mean params\?"
    with pytest.raises(TypeError, match=words):
        hope.encode(build(), EXAMPLE, parms=0.5)  # type: ignore[call-arg]


@pytest.mark.parametrize("unit", [*UNITS])
def test_what_a_unit_recommends_is_accepted_and_what_it_prints_can_be_given_again(unit: str) -> None:
    kind = UNITS[unit]
    for example in kind.examples:
        value = kind.parse(example)
        name, _, text = str(Budget(unit, value)).partition("=")
        assert name == unit
        again = text if isinstance(example, str) else type(value)(float(text))
        assert kind.parse(again) == value
