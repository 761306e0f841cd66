"""Records come back as they were written, or are refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hope
from hope._util.digest import digest_of
from hope.actions import Absorption, AnyAction, Evict, Merge, Prune
from hope.reasons import Cause, Reason
from hope.storage.codec import Format, decode, encode, pack, unpack
from hope.storage.record import PLAN, Details, StoredAnatomy
from hope.trace.blocks import Block, Replace, ReplaceByZero
from tests.golden.record import digits
from tests.storage.record import EXAMPLE, FORMS, OLD, SCHEMAS, json_schema, tuned
from tests.support import random_cut, same

STEPS: tuple[AnyAction, ...] = (
    Prune("a", [3, 1]),
    Prune("a", 2, cost=inf, release=7, left=0.25),
    Absorption("b", [0], cost=1e-300, release=2**40, left=1.0),
    Merge("c", 1, 2, (0.5, -0.5), (1.0, 2.0), None, distortion=0.1, cost=3.0),
    Merge("c", keep=1, drop=2, rows=(0.0, 1.0), outs=(1.0, 0.1), spread=0.3, left=inf),
    Evict("d"),
    Evict("d", [0.1, inf], cost=inf, release=1),
)


def back(value: Any, kind: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))), kind)


def test_every_kind_of_step_comes_back() -> None:
    found = back(STEPS, tuple[AnyAction, ...])
    assert found == STEPS
    assert [type(step) for step in found] == [type(step) for step in STEPS]


def test_every_reason_comes_back() -> None:
    reasons = tuple(cause.at("here", "so") for cause in Cause)
    assert back(reasons, tuple[Reason, ...]) == reasons
    assert back(Details(left_alone={"a": reasons[0]}), Details).left_alone == {"a": reasons[0]}


@pytest.mark.parametrize(
    "way",
    [
        Replace("a", ("s",), ("relu",), True),
        Replace("a"),
        ReplaceByZero(("a", "b"), True, (0, 2)),
        ReplaceByZero(("a",)),
        ReplaceByZero(("a",), gives="nothing"),
    ],
)
def test_blocks_come_back_with_their_way(way: Replace | ReplaceByZero) -> None:
    block = Block("a", "identity", 4, 1, 4, ("b",), 9, None, way, True, "n", None, ("w",), "add")
    assert back(block, Block) == block
    part = replace(block, skip="concatenation", besides=(("x", "y"), ("z",)), before="c")
    assert back(part, Block) == part


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=12))
def test_any_owners_come_back(owners: list[int]) -> None:
    owner = np.array(owners, dtype=np.int64)
    assert same(unpack(json.loads(json.dumps(pack(owner)))), owner)


@pytest.mark.parametrize("neurons", [1, 2, 5])
@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("interleaved", [False, True])
def test_regular_owners_take_six_numbers(neurons: int, places: int, start: int, interleaved: bool) -> None:
    regular = np.tile(range(neurons), places) if interleaved else np.repeat(range(neurons), places)
    owner = np.concatenate([np.full(start, -1), regular, np.full(2, -1)]).astype(np.int64)
    assert len(pack(owner)) == 6
    assert same(unpack(pack(owner)), owner)


@pytest.mark.parametrize(
    "packed", [[4, 2, 2, 1, 2, 1], [4, 0, 1, 0, 0, 0], [4, 1, 1, -1, 0, 0], [], ["a"], 3]
)
def test_owners_that_lead_out_of_the_tensor_are_refused(packed: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        unpack(packed)


def resnet18() -> tuple[nn.Module, torch.Tensor]:
    models = pytest.importorskip("torchvision.models")
    return models.resnet18().eval(), torch.zeros(1, 3, 64, 64)


def shuffled() -> tuple[nn.Module, torch.Tensor]:
    models = pytest.importorskip("torchvision.models")
    return models.shufflenet_v2_x0_5().eval(), torch.zeros(1, 3, 64, 64)


@pytest.mark.parametrize("make", [lambda: (digits(), EXAMPLE), resnet18, shuffled])
def test_a_whole_anatomy_comes_back(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> None:
    anatomy = hope.inspect(*make())
    found = back(StoredAnatomy.of(anatomy), StoredAnatomy).read()
    assert same(found, replace(anatomy, program=(), taps={}, made={}, roundable={}, trace=found.trace))


def test_the_same_run_gives_the_same_file(tmp_path: Path) -> None:
    net = digits()
    anatomy = hope.inspect(net, EXAMPLE)
    first, second = (hope.save(tmp_path / name, net, anatomy, random_cut(anatomy)) for name in "ab")
    plan = json.loads((first / PLAN).read_bytes())
    assert (first / PLAN).read_bytes() == (second / PLAN).read_bytes()
    assert plan["anatomy"]["parameters"] == sorted(anatomy.parameters)
    assert (plan["format"], plan["version"], plan["schema"]) == ("hope-run", 3, "hope-run-3")


# ---- what is refused ---------------------------------------------------------------------------------------


def altered(tmp_path: Path, change: Callable[[dict[str, Any]], object], *, sealed: bool = True) -> Path:
    """A copy of a saved run with other words in it; sealed: with the hash that fits them."""
    folder = tmp_path / "copy"
    shutil.copytree(OLD / "run-v3-hope", folder)
    plan = json.loads((folder / PLAN).read_text())
    change(plan)
    if sealed:
        plan["sha256"] = digest_of(plan)
    (folder / PLAN).write_text(json.dumps(plan))
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan.update(more=1), "unknown field `more`"),
        (lambda plan: plan["weights"].update(more=1), "unknown field `more`"),
        (lambda plan: plan["anatomy"]["blocks"][0]["way"].update(more=1), "unknown field `more`"),
        (lambda plan: plan.pop("anatomy"), "missing required field `anatomy`"),
        (lambda plan: plan.update(steps="44"), "Expected `int`, got `str`"),
        (lambda plan: plan["anatomy"]["units"][0].update(neurons=1.5), "Expected `int`"),
        (
            lambda plan: plan["anatomy"]["units"][0]["places"][0].update(owner=[3, 9, 9, 9, 1, 1]),
            "must be inside the tensor",
        ),
        (lambda plan: plan["anatomy"]["units"][0]["places"][0].update(owner=["a"]), "Expected"),
        (lambda plan: plan["anatomy"]["skipped"][0]["reason"].update(cause="whim"), "Invalid enum value"),
        (lambda plan: plan["anatomy"]["blocks"][0]["way"].update(kind="blow up"), "Invalid value"),
        (lambda plan: plan["trajectory"][0].__setitem__(0, "blow up"), "Invalid value"),
        (lambda plan: plan["trajectory"].append(["evict", "nowhere", None, 0.0, 0, 0.0]), "nowhere"),
        (lambda plan: plan.update(method={}), "the method must have a name"),
        (lambda plan: plan.update(method={"name": 3}), "the method must have a name"),
        (lambda plan: plan["details"].update(fidelities=[[1]]), "Expected `array`"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    folder = altered(tmp_path, change)
    with pytest.raises(hope.DamagedFolder, match="has invalid content") as refusal:
        hope.load(folder, digits())
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("version", [4, 99, 0, -1, "3", None, True])
def test_other_versions_are_refused(tmp_path: Path, version: object) -> None:
    folder = altered(tmp_path, lambda plan: plan.update(version=version))
    with pytest.raises(hope.DamagedFolder, match="this package reads 2 and 3: update the package"):
        hope.load(folder, digits())


def test_version_2_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(OLD / "run-v2-hope", folder)
    plan = json.loads((folder / PLAN).read_text())
    for change in ({"actions": [{"kind": "blow up"}]}, {"costs": [1.0]}, {"anatomy": 3}, {"method": None}):
        broken = {**plan, **change}
        (folder / PLAN).write_text(json.dumps({**broken, "sha256": digest_of(broken)}))
        with pytest.raises(hope.DamagedFolder, match="has invalid content"):
            hope.load(folder, digits())


@pytest.mark.parametrize("name", ["run-v2-hope", "run-v3-hope", "adapter-v1-mask", "adapter-v2-mask"])
def test_an_altered_byte_is_noticed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(OLD / name, folder)
    (path,) = folder.glob("*.json")
    text = path.read_text()
    path.write_text(text.replace("blocks.0", "blocks.1", 1))
    with pytest.raises(hope.DamagedFolder, match="altered"):
        (hope.load if "run" in name else hope.deft.load)(folder, digits())


# ---- schemas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_format_changes_only_with_its_version(form: Format[Any]) -> None:
    reported = json.loads((SCHEMAS / f"{form.schema}.json").read_text())
    assert reported == json_schema(form), (
        f"{form.name} has changed: add a migration, which makes it version {form.version + 1}, and record "
        "folders and schema of that version (python -m tests.storage.record); if all that is new is a cause, "
        "a kind of action or an optional field, recording the schema again is enough"
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_files_have_the_fields_of_their_schema(form: Format[Any]) -> None:
    schema = json_schema(form)
    properties = schema["$defs"][form.record.__name__]["properties"]
    for path in OLD.glob(f"*-v{form.version}-*/*.json"):
        plan = json.loads(path.read_text())
        if plan["format"] == form.name:
            assert set(schema["$defs"][form.record.__name__]["required"]) <= plan.keys()
            assert plan.keys() <= properties.keys()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_what_is_saved_now_has_all_fields(form: Format[Any], tmp_path: Path) -> None:
    hope.encode(digits(), EXAMPLE, params=0.8, evict=False).save(tmp_path / "run")
    tuned().save_pretrained(tmp_path / "adapter")
    plans = [json.loads(path.read_text()) for path in tmp_path.glob("*/*.json")]
    (plan,) = [plan for plan in plans if plan["format"] == form.name]
    assert plan.keys() == json_schema(form)["$defs"][form.record.__name__]["properties"].keys()
