"""Runs come to what they came to when they were recorded.

To the bit on the machine that recorded them, with one thread; elsewhere baselines take the same steps, and
costs agree up to rounding. The cases `hope-live` were recorded anew when live ΔP stopped counting the last
weight of a branch, as static ΔP never did; `absorb-measured` when measured moments got the propagated ones as
their prior, and when inputs came to be measured in their own statistics; `timm/resnetv2_18 hope` when
pre-activation blocks were held against what their skip carries; `hope` on GoogLeNet and DenseNet-121 when
blocks without a skip could be evicted; `hope-sum` in the last bits of its costs when pairs came to be worked
out as they are asked for (steps and weights stayed the same).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hope.methods.scores import SCORES
from tests.golden.record import RECORDED, cases, machine, record

NETWORKS = ("digits", "timm/tinynet_e", "torchvision/shufflenet_v2_x0_5", "timm/resnetv2_18")
SIZES = ("steps", "parameters", "macs", "left alone", "infeasible")
SUMS = ("cost", "bound", "threshold")


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_case_is_recorded(recorded: dict[str, Any]) -> None:
    assert {f"{name} {what}" for name, what, *_ in cases()} == set(recorded["cases"])


@pytest.mark.parametrize("name", NETWORKS)
def test_runs_come_to_what_was_recorded(name: str, recorded: dict[str, Any]) -> None:
    library = name.partition("/")[0]
    if library != name:
        pytest.importorskip(library, reason=f"{library} is not installed")
    here = machine() == recorded["machine"]
    made = 0
    for key, found in record([f"{name} "]):
        made += 1
        for part, value in recorded["cases"][key].items():
            if part in SUMS:
                assert found[part] == pytest.approx(value, rel=1e-12 if here else 1e-6), (key, part)
            elif here or (part in SIZES and key.partition(" ")[2] in SCORES):
                assert found[part] == value, (key, part)
    assert made > 1
