"""`hope demo`: read a small residual network, cut it, evict a block, save it and load it again."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import hope


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="read and cut a small network, in seconds",
        description="Read a small residual network, remove neurons and a block, save and load the result.",
    )
    parser.add_argument("--out", metavar="FOLDER", help="where to save the run (default: a temporary folder)")
    parser.set_defaults(run=run)


class Block(nn.Module):
    """Two convolutions beside an identity."""

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


class Network(nn.Module):
    """A stem, three blocks and a head that flattens 4×4 maps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(*(Block(16, 32) for _ in range(3)))
        self.squeeze = nn.Conv2d(16, 24, 1)
        self.head = nn.Linear(24 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores for ten classes."""
        x = self.blocks(self.stem(x))
        x = nn.functional.max_pool2d(torch.relu(self.squeeze(x)), 2)
        scores: Tensor = self.head(x.flatten(1))
        return scores


def run(options: argparse.Namespace) -> None:
    """The whole tour."""
    console = Console(highlight=False)
    torch.manual_seed(0)
    model = Network().eval()
    example = torch.randn(4, 1, 8, 8)
    anatomy = hope.inspect(model, example)
    console.print("[bold]1. hope.inspect[/bold]: what the network consists of\n")
    print(anatomy)

    actions = [hope.Prune(layer.name, range(layer.neurons // 2)) for layer in anatomy.layers]
    actions_all: list[hope.Prune | hope.Evict | hope.Merge] = [*actions, hope.Evict("blocks.1")]
    small = hope.cut(model, anatomy, actions_all)
    before, after = (sum(p.numel() for p in net.parameters()) for net in (model, small))
    console.print("\n[bold]2. hope.cut[/bold]: half of all neurons and one block removed, for real\n")
    console.print(f"{type(small).__name__}: {before:,} → {after:,} parameters ({after / before:.0%})")
    console.print(f"blocks.0.conv1 is now {small.get_submodule('blocks.0.conv1')}", markup=False)
    console.print(f"blocks.1 is now {small.get_submodule('blocks.1')}", markup=False)

    folder = hope.save(options.out or tempfile.mkdtemp(prefix="hope-demo-"), model, anatomy, actions_all)
    again = hope.load(folder, Network()).eval()
    with torch.no_grad():
        same = torch.equal(small(example), again(example))
    size = sum(file.stat().st_size for file in Path(folder).iterdir())
    console.print("\n[bold]3. hope.save, hope.load[/bold]: data, not code\n")
    console.print(
        f"saved in {folder} ({size / 1024:.0f} KiB); loaded into a fresh network: outputs equal: {same}"
    )
    console.print("\nNext: hope inspect torchvision:resnet18, or hope inspect your_file.py:your_function")
