"""DEFT on a transformer: MLP neurons and heads learn, and the source task stays to the bit."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hope
from hope.deft import NotSeparable, Partition, Tuning
from tests.deft.nets import core_entries
from tests.support import randomise
from zoo.networks import SmallVit


def _net() -> nn.Module:
    return randomise(SmallVit(5, width=16, depth=2, patch=8), 3).eval()


def _images(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def _partition(net: nn.Module, *frozen: str) -> Partition:
    return hope.deft.partition(
        net, _images(2), percentile=60, merge=False, core=["patches", *frozen], calibration=[_images(16)]
    )


def _answers(tuning: Tuning) -> Tensor:
    with tuning.source() as model, torch.no_grad():
        return model(_images(8, 2))


def _train(model: nn.Module, steps: int) -> float:
    """The loss of a few steps on a task of three classes."""
    x, y = _images(24, 5), torch.arange(24) % 3
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_a_stream_behind_a_layer_norm_is_refused_by_name_in_one_line() -> None:
    with pytest.raises(
        NotSeparable, match=r"patches.*layer_norm in blocks\.0\.norm1.*core=\['patches'\]"
    ) as e:
        hope.deft.partition(_net(), _images(2), calibration=[_images(16)], sever="mask")
    assert len(str(e.value).splitlines()) == 1


@pytest.mark.parametrize("sever", ["mask", "absorb"])
@pytest.mark.parametrize(("frozen", "kind"), [("*attention*", "mlp"), ("*mlp*", "attention")])
def test_neurons_and_heads_learn_and_the_source_stays(frozen: str, kind: str, sever: str) -> None:
    net = _net()
    part = _partition(net, frozen)
    slack = [name for name, core in part.core.items() if not core.all()]
    assert slack
    assert all(kind in name for name in slack)
    measured = [_images(16)] if sever == "absorb" else None
    tuning = hope.deft.prepare(net, part, head=3, sever=sever, calibration=measured)
    before, core = _answers(tuning), core_entries(tuning)
    start = {name: value.clone() for name, value in tuning.model.state_dict().items()}
    _train(tuning.model, 4)
    assert torch.equal(_answers(tuning), before)
    assert tuning.moved() == []
    assert all(torch.equal(value, core_entries(tuning)[name]) for name, value in core.items())
    moved = {name for name, value in tuning.model.state_dict().items() if not torch.equal(value, start[name])}
    for name in slack:  # both what slack hears and what it says
        unit = part.anatomy.unit(name)
        assert {place.tensor for place in unit.places if place.tensor.endswith("weight")} <= moved


def test_right_after_the_cut_core_hears_no_slack() -> None:
    net = _net()
    part = _partition(net)
    tuning = hope.deft.prepare(net, part)
    with torch.no_grad():
        assert torch.equal(tuning.model(_images(8, 2)), _answers(tuning))


def test_it_is_said_where_core_hears_slack() -> None:
    net = _net()
    tuning = hope.deft.prepare(net, _partition(net), head=3)
    (note,) = tuning.notes
    assert "stream of patches, except in source(): layer_norm in blocks.0.norm1" in note


def test_slack_learns_what_a_head_alone_does_not() -> None:
    net = _net()
    part = _partition(net)
    losses = []
    for made in (hope.deft.prepare, hope.deft.baselines.head_only):
        torch.manual_seed(0)
        losses.append(_train(made(net, part, head=3).model, 20))
    assert losses[0] < 0.7 * losses[1]


def test_a_diverged_slack_is_not_heard_in_the_source() -> None:
    net = _net()
    tuning = hope.deft.prepare(net, _partition(net), head=3)
    before = _answers(tuning)
    with torch.no_grad():
        for name, parameter in tuning.model.named_parameters():
            if name in tuning.frozen:
                parameter.masked_fill_(~tuning.frozen[name], float("inf"))
    assert torch.equal(_answers(tuning), before)


def test_what_slack_says_is_saved(tmp_path: Path) -> None:
    net = _net()
    tuning = hope.deft.prepare(net, _partition(net), head=3)
    _train(tuning.model, 3)
    again = hope.deft.load(tuning.save_pretrained(tmp_path), net)
    with torch.no_grad():
        assert torch.equal(again.model.eval()(_images(4)), tuning.model.eval()(_images(4)))
    assert torch.equal(_answers(again), _answers(tuning))
    _train(again.model, 3)
    assert torch.equal(_answers(again), _answers(tuning))


def test_a_vit_of_transformers_learns_keeps_its_source_and_is_saved(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the model is of transformers")
    config = transformers.ViTConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        image_size=32, patch_size=8, num_labels=5,
    )  # fmt: skip
    net = randomise(transformers.ViTForImageClassification(config), 3).eval()
    part = hope.deft.partition(
        net,
        {"pixel_values": _images(2)},
        percentile=60,
        merge=False,
        core=["vit.embeddings*"],
        calibration=[{"pixel_values": _images(16)}],
    )
    tuning = hope.deft.prepare(net, part, head=3)
    x, y = _images(24, 5), torch.arange(24) % 3

    def answers(of: Tuning) -> Tensor:
        with of.source() as model, torch.no_grad():
            return model(pixel_values=x).logits

    before, start = answers(tuning), copy.deepcopy(tuning.model)
    optimizer = torch.optim.AdamW(tuning.model.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        functional.cross_entropy(tuning.model(pixel_values=x).logits, y).backward()
        optimizer.step()
    again = hope.deft.load(tuning.save_pretrained(tmp_path), net)
    assert tuning.moved() == again.moved() == []
    for one in (tuning, again):
        assert torch.equal(answers(one), before)
    with torch.no_grad():
        first, now, loaded = (m.eval()(pixel_values=x).logits for m in (start, tuning.model, again.model))
    assert torch.equal(loaded, now)
    assert not torch.allclose(now, first)
    tuning.model.config.num_labels = 3  # as docs/deft.md says: then others load the new task's model
    tuning.model.save_pretrained(tmp_path / "theirs")
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "theirs").eval()
    with torch.no_grad():
        assert torch.equal(theirs(pixel_values=x).logits, now)
