"""Training in the transfer experiment: the source model, and every way to fine-tune it.

The paper names its layers, its loss and its schedule as Keras does and says nothing of their options, so
they are Keras' defaults:

- an L2 penalty of λ = 5·10⁻⁴ is λ‖w‖², so a weight decay of 2λ; the cosine ends at α times the first rate;
- kernels start from Glorot's uniform distribution, biases at 0, the new head, too;
- BN has ε = 10⁻³, and running statistics keep 0.99 of what they were at every step;
- the last batch of an epoch is smaller, not left out.

Not as in Keras: convolutions are padded (Keras' default is not to, but four blocks of unpadded 3×3 do not fit
into 32×32 pixels); a running variance is the unbiased one, as always in PyTorch, where that of a dense layer
is not in Keras (a batch of 16: 3% of a deviation); momentum holds gradients and not steps, which is the same
as long as the rate hardly changes from step to step. Channels come last in memory, which is faster on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.train import fit
from experiments.transfer.data import Images
from experiments.transfer.scale import Point, Scale
from hope.bench.accuracy import accuracy
from hope.deft import baselines, partition
from hope.deft.fisher import fisher
from hope.deft.prepare import prepare
from hope.deft.store import load
from hope.deft.tuning import Tuning
from zoo.networks import SmallVit

MOMENTUM = 0.9
KEEPS, EPSILON = 0.99, 1e-3  # of BN
LAST = 1e-3  # α of the cosine
CALIBRATION = 512  # unlabelled source images that tell a vision transformer's signals

State: TypeAlias = dict[str, Tensor]


def keras(layer: nn.Module) -> nn.Module:
    """A convolution or dense layer as Keras starts it: Glorot's uniform kernel, no bias."""
    nn.init.xavier_uniform_(layer.get_parameter("weight"))
    if layer.bias is not None:
        nn.init.zeros_(layer.get_parameter("bias"))
    return layer


class Vgg8(nn.Sequential):
    """VGG-8 with BN: six 3×3 convolutions, global average pooling, a bottleneck and a head.

    >>> sum(p.numel() for p in Vgg8(20).parameters()) > 7_000_000
    True

    Args:
        classes: outputs.
        width: multiplies the 128 to 512 filters of the paper.
    """

    def __init__(self, classes: int, width: float = 1.0) -> None:
        sizes = [max(4, round(width * size)) for size in (128, 256, 512, 512, 512, 512, 512)]
        parts: list[nn.Module] = []
        before = 3
        for position, size in enumerate(sizes[:6]):
            parts += [keras(nn.Conv2d(before, size, 3, padding=1, bias=False))]
            parts += [nn.BatchNorm2d(size, EPSILON, 1 - KEEPS), nn.ReLU()]
            if position in (0, 1, 3, 5):
                parts.append(nn.MaxPool2d(2))
            before = size
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), keras(nn.Linear(before, sizes[6], bias=False))]
        parts += [nn.BatchNorm1d(sizes[6], EPSILON, 1 - KEEPS), nn.ReLU()]
        super().__init__(*parts, keras(nn.Linear(sizes[6], classes)))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def untrained(scale: Scale) -> nn.Module:
    """A scale's network, with one output for each class of its source tasks."""
    classes = 5 * scale.superclasses
    if scale.network == "vit":
        return SmallVit(classes, width=round(64 * scale.width))
    return Vgg8(classes, scale.width)


def h_score(target: float, source: float) -> float:
    """The harmonic mean of target accuracy and source retention.

    >>> round(h_score(0.8979, 0.5214), 4)
    0.6597
    """
    return 2 * target * source / (target + source) if target + source > 0 else 0.0


def _precision(scale: Scale) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=scale.half)


