"""Methods as objects: names, options, what they tell, and what each ablation changes."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hope
from hope.methods import METHODS, Method, named
from hope.methods.absorption_path import AbsorbState

ALL: list[Method] = [
    hope.Absorb(),
    hope.Absorb(calibration=[torch.zeros(2, 3, 4, 4)], sensitivity=True),
    hope.Absorb(calibration="dream"),
    hope.Paper(),
    hope.Paper(merge=None, kernel="exact", release="live"),
    hope.Paper(calibration=[torch.zeros(2, 3, 4, 4)]),
    *(hope.Score(by) for by in ("l1-in", "l1-joint", "bn-scale", "random")),
]


# ---- names and options ---------------------------------------------------------------------------------


def test_every_name_is_a_method_of_that_name() -> None:
    assert {name: named(name).name for name in METHODS} == {name: name for name in METHODS}
    assert named("paper") == hope.Paper()
    assert named("hope") == hope.Paper()  # its former name
    assert named("l1-joint") == hope.Score("l1-joint")
    method = hope.Paper(merge="sum")
    assert named(method) is method


@pytest.mark.parametrize("name", ["magic", "", "Hope", 3, None, hope.Paper])
def test_unknown_names_are_refused_in_one_line(name: Any) -> None:
    with pytest.raises(hope.UnknownMethod, match="method must be one of") as refusal:
        named(name)
    assert "\n" not in str(refusal.value)
    assert all(known in str(refusal.value) for known in METHODS)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (hope.Paper, {"merge": "both"}, "merge of paper must be one of pair, sum, None, got 'both'"),
        (hope.Paper, {"kernel": "rbf"}, "kernel of paper must be one of zero-bias, exact, got 'rbf'"),
        (hope.Paper, {"release": True}, "release of paper must be one of static, live, got True"),
        (hope.Score, {"by": "l2"}, "a score must be one of l1-in, l1-joint, bn-scale, random, got 'l2'"),
        (hope.Absorb, {"calibration": "nightmare"}, "calibration must be batches of inputs"),
    ],
)
def test_unknown_options_are_refused_in_one_line(
    method: type[Method], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(hope.UnknownMethod) as refusal:
        method(**options)
    assert str(refusal.value).startswith(words)
    assert "\n" not in str(refusal.value)


def test_no_other_package_asks_which_method_it_is() -> None:
    """What differs is a property of the method, so that a new one is known everywhere."""
    source, asked = Path(hope.__file__).parent, re.compile(r"isinstance\([^()]*\b(Absorb|Paper|Score)\b")
    assert asked.search("isinstance(method, Paper | Absorb)")
    for path in source.rglob("*.py"):
        assert source / "methods" in path.parents or not asked.search(path.read_text()), path
    for path in source.rglob("*.js"):
        assert not [name for name in METHODS if f'"{name}"' in path.read_text()], path


# ---- what they tell ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_what_a_method_tells_is_plain_data(method: Method) -> None:
    reported = method.to_dict()
    assert json.loads(json.dumps(reported)) == reported
    assert reported["name"] == method.name


def test_different_options_are_told_differently() -> None:
    assert len({json.dumps(method.to_dict()) for method in ALL}) == len(ALL)


def test_a_path_goes_to_an_executor_without_the_calibration() -> None:
    """Batches may be large, or a loader that cannot be pickled."""
    method = hope.Absorb(calibration=(batch for batch in [torch.zeros(2, 3)]))
    with pytest.raises(TypeError):
        pickle.dumps(method)
    walk = pickle.loads(pickle.dumps(method.path))
    one = torch.eye(3, dtype=torch.float64)
    state = AbsorbState("layer", 3, 1, 1.0, [one], [torch.diag(torch.tensor([0.2, 0.5, 0.3]).double())])
    assert [step.removed for step in walk(state).steps()] == [(0,), (2,)]
    for other in ALL:
        assert callable(pickle.loads(pickle.dumps(other.path)))
