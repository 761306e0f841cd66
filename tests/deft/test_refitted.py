"""Cores that are chosen and refitted as compression does it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hope
from hope.deft import Partition, Tuning
from hope.errors import InvalidPartition
from tests.deft.nets import Residual, assert_core_kept, chain, core_entries, images, made, train


def _refitted(net: torch.nn.Module, free: float = 0.3) -> tuple[Partition, Tuning]:
    part = hope.deft.partition(net, images(2), free=free)
    return part, hope.deft.prepare(net, part, head=4)


@pytest.mark.parametrize("make", [chain, Residual])
def test_the_network_starts_as_exactly_the_compressed_one(make: type[torch.nn.Module]) -> None:
    net, x = made(make()), images()
    part, tuning = _refitted(net)
    small = hope.encode(net, images(2), density=1 - part.free, evict=False).model
    with tuning.source() as source:
        torch.testing.assert_close(source(x), small(x), rtol=1e-5, atol=1e-6)
        masked = source(x)
    with tuning.source(masked=False) as source:
        assert torch.equal(source(x), masked)  # slack writes nothing yet
    assert part.free == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("make", [chain, Residual])
def test_training_moves_slack_only_and_keeps_the_source_to_the_bit(make: type[torch.nn.Module]) -> None:
    net, x = made(make()), images()
    _, tuning = _refitted(net)
    before = core_entries(tuning)
    with tuning.source() as source:
        answers = source(x)
    logits = tuning.model.eval()(x)
    train(tuning.model, torch.optim.AdamW(tuning.model.parameters(), lr=0.01, weight_decay=0.1))
    assert_core_kept(before, core_entries(tuning))
    with tuning.source() as source:
        assert torch.equal(source(x), answers)
    assert not torch.equal(tuning.model.eval()(x), logits)


def test_slack_reaches_the_head_through_streams_of_core() -> None:
    _, tuning = _refitted(made(Residual()))
    assert any("stem.0, second.conv2" in note for note in tuning.notes)
    before = tuning.model.get_parameter("third.conv2.weight").detach().clone()
    train(tuning.model, torch.optim.SGD(tuning.model.parameters(), lr=0.1))
    moved = (tuning.model.get_parameter("third.conv2.weight") != before).flatten(2).any(dim=2)
    slack = ~tuning.frozen["third.conv2.weight"].expand(before.shape).flatten(2).any(dim=2)
    assert bool(moved.any())
    assert not bool((moved & ~slack).any())


def test_more_is_free_at_the_same_fidelity_than_by_a_mask() -> None:
    net = made(chain())
    part, mask = (hope.deft.partition(net, images(2), fidelity=0.95, sever=s) for s in ("refit", "mask"))
    assert hope.deft.prepare(net, part, head=3).cost.fidelity >= 0.95
    slack, masked = (sum(int((~core).sum()) for core in one.core.values()) for one in (part, mask))
    assert slack > masked


def test_patterns_keep_layers_completely_core() -> None:
    part = hope.deft.partition(made(chain()), images(2), free=0.3, core=["4"])
    assert part.core["4"].all()
    assert not part.core["0"].all()


def test_a_saved_one_loads_to_the_bit(tmp_path: Path) -> None:
    net, x = made(chain()), images()
    _, tuning = _refitted(net)
    train(tuning.model, torch.optim.SGD(tuning.model.parameters(), lr=0.1))
    again = hope.deft.load(tuning.save_pretrained(tmp_path), net)
    assert torch.equal(again.model.eval()(x), tuning.model.eval()(x))
    with again.source() as one, tuning.source() as other:
        assert torch.equal(one(x), other(x))


def test_the_cost_has_two_numbers() -> None:
    net, x = made(chain()), images(64)
    labels = net(x).argmax(dim=1)
    part = hope.deft.partition(net, images(2), free=0.3)
    tuning = hope.deft.prepare(net, part, head=4, batches=[(x, labels)])
    assert tuning.cost is not None
    assert tuning.cost.before == 1
    assert tuning.cost.after == tuning.cost.after_as_is
    train(tuning.model, torch.optim.SGD(tuning.model.parameters(), lr=0.5), steps=8)
    now = tuning.measure([(x, labels)])
    assert now.after == tuning.cost.after
    with tuning.source(masked=False) as network:
        assert now.after_as_is == float((network(x).argmax(dim=1) == labels).double().mean())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"free": 1.5}, "free must be between 0 and 1, got 1.5"),
        ({"free": 0.3, "percentile": 20}, "free= and percentile= cannot be combined"),
        ({"free": 0.3, "sever": "mask"}, "free= must go with sever='refit'"),
        ({"percentile": 20, "sever": "refit"}, "use free="),
        ({"merge": "pair", "sever": "refit"}, "use free="),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidPartition, match=words):
        hope.deft.partition(made(chain()), images(2), **options)  # type: ignore[arg-type]


def test_prepare_severs_as_the_partition_was_made() -> None:
    net = made(chain())
    refitted, mask = (hope.deft.partition(net, images(2), **o) for o in ({"free": 0.2}, {"percentile": 20}))
    with pytest.raises(InvalidPartition, match="must be made with sever='mask'"):
        hope.deft.prepare(net, refitted, sever="mask")
    with pytest.raises(InvalidPartition, match="must be made with sever='refit'"):
        hope.deft.prepare(net, mask, sever="refit")
