"""Accuracy without data and without fine-tuning, against what is kept: HOPE, its variants and the magnitude
baselines.

    python -m benchmarks.compression            # every network whose checkpoint and images are at hand;
    resumable python -m benchmarks.compression --table    # the results as Markdown

Checkpoints and images come from HOPE_DATA (default: ../shared/data); see benchmarks/README.md. Every finished
point is written to benchmarks/compression.json at once, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

import hope
from benchmarks.readme import put
from hope.bench import datasets, networks

RESULTS = Path(__file__).with_name("compression.json")
DENSITIES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
METHODS: dict[str, dict[str, Any]] = {
    "hope": {},
    "hope, merge=sum": {"merge": "sum"},
    "hope, no eviction": {"evict": False},
    "hope, live ΔP": {"static_release": False},
    "l1-in": {"method": "l1-in"},
    "l1-joint": {"method": "l1-joint"},
    "bn-scale": {"method": "bn-scale"},
}
NETWORKS = {
    "cifar10-resnet20": (3, 32, 5000),
    "cifar10-resnet56": (3, 32, 2000),
    "keras-resnet50": (3, 224, 250),
}


def data_folder() -> Path:
    return Path(os.environ.get("HOPE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def write(results: dict[str, Any]) -> None:
    part = RESULTS.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    part.replace(RESULTS)


def interval(share: float, count: int) -> float:
    """Half the width of a 95% interval of a share."""
    return 1.96 * (share * (1 - share) / count) ** 0.5


def run(names: list[str], folders: list[Path]) -> None:
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results["versions"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hope": hope.__version__,
    }
    with Progress() as progress:
        for name in names:
            channels, size, count = NETWORKS[name]
            model = networks.trained(name, *folders)
            load = datasets.imagenet if name.startswith("keras") else datasets.cifar10
            images, labels = load(folders[0], count)
            network = results.setdefault(name, {"images": len(images), "points": {}})
            example = torch.zeros(1, channels, size, size)
            if "base" not in network:
                network["base"] = datasets.accuracy(model, images, labels)
                write(results)
            anatomy = hope.inspect(model, example)
            task = progress.add_task(name, total=len(METHODS) * len(DENSITIES))
            for method, settings in METHODS.items():
                points = network["points"].setdefault(method, {})
                if len(points) == len(DENSITIES):
                    progress.advance(task, len(DENSITIES))
                    continue
                encoding = hope.encode(model, example, density=min(DENSITIES), anatomy=anatomy, **settings)
                trajectory = encoding.trajectory
                for density in DENSITIES:
                    if str(density) not in points:
                        steps = trajectory.steps_to("density", density)
                        score = datasets.accuracy(encoding.at(steps=steps), images, labels)
                        before, after = trajectory.size(0), trajectory.size(steps)
                        points[str(density)] = {
                            "accuracy": score,
                            "interval": interval(score, len(images)),
                            "neurons": after.neurons / before.neurons,
                            "parameters": after.parameters / before.parameters,
                            "macs": after.macs / before.macs,
                            "mix": trajectory.mix(steps),
                        }
                        write(results)
                    progress.advance(task)


def finished(results: dict[str, Any]) -> list[str]:
    """The networks whose every point has been measured."""
    points = {name: results.get(name, {}).get("points", {}) for name in NETWORKS}
    return [n for n, p in points.items() if all(len(p.get(m, {})) == len(DENSITIES) for m in METHODS)]


def table() -> str:
    results = json.loads(RESULTS.read_text())
    lines = []
    for name in finished(results):
        network = results[name]
        lines += [f"\n**{name}**, base {network['base']:.3f}, {network['images']:,} images; neurons kept:\n"]
        lines += [
            "| | " + " | ".join(f"{d:.1f}" for d in DENSITIES) + " |",
            "|---" * (len(DENSITIES) + 1) + "|",
        ]
        best = {
            d: max(p[str(d)]["accuracy"] for p in network["points"].values() if str(d) in p)
            for d in DENSITIES
        }
        for method in METHODS:
            points = network["points"][method]
            cells = []
            for density in DENSITIES:
                point = points.get(str(density))
                text = "" if point is None else f"{point['accuracy']:.3f}"
                cells.append(f"**{text}**" if point and point["accuracy"] == best[density] else text)
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        mix = network["points"]["hope"].get("0.5", {}).get("mix", {})
        kept = network["points"]["hope"].get("0.5", {}).get("parameters", 0)
        lines.append(f"\nHOPE at 0.5: {mix}, parameters kept {kept:.2f}.")
    return "\n".join(lines).strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], help="default: all")
    parser.add_argument(
        "--weights", type=Path, help="another folder with checkpoints (keras-resnet50.safetensors)"
    )
    parser.add_argument("--table", action="store_true", help="print the results as Markdown")
    parser.add_argument("--write-readme", action="store_true", help="put them into README.md")
    options = parser.parse_args()
    if options.table:
        print(table())
    elif options.write_readme:
        put("compression", table())
    else:
        folders = [data_folder(), *([options.weights] if options.weights else [])]
        run(options.networks or list(NETWORKS), folders)


if __name__ == "__main__":
    main()
