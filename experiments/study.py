"""What each ingredient of absorption is worth: `python -m experiments.study [NETWORK ...]`, resumable.

Every row takes one thing away from (or adds one thing to) the method as it is and measures again.
Needs the checkpoints and images of `experiments.compression` (HOPE_DATA). `--write-pages` puts the table
into the docs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch.nn import functional

import hope
from experiments.ablations import closed_form
from experiments.command import RESULTS as FOLDER
from experiments.compression.measure import known_task
from experiments.compression.methods import IMAGES as IMAGES_OF_TASK
from experiments.compression.methods import keywords
from experiments.compression.page import TITLES
from experiments.data import data_folder
from experiments.readme import put
from hope.bench.accuracy import accuracy
from hope.bench.results import write_results
from hope.geometry.projection import compensation, ridged
from hope.statistics.input_statistics import channels_of

RESULTS = FOLDER / "study.json"
POINTS = {
    "cifar10-resnet20": ("density=0.7", "density=0.5"),
    "cifar10-resnet56": ("density=0.7", "density=0.5"),
    "keras-resnet50": ("params=0.65", "params=0.475"),
}
IMAGES = {"cifar10-resnet20": 1000, "cifar10-resnet56": 1000, "keras-resnet50": 150}


BORDER = "constants exact at zero-padded borders (at run time)"
ROWS: dict[str, dict[str, Any]] = {
    "absorption, no evictions": {},
    "no compensation by remaining neurons (constants only)": {"method": closed_form(takeover=False)},
    "no constants": {"method": closed_form(constants=False)},
    "no correction of BN variances": {"method": closed_form(repair=False)},
    BORDER: {},
    "correlations from the paper's pairwise warp": {"method": closed_form(surrogate="pairwise")},
    "no covariance between branch and skip": {"method": closed_form(crosses=False)},
    "one q = 0.5 for all layers": {"method": closed_form(decay=0.5)},
    "no correlation between taps": {"method": closed_form(decay=0.0)},
    "cost without the branch's share": {"method": closed_form(shares=False)},
    "cost linear instead of logarithmic": {"method": closed_form(cost="linear")},
    "cost not per parameter (J instead of J/ΔP)": {"method": closed_form(per_parameter=False)},
    "with the eviction search": {"evict": True},
    "moments from dreams": {"method": hope.Absorb(calibration="dream", refit=False)},
    "moments from 96 images": {"method": hope.Absorb(refit=False), "calibration": IMAGES_OF_TASK},
}


def _value(point: str) -> float:
    return float(point.partition("=")[2])


def _exact_borders(encoding: hope.Encoding, small: torch.nn.Module, steps: int) -> None:
    """Add at run time what a folded constant gets wrong where a kernel reaches over a zero-padded border."""
    gone: dict[str, list[int]] = {}
    for step in encoding.trajectory.steps[:steps]:
        gone.setdefault(step.name, []).extend(step.removed)
    for layer in encoding.anatomy.layers:
        for reader in layer.readers if layer.name in gone else ():
            statistics = encoding.input_statistics[reader.weight]
            channels = channels_of(layer, statistics)
            module = small.get_submodule(reader.module)
            if channels is None or channels.shape[1] != 1 or not isinstance(module, torch.nn.Conv2d):
                continue
            dead = torch.zeros(layer.neurons, dtype=torch.bool)
            dead[gone[layer.name]] = True
            keep, left = (~dead).nonzero()[:, 0], dead.nonzero()[:, 0]
            places = channels[:, 0]
            shares = compensation(ridged(statistics.moments[places][:, places]), keep, left)
            constant = statistics.mean[places[left]] - statistics.mean[places[keep]] @ shares
            weight = encoding.original.get_parameter(reader.weight).detach().double()
            weight = weight[:, places[left]]
            own = next((other for other in encoding.anatomy.layers if other.weight == reader.weight), None)
            if own is not None:  # some of its outputs are gone as well
                weight = weight[[i for i in range(own.neurons) if i not in gone.get(own.name, ())]]

            def correct(
                conv: Any, inputs: Any, out: Any, weight: Any = weight, constant: Any = constant
            ) -> Any:
                image = constant[None, :, None, None].expand(1, -1, *inputs[0].shape[2:])
                right = functional.conv2d(image, weight, None, conv.stride, conv.padding)
                folded = (weight.sum(dim=(2, 3)) @ constant)[None, :, None, None]
                return out + (right - folded).to(out.dtype)

            module.register_forward_hook(correct)


def run(names: list[str], folders: list[Path], skipped: list[str]) -> None:
    """Measure the rows that are missing."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in names:
        task = known_task(name, folders, IMAGES[name])
        entry = results.setdefault(name, {"images": len(task.images), "rows": {}})
        anatomy = hope.inspect(task.model, task.example)
        unit, _, low = POINTS[name][-1].partition("=")
        for row, settings in track(ROWS.items(), name):
            if row in entry["rows"] or row in skipped:
                continue
            options = keywords(
                {"method": hope.Absorb(calibration=None), "evict": False, **settings}, task.unlabelled
            )
            budget: dict[str, Any] = {unit: float(low)}
            encoding = hope.encode(
                task.model, task.example, anatomy=anatomy, progress=False, **budget, **options
            )
            scores = {}
            for point in POINTS[name]:
                moment: dict[str, Any] = {unit: _value(point)}
                small = encoding.at(**moment)
                if row == BORDER:
                    _exact_borders(encoding, small, encoding.trajectory.steps_to(unit, _value(point)))
                scores[point] = accuracy(small, task.images, task.labels)
            entry["rows"][row] = scores
            write_results(RESULTS, results)


def table() -> str:
    results = json.loads(RESULTS.read_text())
    names = [name for name in TITLES if name in results]
    heads = [
        f"{TITLES[name]} {point.replace('density', 'neurons')}" for name in names for point in POINTS[name]
    ]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for row in ROWS:
        cells = [
            f"{results[name]['rows'][row][point]:.3f}" if row in results[name]["rows"] else ""
            for name in names
            for point in POINTS[name]
        ]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("networks", nargs="*", help="default: all")
    top.add_argument("--weights", type=Path, help="another folder with checkpoints")
    top.add_argument("--skip", nargs="*", default=[], metavar="ROW", help="rows to leave out")
    top.add_argument("--write-pages", action="store_true", help="put the table into the docs and stop")
    return top


def main() -> None:
    """Measure what is missing, or show what there is."""
    options = parser().parse_args()
    if options.write_pages:
        put("study", table())
        return
    folders = [data_folder(None), *([options.weights] if options.weights else [])]
    run(options.networks or list(POINTS), folders, options.skip)
    print(table())


if __name__ == "__main__":
    main()
