"""Small networks that no rule of this package was chosen on: `python -m experiments.train FOLDER`.

One with depthwise convolutions on SVHN, and on 30 classes of CIFAR-100 one without skips and a vision
transformer, from the images of the data folder. Minutes each on one core; the same seed gives the same
network on the same machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from experiments.command import call
from experiments.data import data_folder
from hope.errors import InvalidExample
from zoo.networks import SmallVit


class Inverted(nn.Module):
    """Wide, depthwise, narrow; with a skip where shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 4 * inputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """The branch, and the skip if there is one."""
        branch: Tensor = self.body(x)
        return x + branch if self.skip else branch


def depthwise(classes: int = 10) -> nn.Module:
    """After MobileNet-v2, for 32×32 pixels."""
    shapes = ((16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 48, 2), (48, 48, 1))
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    last = [nn.Conv2d(48, 128, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU6()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)]
    return nn.Sequential(*stem, *(Inverted(*shape) for shape in shapes), *last, *head)


def plain(classes: int = 30) -> nn.Module:
    """After VGG, for 32×32 pixels."""
    parts: list[nn.Module] = []
    inputs = 3
    for outputs in (32, 64, 128):
        for _ in range(2):
            parts += [
                nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
            inputs = outputs
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


NETWORKS: dict[str, tuple[Any, str, int]] = {
    "svhn-depthwise": (depthwise, "svhn-part.npz", 5),
    "cifar100-plain": (plain, "cifar100-30c.npz", 6),
    "cifar100-vit": (SmallVit, "cifar100-30c.npz", 10),
}
"""Name -> what makes it, its images, epochs."""


def images(name: str, folder: Path, part: str = "test") -> tuple[Tensor, Tensor]:
    """A network's images, standardised, and their labels from 0."""
    path = folder / NETWORKS[name][1]
    if not path.is_file():
        raise InvalidExample(f"there is no {path}: give the folder that has it with --data")
    with np.load(path) as arrays:
        known = np.unique(arrays["y_train"])
        x, y = arrays[f"x_{part}"], np.searchsorted(known, arrays[f"y_{part}"])
    pixels = torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255
    return (pixels - 0.5) / 0.25, torch.from_numpy(y)


def trained(name: str, folder: Path) -> nn.Module:
    """The network as it was trained."""
    path = folder / f"{name}.safetensors"
    if not path.is_file():
        raise InvalidExample(f"there is no {path}: python -m experiments.train {folder} makes it")
    model: nn.Module = NETWORKS[name][0]()
    model.load_state_dict(load_file(path))
    return model.eval()


def train(name: str, folder: Path) -> nn.Module:
    """Train a network on its images."""
    make, _, epochs = NETWORKS[name]
    x, y = images(name, folder, "train")
    torch.manual_seed(0)
    return fit(make(), x, y, epochs, mirrored=name.startswith("cifar"), title=name)


def fit(net: nn.Module, x: Tensor, y: Tensor, epochs: int, *, mirrored: bool, title: str) -> nn.Module:
    """One cycle of SGD, or of AdamW where there is no BN, on shifted images; half of them mirrored."""
    weights, peak, size = net.parameters(), 0.1, 128
    optimizer: torch.optim.Optimizer
    if isinstance(net, SmallVit):
        peak, size = 1.5e-3, 64
        optimizer = torch.optim.AdamW(weights, lr=peak, weight_decay=0.05)
    else:
        optimizer = torch.optim.SGD(weights, lr=peak, momentum=0.9, weight_decay=5e-4, nesterov=True)
    batches = len(x) // size
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, epochs * batches)
    net.train()
    for _ in track(range(epochs), description=title):
        order = torch.randperm(len(x))
        for k in range(batches):
            some = order[size * k : size * (k + 1)]
            down, right = (int(s) for s in torch.randint(-3, 4, (2,)))
            batch = torch.roll(x[some], (down, right), (2, 3))
            if mirrored and torch.rand(()) < 0.5:
                batch = batch.flip(3)
            loss = functional.cross_entropy(net(batch), y[some])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            cycle.step()
    return net.eval()


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.train",
        description="Train the small networks that rules are checked on.",
        epilog="example: python -m experiments.train checkpoints/ --data data/",
    )
    top.add_argument("folder", help="where to write the checkpoints")
    top.add_argument("--data", metavar="FOLDER", help="images (default: $HOPE_DATA)")
    return top


def run(options: argparse.Namespace) -> None:
    """Train what is not there yet."""
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        path = folder / f"{name}.safetensors"
        if not path.is_file():
            save_file(train(name, data_folder(options.data)).state_dict(), path)
            print(f"{path} written")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