def _epoch(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    optimizer: torch.optim.Optimizer,
    scale: Scale,
    penalty: Callable[[], Tensor] | None = None,
    before_step: Callable[[], None] | None = None,
) -> None:
    model.train()
    x, y = data
    order = torch.randperm(len(x))
    for start in range(0, len(x) - 1, scale.batch):
        some = order[start : start + scale.batch]
        if len(some) < 2:  # BN needs two
            continue
        with _precision(scale):
            answers = model(x[some])
        loss = functional.cross_entropy(answers.float(), y[some])
        if penalty is not None:
            loss = loss + penalty()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if before_step is not None:
            before_step()
        optimizer.step()


def _optimizer(
    model: nn.Module, rate: float, penalty: float, decays: Callable[[str, Tensor], bool]
) -> torch.optim.Optimizer:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in named if decays(n, p)], "weight_decay": 2 * penalty},
        {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if isinstance(model, SmallVit):
        return torch.optim.AdamW(groups, lr=rate)
    return torch.optim.SGD(groups, lr=rate, momentum=MOMENTUM)


def pretrain(images: Images, scale: Scale, seed: int) -> nn.Module:
    """A source model: cosine from 0.05, L2 on kernels and BN scales, no early stopping.

    A vision transformer is trained as `experiments.train` trains it.
    """
    torch.manual_seed(seed)
    model = untrained(scale)
    if isinstance(model, SmallVit):
        return fit(model, *images.train, scale.pretraining, mirrored=True, title="source model")
    scales = {
        f"{name}.weight"
        for name, m in model.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
    }
    optimizer = _optimizer(model, 0.05, scale.penalty, lambda name, p: p.ndim > 1 or name in scales)
    total = scale.pretraining * max(1, math.ceil((len(images.train[0]) - 1) / scale.batch))
    done = 0

    def anneal() -> None:
        nonlocal done
        share = 0.5 * (1 + math.cos(math.pi * min(done, total) / total))
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * ((1 - LAST) * share + LAST)
        done += 1

    for _ in range(scale.pretraining):
        _epoch(model, images.train, optimizer, scale, before_step=anneal)
    return model.eval()


def importance_of(model: nn.Module, source: Images) -> State:
    """The Fisher information that EWC holds on to: of the source's training images, none else."""
    return fisher(model, [source.train])


def tuning_of(
    model: nn.Module, point: Point, source: Images, seed: int, importance: State | None = None
) -> Tuning:
    """The source model made ready by a method, with a head for ten digits.

    Merges are the paper's, of pairs, unless the method says otherwise. Baselines do not merge: their
    partition only tells what a masked source head does not hear.

    A vision transformer's stream is core, and its signals are measured on unlabelled source images.

    Args:
        model: the source model.
        point: the method.
        source: its images.
        seed: of the head, the order of images and vessels.
        importance: what `importance_of` said, where it is at hand.
    """
    torch.manual_seed(seed)
    *_, weight, _ = model.parameters()  # of the source's head
    head = keras(nn.Linear(weight.shape[1], 10))
    by = "capacity" if "capacity" in point.method else "prune-cost"
    merge: bool | str = "sum" if "sum merges" in point.method else "pair"
    merge = merge if point.method.startswith("deft") else False
    example = source.train[0][:2]
    measured = None
    frozen: list[str] = []
    if isinstance(model, SmallVit):
        measured, frozen = torch.split(source.train[0][:CALIBRATION], 64), ["patches"]
    part = partition(
        model,
        example,
        percentile=point.percentile,
        by=by,
        merge=merge,
        core=frozen,
        seed=seed,
        calibration=measured,
        progress=False,
    )
    if point.method.startswith("deft"):
        sever = "absorb" if "absorbed" in point.method else "mask"
        measured = measured if sever == "absorb" else None
        held = "frozen" in point.method
        return prepare(model, part, head=head, freeze_statistics=held, sever=sever, calibration=measured)
    if point.method == "ewc":
        importance = importance_of(model, source) if importance is None else importance
        return baselines.ewc(model, part, importance=importance, strength=point.strength, head=head)
    if point.method == "l2-sp":
        return baselines.l2_sp(model, part, strength=point.strength, head=head)
    kinds = {"full": baselines.full, "head-only": baselines.head_only, "bn-tuning": baselines.bn_tuning}
    return kinds[point.method](model, part, head=head)


def tune(
    tuning: Tuning, point: Point, source: Images, target: Images, scale: Scale, epochs: int
) -> tuple[dict[str, Any], dict[str, State]]:
    """Fine-tune at a fixed rate, for so many epochs.

    Returns:
        Validation figures of every epoch, of the best by target accuracy and of the best by H-score; and the
        model as it was in these two.
    """
    optimizer = _optimizer(tuning.model, point.rate, scale.penalty, lambda name, p: p.ndim > 1)
    penalty = tuning.penalty if point.method in ("ewc", "l2-sp") else None
    history: list[dict[str, float]] = []
    best: dict[str, dict[str, float]] = {}
    states: dict[str, State] = {}
    for epoch in range(epochs):
        _epoch(tuning.model, target.train, optimizer, scale, penalty)
        tuning.model.eval()
        with _precision(scale):
            seen = {"epoch": float(epoch), "target": accuracy(tuning.model, *target.valid)}
        with tuning.source() as back, _precision(scale):
            seen["source"] = accuracy(back, *source.valid)
        seen["h"] = h_score(seen["target"], seen["source"])
        history.append(seen)
        for key in ("target", "h"):
            if f"best by {key}" not in best or seen[key] > best[f"best by {key}"][key]:
                best[f"best by {key}"] = seen
                states[f"best by {key}"] = {n: v.clone() for n, v in tuning.model.state_dict().items()}
    return {"point": asdict(point), **best, "history": history}, states


def sweep(tuning: Tuning, point: Point, source: Images, target: Images, scale: Scale) -> dict[str, Any]:
    """Fine-tune on few images; what to choose by is of validation alone."""
    return tune(tuning, point, source, target, scale, scale.sweep)[0]


def tune_and_test(
    tuning: Tuning, point: Point, source: Images, target: Images, scale: Scale
) -> dict[str, Any]:
    """Fine-tune, and test what the best epochs came to.

    "prepared" is the test accuracy of the source task before the first step, "difference" the largest one
    between its scores then and at the best epochs, over all test images.
    """
    with tuning.source() as back:
        first = {"prepared": accuracy(back, *source.test)}
        scores = scores_of(back, source.test[0])
    differences = []
    found, states = tune(tuning, point, source, target, scale, scale.tuning)
    tested: dict[float, dict[str, float]] = {}
    for best, state in states.items():
        epoch = found[best]["epoch"]
        if epoch not in tested:
            tuning.model.load_state_dict(state)
            tested[epoch] = _test(tuning, source, target)
            with tuning.source() as back:
                differences.append(_largest(scores_of(back, source.test[0]), scores))
        found[best] = {**found[best], **tested[epoch]}
    return {**first, "difference": max(differences), **found}


def reloaded(tuning: Tuning, model: nn.Module, source: Images, target: Images) -> float:
    """Save a tuning, load it on top of its source model: how much the scores of both tasks differ at most."""
    with TemporaryDirectory() as folder:
        again = load(tuning.save_pretrained(folder), model)
    differences = []
    for masked, x in ((False, target.test[0]), (True, source.test[0])):
        pair = []
        for one in (tuning, again):
            with one.source() if masked else nullcontext(one.model.eval()) as net:
                pair.append(scores_of(net, x))
        differences.append(_largest(*pair))
    return max(differences)


def scores_of(model: nn.Module, x: Tensor, batch: int = 125) -> Tensor:
    """A model's answers."""
    with torch.inference_mode():
        return torch.cat([model(some) for some in torch.split(x, batch)])


def _largest(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _test(tuning: Tuning, source: Images, target: Images) -> dict[str, float]:
    """Test accuracies: of the target, of the source, and of the source with its head masked."""
    found = {"test target": accuracy(tuning.model.eval(), *target.test)}
    for name, masked in (("test source", None), ("test source masked", True)):
        with tuning.source(masked=masked) as back:
            found[name] = accuracy(back, *source.test)
    found["test h"] = h_score(found["test target"], found["test source"])
    return found
