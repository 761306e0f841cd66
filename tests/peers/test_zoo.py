"""Networks that nobody here wrote: what is cut away physically must be what is silent in the original."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import hope
from hope._util.calls import Example
from hope.actions import Merge
from hope.rewrite.apply import outcome
from hope.structure.analyse import read_model
from hope.structure.anatomy import Anatomy
from hope.structure.needs import Need, needs
from hope.structure.sizes import sizes
from tests.support import assert_same, check_cut, masked, random_cut, randomise, run
from zoo.foreign import Entry, zoo
from zoo.interpretation import export
from zoo.silence import silenced, together

pytestmark = pytest.mark.zoo
TOLERANCE = 1e-4


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def check_evictions(
    program: ExportedProgram,
    model: nn.Module,
    example: Example,
    anatomy: Anatomy,
    evictions: Sequence[hope.Evict],
    prunings: Sequence[hope.Prune] = (),
) -> None:
    """Without some blocks, the network computes what the original does when their branches say nothing."""
    some = together(anatomy, evictions, prunings)
    if not some:
        return
    actions = [*some, *prunings]
    small = hope.cut(model, anatomy, actions)
    assert type(small) is type(model)
    silent = silenced(model, example, anatomy, some, prunings, program)
    assert_same(run(small, example), silent, TOLERANCE)
    assert parameters(small) == outcome(anatomy, actions).size(anatomy).parameters < parameters(model)
    assert parameters(small) == sizes(anatomy, actions)[-1, 1]


def mixture(anatomy: Anatomy) -> list[hope.Evict]:
    """Half of the blocks (nested ones too), leaving a bias if they can."""
    rng = random.Random(1)
    evictions = []
    for block in rng.sample(anatomy.blocks, len(anatomy.blocks) // 2):
        bias = [rng.uniform(-0.1, 0.1) for _ in range(block.channels)] if block.bias else None
        evictions.append(hope.Evict(block.name, bias))
    return evictions


def check_single_releases(model: nn.Module, anatomy: Anatomy) -> None:
    """Each block without a skip, evicted alone, releases what it says."""
    for block in [block for block in anatomy.blocks if not block.residual][::7]:
        small = hope.cut(model, anatomy, [hope.Evict(block.name)])
        assert parameters(model) - parameters(small) == block.release


@pytest.mark.parametrize("entry", zoo(), ids=lambda entry: entry.key)
def test_removing_neurons_and_blocks_equals_silencing_them(entry: Entry) -> None:
    model, example = randomise(entry.build()), entry.example()
    anatomy, _ = check_cut(model, example, tolerance=TOLERANCE)
    assert anatomy.size().parameters == parameters(model)
    if anatomy.blocks:
        program = export(model, example)
        outermost = [hope.Evict(block.name) for block in anatomy.blocks if block.inside is None]
        check_evictions(program, model, example, anatomy, outermost)
        check_evictions(program, model, example, anatomy, outermost[::-1])
        check_evictions(program, model, example, anatomy, mixture(anatomy), random_cut(anatomy, seed=1))
        check_single_releases(model, anatomy)
    causes = {one.reason.cause for one in anatomy.skipped}
    if causes & {hope.Cause.STREAM, hope.Cause.NORMALISED}:
        check_streams(model, example, counted=entry.source == "torchvision" and hope.Cause.STREAM in causes)


def check_streams(model: nn.Module, example: Example, *, counted: bool) -> None:
    """Without some channels of its streams, the network computes what it does when nobody reads them, and its
    norms run over what is left.
    """
    anatomy = hope.inspect(model, example, streams=True)
    actions = random_cut(anatomy)
    small = hope.cut(model, anatomy, actions)
    assert_same(run(small, example), run(masked(model, anatomy, actions), example), TOLERANCE)
    if not counted:  # reading the smaller network again would take long
        return
    assert any(unit.open for unit in anatomy.streams)
    _, left, macs = sizes(anatomy, actions)[-1]
    assert parameters(small) == left
    assert read_model(small, example, progress=False)[0].size().macs == macs


STREAMS = (
    "torchvision/resnet18", "torchvision/mobilenet_v2", "torchvision/regnet_y_400mf", "timm/resnetv2_18",
    "timm/seresnet18", "timm/res2net50_26w_4s", "timm/repvgg_a0", "timm/mobileone_s0", "timm/hrnet_w18_small",
    "timm/dla34", "timm/ghostnet_050", "timm/inception_resnet_v2",
)  # fmt: skip


@pytest.mark.parametrize("key", STREAMS)
def test_removing_channels_of_streams_equals_silencing_them(key: str) -> None:
    entry = next(entry for entry in zoo() if entry.key == key)
    model, example = randomise(entry.build()), entry.example()
    anatomy, small = check_cut(model, example, tolerance=TOLERANCE, streams=True)
    assert any(unit.open for unit in anatomy.streams)
    assert sizes(anatomy, random_cut(anatomy))[-1, 2] == hope.inspect(small, example).size().macs
    evictions = [hope.Evict(block.name) for block in anatomy.blocks if block.inside is None]
    program = export(model, example)
    for some in (evictions, mixture(anatomy)):
        check_evictions(program, model, example, anatomy, some, random_cut(anatomy, seed=1))


def twins(model: nn.Module, anatomy: Anatomy) -> None:
    """Make the second neuron of every layer nearly a copy of the first: something to merge."""
    tensors = dict(model.named_parameters())
    with torch.no_grad():
        for part in (part for layer in anatomy.layers for part in layer.places):
            tensor = tensors[part.tensor].movedim(part.dim, 0)
            tensor[torch.from_numpy(part.index[1])] = 1.01 * tensor[torch.from_numpy(part.index[0])]


WITHOUT_BN = ("torchvision/vgg11", "timm/convnext_atto", "timm/resnet50_gn", "timm/vit_tiny_patch16_224")


def recombined(model: nn.Module, anatomy: Anatomy, steps: Sequence[hope.Prune | Merge]) -> nn.Module:
    """A full-size copy with parents in the place of one neuron of each merged pair, and the other unread."""
    silent = copy.deepcopy(model)
    tensors = dict(silent.named_parameters())
    with torch.no_grad():
        for step in steps:
            for part in anatomy.unit(step.name).places if isinstance(step, Merge) else ():
                tensor = tensors[part.tensor].movedim(part.dim, 0)
                keep, drop = (torch.from_numpy(part.index[one]) for one in (step.keep, step.drop))
                first, second = step.outs if part.role == "in" else step.rows
                tensor[keep] = first * tensor[keep] + second * tensor[drop]
    return masked(silent, anatomy, [hope.Prune(step.name, step.removed) for step in steps])


@pytest.mark.parametrize("key", WITHOUT_BN)
def test_networks_without_bn_are_compressed_by_the_paper_from_a_few_inputs(key: str) -> None:
    entry = next(entry for entry in zoo() if entry.key == key)
    model, example = randomise(entry.build()), entry.example()
    assert isinstance(example, Tensor)
    anatomy = hope.inspect(model, example)
    twins(model, anatomy)
    assert set(needs(anatomy, "paper").values()) <= {Need.CALIBRATION}
    wide = [layer.name for layer in anatomy.layers if layer.neurons > 1024]  # their pairs would take minutes
    batches = [torch.randn(n, *example.shape[1:]) for n in (3, 3, 2)]
    method = hope.Paper(calibration=batches)
    encoding = hope.encode(
        model,
        example,
        steps=200 if anatomy.layers else 0,
        method=method,
        exclude=wide,
        anatomy=anatomy,
        evict=False,
    )
    assert set(encoding.left_alone) <= {*wide, *(layer.name for layer in anatomy.layers)}
    assert all(why.cause is hope.Cause.EXCLUDED for why in encoding.left_alone.values())
    assert set(encoding.measures) == {layer.name for layer in anatomy.layers} - set(encoding.left_alone)
    steps = encoding.trajectory.steps[: encoding.steps]
    assert key != "torchvision/vgg11" or any(isinstance(step, Merge) for step in steps)
    assert_same(run(encoding.model, example), run(recombined(model, anatomy, steps), example), TOLERANCE)  # type: ignore[arg-type]
