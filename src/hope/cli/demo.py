"""`hope demo`: train a small network on digits, compress it with every method, compare, save."""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

import hope
from hope.bench.accuracy import accuracy
from hope.demo import DigitsNet, digits, train

DENSITIES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
METHODS: dict[str, dict[str, Any]] = {
    "absorb": {},
    "paper": {"method": hope.Paper()},
    "paper, merge=sum": {"method": hope.Paper(merge="sum")},
    "paper, no eviction": {"method": hope.Paper(), "evict": False},
    **{name: {"method": hope.Score(name)} for name in ("l1-in", "l1-joint", "bn-scale", "random")},
}


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="train a small network on digits and compress it, in about a minute",
        description="Train a small residual network on scikit-learn's digits, compress it with HOPE and the "
        "baselines without data, compare the accuracies, and save the run.",
    )
    parser.add_argument("--out", metavar="FOLDER", help="where to save the run (default: a temporary folder)")
    parser.add_argument("--epochs", type=int, default=12, help="epochs of training (default: %(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """The whole tour."""
    console = Console(highlight=False)
    images, labels, test_images, test_labels = digits()
    model = train(images, labels, options.epochs)
    example = images[:1]
    console.print("[bold]1. hope.inspect[/bold]: the structure of the network\n")
    anatomy = hope.inspect(model, example)
    print(anatomy)

    base = accuracy(model, test_images, test_labels)
    console.print(f"\n[bold]2. hope.encode[/bold]: smaller, without data (test accuracy {base:.3f})\n")
    table = Table(
        "neurons kept", *(f"{density:.0%}" for density in DENSITIES), box=None, title_justify="left"
    )
    runs = {}
    for name, settings in track(METHODS.items(), "encoding", console=Console(stderr=True), transient=True):
        encoding = runs[name] = hope.encode(
            model, example, density=min(DENSITIES), anatomy=anatomy, progress=False, **settings
        )
        scores = [accuracy(encoding.at(density=d), test_images, test_labels) for d in DENSITIES]
        table.add_row(name, *(f"{score:.3f}" for score in scores))
    console.print(table)
    sizes = Table("of absorb's network", *(f"{density:.0%}" for density in DENSITIES), box=None)
    trajectory = runs["absorb"].trajectory
    points = [trajectory.size(trajectory.steps_to("density", density)) for density in DENSITIES]
    before = trajectory.size(0)
    sizes.add_row("parameters", *(f"{point.parameters / before.parameters:.0%}" for point in points))
    sizes.add_row("MACs", *(f"{point.macs / before.macs:.0%}" for point in points))
    console.print(sizes)

    folder = runs["absorb"].save(options.out or tempfile.mkdtemp(prefix="hope-demo-"))
    again = hope.load(folder, DigitsNet()).eval()
    halfway = hope.load(folder, model, density=0.7)
    console.print("\n[bold]3. hope.load[/bold]: the saved run gives the network at any budget\n")
    console.print(f"saved in {folder}", soft_wrap=True)
    console.print(f"loaded into a fresh network: accuracy {accuracy(again, test_images, test_labels):.3f}")
    console.print(
        f"the same run at 70% of the neurons: accuracy {accuracy(halfway, test_images, test_labels):.3f}"
    )
    console.print("\nNext: hope inspect torchvision:resnet18", soft_wrap=True)
    console.print(
        "      hope encode your_file.py:function --weights w.safetensors --params 0.6 --out run/",
        soft_wrap=True,
    )
