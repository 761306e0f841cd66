"""The network of `hope demo`, and scikit-learn's digits to train it."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional

from hope.errors import MissingData


class ResidualBlock(nn.Module):
    """Two convolutions with an identity skip."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to its input."""
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x
        activated: Tensor = self.relu(out)
        return activated


class DigitsNet(nn.Module):
    """A stem, three blocks and a head that flattens 4×4 maps: for 8×8 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(*(ResidualBlock(16, 32) for _ in range(3)))
        self.squeeze = nn.Conv2d(16, 24, 1, bias=False)
        self.bn = nn.BatchNorm2d(24)
        self.head = nn.Linear(24 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores for ten classes."""
        x = self.blocks(self.stem(x))
        x = functional.max_pool2d(torch.relu(self.bn(self.squeeze(x))), 2)
        scores: Tensor = self.head(x.flatten(1))
        return scores


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's 8×8 digits: training images and labels, test images and labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingData("the demo needs scikit-learn: pip install 'hope-encoding[demo]'") from error
    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 8 - 1
    labels = torch.from_numpy(data.target).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1200], order[1200:]
    return images[train], labels[train], images[test], labels[test]


def train(images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """A trained network."""
    torch.manual_seed(0)
    model = DigitsNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=epochs * len(images) // 60)
    for _ in track(range(epochs), "training", console=Console(stderr=True), transient=True):
        for batch in torch.randperm(len(images)).reshape(-1, 60):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return model.eval()
