"""Compressed networks before and after a short fine-tuning: methods × budgets.

A small network is trained first, once; its weights are kept beside the results. Every method then compresses
it as in `hope.bench.compression`, and every compressed network is fine-tuned with the same images in the
same order, at the same rate and for as long, once per seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope._util.files import write_file
from hope.bench import compression, datasets
from hope.bench.networks import CifarResNet
from hope.bench.training import Recipe, train
from hope.errors import CheckpointMismatch, first_line

NAME = "cifar100-resnet8"
BUDGETS = ("params=0.5", "params=0.3")
TRAINING = Recipe(epochs=8, rate=0.1)
TUNING = Recipe(epochs=2, rate=0.02)
IMAGES, SEEDS = 4000, 2


@dataclass(frozen=True, kw_only=True)
class TuningTask(compression.Task):
    """A task whose networks are fine-tuned, too.

    Attributes:
        train_images, train_labels: to fine-tune on.
        tuning, training: how networks are fine-tuned, and how the original was trained.
        seeds: how many fine-tunings of each network.
    """

    train_images: Tensor
    train_labels: Tensor
    tuning: Recipe = TUNING
    training: Recipe = TRAINING
    seeds: int = SEEDS

    def identity(self) -> dict[str, Any]:
        """What must be the same for results to be gone on with."""
        return {
            **super().identity(),
            "fine-tuning images": len(self.train_images),
            "fine-tuning": asdict(self.tuning),
            "training": asdict(self.training),
            "seeds": self.seeds,
        }

    def further(self, network: nn.Module) -> dict[str, Any]:
        """Accuracy after fine-tuning: of every seed, and the mean."""
        scores = []
        for seed in range(self.seeds):
            tuned = duplicate(network).requires_grad_(True)
            train(tuned, self.train_images, self.train_labels, self.tuning, seed=seed, progress=False)
            scores.append(datasets.accuracy(tuned, self.images, self.labels))
        return {"fine-tuned": fmean(scores), "fine-tuned by seed": scores}


def weights_path(out: Path, training: Recipe) -> Path:
    """Where the trained network is kept, beside the results."""
    return out.with_name(f"{out.stem}-{NAME}-{training.epochs}-epochs.safetensors")


def trained(
    path: Path, images: Tensor, labels: Tensor, training: Recipe, *, progress: bool | None = None
) -> nn.Module:
    """The network, in evaluation mode: read, or trained and kept."""
    torch.manual_seed(0)
    model = CifarResNet(8, int(labels.max()) + 1)
    if path.is_file():
        try:
            model.load_state_dict(load_file(path))
        except Exception as error:  # not safetensors, or of other data
            raise CheckpointMismatch(
                f"{path} does not fit ({first_line(error)}): move it away, or give another --out"
            ) from error
        return model.eval()
    train(model, images, labels, training, seed=0, progress=progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, save({name: value.contiguous() for name, value in model.state_dict().items()}))
    return model


def run(
    data: Path,
    out: Path,
    *,
    methods: Sequence[str] = tuple(compression.METHODS),
    budgets: Sequence[str] = BUDGETS,
    tuning: Recipe = TUNING,
    training: Recipe = TRAINING,
    images: int = IMAGES,
    seeds: int = SEEDS,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Train the network, unless that is done, and measure what is not in the results yet.

    Args:
        data: a folder with `cifar100-30c.npz`.
        out: the results.
        images: how many training images to fine-tune on; the first 96 of them are the unlabelled ones.
        seeds: how many fine-tunings of each network.
    """
    x, y, x_test, y_test = datasets.cifar100(data)
    compression.check_out(out)
    compression.read_results(out)  # damaged ones are told before the training
    model = trained(weights_path(out, training), x, y, training, progress=progress)
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:images]
    measured = x_test.contiguous(memory_format=torch.channels_last)  # which a CPU is faster with
    task = TuningTask(
        NAME, model, x_test[:1], measured, y_test, x[chosen[:96]], tuple(budgets),
        train_images=x[chosen], train_labels=y[chosen], tuning=tuning, training=training, seeds=seeds,
    )  # fmt: skip
    return compression.run([task], out, methods=methods, progress=progress)
