"""DEFT on networks without BN: a few unlabelled inputs tell what neurons and streams carry."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.deft import InvalidPartition, NotSeparable
from hope.deft.capacities import Energies
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.marginals import measured_marginals
from tests.deft.nets import chain, images, made
from tests.support import randomise


class Plain(nn.Module):
    """A residual network without normalisation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.a, self.b = nn.Conv2d(width, 10, 3, padding=1), nn.Conv2d(10, width, 3, padding=1)
        self.c, self.d = nn.Conv2d(width, 10, 3, padding=1), nn.Conv2d(10, width, 3, padding=1)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.b(torch.relu(self.a(x))))
        x = torch.relu(x + self.d(torch.relu(self.c(x))))
        return self.head(x.mean((2, 3)))


def net() -> nn.Module:
    return randomise(Plain(), 2).eval()


def inputs() -> list[Tensor]:
    return [images(16, seed) for seed in (3, 4)]


def test_without_bn_and_inputs_it_is_said_what_to_type() -> None:
    with pytest.raises(
        NotSeparable, match=r"pass a few inputs with calibration=batches, or freeze"
    ) as caught:
        hope.deft.partition(net(), images(2), sever="mask")
    assert len(str(caught.value).splitlines()) == 1


def test_what_streams_and_layers_carry_is_what_hooks_see() -> None:
    model, batches = net(), inputs()
    anatomy = hope.inspect(model, images(2))
    measured = measured_marginals(model, anatomy, batches)
    energies = Energies(anatomy, Checkpoint.of(model, anatomy, measured=measured))
    seen: dict[str, list[Tensor]] = {}
    for name in ("a", "c", "head"):
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name: seen.setdefault(name, []).append(args[0].clone().double())
        )
    with torch.no_grad():
        for batch in batches:
            model(batch)
    (stream,) = anatomy.streams
    heard = {one.places.tensor: one.energy for one in energies.observers(stream)}
    assert heard.keys() == {"a.weight", "c.weight", "head.weight"}
    for name, some in seen.items():
        square = torch.cat(some).movedim(1, 0).flatten(1).square().mean(dim=1)
        assert heard[f"{name}.weight"] == pytest.approx(square, rel=1e-5)


@pytest.mark.parametrize("merge", [True, "pair", False])
@pytest.mark.parametrize("by", ["prune-cost", "capacity"])
def test_a_network_without_bn_is_split_and_its_core_stays(merge: bool | str, by: str) -> None:
    model = net()
    part = hope.deft.partition(model, images(2), percentile=50, merge=merge, by=by, calibration=inputs())
    assert part.core.keys() == {"stem", "a", "c"}
    core, slack, freed = (sum(column) for column in zip(*part.counts().values(), strict=True))
    assert core > 0
    assert slack > 0
    assert freed == len(part.merges)
    tuning = hope.deft.prepare(model, part, head=4)
    optimizer = torch.optim.AdamW(tuning.model.parameters(), lr=0.05, weight_decay=0.1)
    x = images(6, 11)
    with tuning.source() as source:
        before = source(x).detach()
    for seed in range(3):
        optimizer.zero_grad()
        tuning.model(images(8, seed)).square().mean().backward()
        optimizer.step()
    assert tuning.moved() == []
    with tuning.source() as source:
        assert torch.equal(source(x), before)


def test_measured_inputs_let_the_core_take_over_more() -> None:
    """Without a BN nothing is absorbed until there are inputs; then the source loses less than by masks."""
    model, batches = net(), inputs()
    part = hope.deft.partition(model, images(2), percentile=30, merge=False, calibration=batches)
    x = images(64, 9)
    with torch.no_grad():
        want = model(x)
        lost = {}
        for name, options in {
            "mask": {},
            "blind": {"sever": "absorb"},
            "measured": {"sever": "absorb", "calibration": batches},
        }.items():
            tuning = hope.deft.prepare(model, part, head=4, **options)  # type: ignore[arg-type]
            with tuning.source() as source:
                lost[name] = float((source(x) - want).square().mean())
            assert bool(tuning.notes) == (name == "blind")
    assert lost["blind"] == pytest.approx(lost["mask"])
    assert lost["measured"] < 0.8 * lost["mask"]


def test_inputs_for_a_mask_are_refused() -> None:
    model = made(chain())
    part = hope.deft.partition(model, images(2))
    with pytest.raises(InvalidPartition, match="calibration must be left out unless sever='absorb'"):
        hope.deft.prepare(model, part, calibration=inputs())


def test_a_generator_of_pairs_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    loose = ((batch, torch.zeros(len(batch))) for batch in inputs())
    parts = [hope.deft.partition(model, images(2), calibration=some) for some in (loose, inputs())]
    assert capsys.readouterr().err.count("the second as labels") == 1
    for name, core in parts[0].core.items():
        assert torch.equal(core, parts[1].core[name])
