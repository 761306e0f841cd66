"""What the cut takes from the source is reported, warned about, saved, and can be asked for."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.deft import InvalidPartition, baselines
from hope.deft.elasticity import EPSILON
from hope.errors import InvalidExample, LostSource
from tests.deft.nets import Residual, chain, images, made
from zoo.networks import trained


def _right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return sum(int(model(one[None]).argmax() == label) for one, label in zip(x, y, strict=True)) / len(y)


@pytest.mark.parametrize("sever", ["mask", "absorb"])
def test_cost_is_what_the_source_task_is_worth_right_after_the_cut(sever: str) -> None:
    net = made(Residual()).train()
    part = hope.deft.partition(net, images(2), percentile=20, merge=False)
    x = images(30, seed=5)
    with torch.no_grad():
        y = net.eval()(x).argmax(dim=1)
    y[:6] = (y[:6] + 1) % 5  # the source model itself is wrong at times
    net.train()
    batches = [(x[:20], y[:20]), [x[20:], y[20:]]]
    tuning = hope.deft.prepare(net, part, head=4, sever=sever, batches=iter(batches))
    assert net.training
    with tuning.source() as source:
        fidelity = hope.fidelity(net, source, images(2))
        after = _right(source, x, y)
    assert tuning.cost is not None
    assert tuning.cost.fidelity == pytest.approx(fidelity, abs=1e-6)
    assert (tuning.cost.before, tuning.cost.after, tuning.cost.inputs) == (0.8, after, 30)
    shown = str(tuning)
    assert f"source after severing: predicted fidelity {fidelity:.2f}, of the network as it is" in shown
    assert f"; {after:.1%} of 30" in shown


def test_little_left_is_a_warning_and_much_left_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=95, merge=False)
    with pytest.warns(
        LostSource, match=r"leaves little of the source.*lower percentile.*fidelity=0\.95"
    ) as reported:
        hope.deft.prepare(net, part, head=4)
    assert reported[0].filename == __file__
    assert "\n" not in str(reported[0].message)
    assert capsys.readouterr().err == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = hope.deft.partition(net, images(2), percentile=0, merge=False)
        hope.deft.prepare(net, part, head=4)
    assert "note: the source task after severing: predicted fidelity 1.00" in capsys.readouterr().err


def test_accuracy_decides_where_it_is_known() -> None:
    net = made(chain())
    x = images(12, seed=5)
    part = hope.deft.partition(net, images(2), percentile=0, merge=False)
    with torch.no_grad():
        y = net(x).argmax(dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hope.deft.prepare(net, part, head=4, batches=[(x, y)])
    part = hope.deft.partition(net, images(2), percentile=95, merge=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with hope.deft.prepare(net, part, head=4).source() as source, torch.no_grad():
            as_cut = source(x).argmax(dim=1)
    with warnings.catch_warnings():  # the cut network is always right: nothing is lost that counts
        warnings.simplefilter("error")
        hope.deft.prepare(net, part, head=4, batches=[(x, as_cut)])


def test_cost_is_saved_and_baselines_have_none(tmp_path: Path) -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=10, merge=False)
    y = torch.zeros(8, dtype=torch.long)
    tuning = hope.deft.prepare(net, part, head=4, batches=[(images(8), y)])
    again = hope.deft.load(tuning.save_pretrained(tmp_path), net)
    assert again.cost == tuning.cost
    assert again.cost is not None
    assert again.cost.inputs == 8
    assert "after severing" not in str(baselines.full(net, part, head=4))


def test_without_an_example_nothing_is_predicted_and_that_is_reported() -> None:
    net = made(chain())
    part = hope.deft.partition(net, percentile=95, merge=False, anatomy=hope.inspect(net, images(2)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuning = hope.deft.prepare(net, part, head=4)
    assert tuning.cost is not None
    assert tuning.cost.fidelity is None
    assert "source after severing: not known: the partition was made without an example" in str(tuning)
    with pytest.raises(InvalidPartition, match="must have an example"):
        hope.deft.partition(net, fidelity=0.9, anatomy=part.anatomy)


@pytest.mark.parametrize("batches", [[], [images(4)], [(images(4), torch.zeros(3))], [(images(4), [0] * 4)]])
def test_batches_without_labels_are_refused(batches: list[object]) -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), merge=False)
    with pytest.raises(InvalidExample, match="pairs of inputs and labels"):
        hope.deft.prepare(net, part, head=4, batches=batches)


@pytest.mark.parametrize("by", ["prune-cost", "capacity"])
@pytest.mark.parametrize("sever", ["mask", "absorb"])
def test_the_highest_percentile_that_keeps_a_fidelity_is_found(by: str, sever: str) -> None:
    net = made(Residual())
    part = hope.deft.partition(net, images(2), fidelity=0.8, by=by, sever=sever, merge=False)
    at = int(part.percentile)
    assert part.percentile == at
    assert 0 < at < 100
    kept = []
    for percentile in (at, at + 1):
        other = hope.deft.partition(net, images(2), percentile=percentile, by=by, merge=False)
        with hope.deft.prepare(net, other, head=4, sever=sever).source() as source:
            kept.append(hope.fidelity(net, source, images(2)))
    assert kept[0] >= 0.8 > kept[1]
    tuning = hope.deft.prepare(net, part, head=4)  # severs as the partition was made to be
    assert tuning.cost is not None
    assert tuning.cost.fidelity == pytest.approx(kept[0], abs=1e-6)
    assert bool(tuning.absorbed_head) == (sever == "absorb")


def test_all_of_the_source_is_kept_by_no_slack_and_dead_neurons_do_not_mislead() -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), fidelity=1, merge=False)
    assert sum(int((~mask).sum()) for mask in part.core.values()) <= 1
    with torch.no_grad():  # four neurons say nothing: at percentile 0 the lock falls back to the supremum
        net.get_submodule("5").weight[:4] = 0
        net.get_submodule("5").bias[:4] = -1
    assert hope.deft.partition(net, images(2), percentile=0, merge=False).lock.reason == "supremum"
    part = hope.deft.partition(net, images(2), fidelity=0.999, merge=False)
    assert part.lock.reason == "percentile"
    assert part.lock.threshold >= EPSILON
    assert not part.core["4"][:4].any()
    cost = hope.deft.prepare(net, part, head=4).cost
    assert cost is not None
    assert cost.fidelity is not None
    assert cost.fidelity >= 0.999


def test_a_fidelity_that_merges_put_out_of_reach_is_refused() -> None:
    net = made(chain())
    with torch.no_grad():  # pair merges halve twins
        for name in ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var"):
            net.state_dict()[name][6:] = net.state_dict()[name][:6]
        net.get_parameter("4.weight")[:, 6:] = net.get_parameter("4.weight")[:, :6]
    with pytest.raises(InvalidPartition, match=r"fidelity=1 cannot be reached: percentile 0.*merge=False"):
        hope.deft.partition(net, images(2), fidelity=1, merge="pair")


def test_real_resnet20_says_that_percentile_40_destroys_it(data_folder: Path) -> None:
    net, example = trained("cifar10-resnet20", data_folder), torch.zeros(2, 3, 32, 32)
    part = hope.deft.partition(net, example, percentile=40, merge="pair")
    for sever in ("mask", "absorb"):
        with pytest.warns(LostSource, match="predicted fidelity 0"):
            hope.deft.prepare(net, part, head=10, sever=sever)
    safe = hope.deft.partition(net, example, fidelity=0.9, merge="pair", sever="absorb", anatomy=part.anatomy)
    assert 5 <= safe.percentile <= 20
