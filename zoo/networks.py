"""The networks that experiments and tests use, under the names of their public checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from hope._util.operators import declare_missing_operators
from hope.errors import CheckpointMismatch, MissingExtra, first_line


class Subsample(nn.Module):
    """A skip without parameters: every second pixel, and zero channels on both sides."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        """Half the resolution, more channels."""
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra // 2))


class CifarBlock(nn.Module):
    """A basic block with a parameter-free skip."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity() if stride == 1 else Subsample(channels - before)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the skip."""
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(out + self.shortcut(x))


class CifarResNet(nn.Module):
    """ResNet-8, -20, -56 … for CIFAR after He et al.: three stages of 16, 32 and 64 channels.

    Args:
        depth: layers; two more than six per block of a stage.
        classes: outputs.
    """

    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for stage, (before, channels) in enumerate(((16, 16), (16, 32), (32, 64)), start=1):
            sizes = [(before, channels, 1 if stage == 1 else 2), *[(channels, channels, 1)] * (blocks - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(*(CifarBlock(*size) for size in sizes)))
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores for every class."""
        x = functional.relu(self.bn1(self.conv1(x)))
        for stage in ("layer1", "layer2", "layer3"):
            x = self.get_submodule(stage)(x)
        scores: Tensor = self.linear(x.mean((2, 3)))
        return scores


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 with the stride on the first, as in the first version of ResNet-50."""

    def __init__(self, before: int, width: int, stride: int, eps: float, project: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width, eps)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width, eps)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width, eps)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if project:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width, eps)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the skip."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(out)))))
        out += x if self.downsample is None else self.downsample(x)
        activated: Tensor = self.relu(out)
        return activated


class ResNet50V1(nn.Module):
    """ResNet-50 as Keras has it: stride on the first convolution of a block, ε = 1e-3.

    Args:
        eps: of the BNs.
        first: channels of the first convolution; the others follow.
        classes: outputs.
    """

    def __init__(self, eps: float = 1e-3, first: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, first, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(first, eps)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        before = first
        for stage, blocks in enumerate((3, 4, 6, 3), start=1):
            width, parts = first * 2 ** (stage - 1), []
            for position in range(blocks):
                stride = 2 if stage > 1 and position == 0 else 1
                parts.append(Bottleneck(before, width, stride, eps, position == 0))
                before = 4 * width
            self.add_module(f"layer{stage}", nn.Sequential(*parts))
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores for every class."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in ("layer1", "layer2", "layer3", "layer4"):
            x = self.get_submodule(stage)(x)
        scores: Tensor = self.fc(x.mean((2, 3)))
        return scores


class Attention(nn.Module):
    """Multi-head attention, written so that heads can be cut: how many there are is told by the weights."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """What every token reads of the others."""
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)  # (N, heads, tokens, size)
            for layer in (self.query, self.key, self.value)
        )
        heard = functional.scaled_dot_product_attention(query, key, value)
        told: Tensor = self.out(heard.transpose(1, 2).flatten(2))
        return told


class VitBlock(nn.Module):
    """Attention and an MLP, each behind a norm and added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Both branches."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class SmallVit(nn.Module):
    """A vision transformer after Dosovitskiy et al. for 32×32 pixels: norms in front, the mean of all tokens.

    Args:
        classes: outputs.
        width: of the stream.
        depth: blocks.
        heads: of each attention.
        patch: side of a patch.
    """

    def __init__(
        self, classes: int = 30, width: int = 64, depth: int = 6, heads: int = 4, patch: int = 4
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (32 // patch) ** 2, width))
        self.blocks = nn.Sequential(*(VitBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores for every class."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        scores: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return scores


CHECKPOINTS = {
    "cifar10-resnet20": "weights/cifar10-resnet20.safetensors",
    "cifar10-resnet56": "weights/cifar10-resnet56.safetensors",
    "keras-resnet50": "keras-resnet50.safetensors",
    "mobilenet_v2": "mobilenet_v2.safetensors",
}
SHAPES = {name: "1x3x32x32" if name.startswith("cifar10") else "1x3x224x224" for name in CHECKPOINTS}
"""Their inputs, as on the command line."""


def untrained(name: str) -> nn.Module:
    """One of the networks without its weights."""
    if name == "mobilenet_v2":
        return _mobilenet()
    return ResNet50V1() if name == "keras-resnet50" else CifarResNet(int(name.removeprefix("cifar10-resnet")))


def _mobilenet() -> nn.Module:
    """Torchvision's MobileNetV2, which nothing else needs to have."""
    declare_missing_operators()
    try:
        from torchvision.models import mobilenet_v2
    except ImportError as error:
        raise MissingExtra("mobilenet_v2 must have torchvision, got none: pip install torchvision") from error
    model: nn.Module = mobilenet_v2()
    return model


def trained(name: str, *folders: Path) -> nn.Module:
    """One of the trained networks, in evaluation mode, from the first folder that has its
    checkpoint.
    """
    model = untrained(name)
    for folder in folders:
        path = folder / CHECKPOINTS[name]
        if path.is_file():
            try:
                model.load_state_dict(load_file(path))
            except Exception as error:  # not safetensors, or another network's
                raise CheckpointMismatch(f"{path} does not fit {name}: {first_line(error)}") from error
            return model.eval()
    places = " or ".join(str(folder / CHECKPOINTS[name]) for folder in folders)
    raise CheckpointMismatch(f"there is no checkpoint of {name}: expected {places}")
