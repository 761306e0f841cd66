"""What each ingredient of absorption is worth: `python -m benchmarks.study [NETWORK ...]`, resumable.

Every row takes one thing away from (or adds one thing to) the method as it is and measures again.
Needs the checkpoints and images of `hope bench compression` (HOPE_DATA). `--write-readme` puts the table into
the README.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.progress import track
from torch.nn import functional

import hope
from benchmarks.compression import TITLES
from benchmarks.readme import put
from hope.bench import datasets
from hope.bench.compression import known_task, write_results
from hope.ops import reading
from hope.ops.weight import Weighted
from hope.signals.projection import ridged, takeover
from hope.signals.views import channels_of

RESULTS = Path(__file__).with_name("study.json")
POINTS = {
    "cifar10-resnet20": ("density=0.7", "density=0.5"),
    "cifar10-resnet56": ("density=0.7", "density=0.5"),
    "keras-resnet50": ("params=0.65", "params=0.475"),
}
IMAGES = {"cifar10-resnet20": 1000, "cifar10-resnet56": 1000, "keras-resnet50": 150}


def _no_span(covariance: torch.Tensor, keep: torch.Tensor, gone: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(keep), len(gone), dtype=torch.float64)


@contextmanager
def _without(*what: str) -> Iterator[None]:
    """The method with some ingredients taken out."""
    from hope.judge import evictions
    from hope.methods import absorption, plan
    from hope.signals import propagate as propagated
    from hope.signals import views
    from hope.surgery import absorb

    repair = absorb._repair

    def no_repair(bn: Any, shift: Any, after: Any, before: Any) -> None:
        repair(bn, shift, before, before)

    def no_constants(bn: Any, shift: Any, after: Any, before: Any) -> None:
        repair(bn, torch.zeros_like(shift), after, before)

    def linear(self: Any) -> Any:
        lost = [side.losses().clip(min=0) for side in self._sides]
        cost = self.state.share * sum(lost)
        position = int(cost.argmin())
        neuron = self._remove(position, lost)
        return absorption.Move(float(cost[position]), neuron, -1, self.count, self.capacity, None)

    keys: dict[str, Callable[[], Any]] = {
        "span": lambda: patch.object(absorb, "takeover", _no_span),
        "constants": lambda: patch.object(absorb, "_repair", no_constants),
        "repair": lambda: patch.object(absorb, "_repair", no_repair),
        "propagation": lambda: patch.object(Weighted, "moments", _read_only),
        "crosses": lambda: patch.object(propagated.Propagated, "cross", lambda *_: None),
        "q": lambda: patch.object(reading, "DECAYS", (0.5,)),
        "taps": lambda: patch.object(reading, "DECAYS", (0.0,)),
        "share": lambda: patch.object(plan.Plan, "_share", lambda *_: 1.0),
        "log": lambda: patch.object(absorption.AbsorbPath, "step", linear),
        "release": lambda: patch.object(views, "release", lambda *_: 1),
        "judge": lambda: patch.object(evictions, "MARGIN", float("inf")),
    }
    with ExitStack() as stack:
        for one in what:
            if one in keys:
                stack.enter_context(keys[one]())
        yield


_moments = Weighted.moments


def _read_only(self: Any, at: Any, form: Any, inputs: Any) -> Any:
    """What a weight reads is known, but what it writes is taken from its filters alone, as in the paper."""
    _moments(self, at, form, inputs)
    raw = at.tensors.get(form.operation.tensors["weight"])
    return None if raw is None else self.guess(form, raw)


ROWS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "as it is, no evictions": ((), {}),
    "no survivors take over (constants only)": (("span",), {}),
    "no constants": (("constants",), {}),
    "no repair of BN variances": (("repair",), {}),
    "constants exact at zero-padded borders (at run time)": (("border",), {}),
    "correlations from the paper's pairwise warp": (("propagation",), {}),
    "no covariance between branch and skip": (("crosses",), {}),
    "one q = 0.5 for all layers": (("q",), {}),
    "no correlation between taps": (("taps",), {}),
    "cost without the branch's share": (("share",), {}),
    "cost linear instead of logarithmic": (("log",), {}),
    "cost not per parameter (J instead of J/ΔP)": (("release",), {}),
    "evictions too, decided by the judge": ((), {"evict": True}),
    "moments dreamed": ((), {"calibration": "dream"}),
    "moments of 96 images": ((), {"calibration": "images"}),
}


def _value(point: str) -> float:
    return float(point.partition("=")[2])


def _exact_borders(encoding: hope.Encoding, small: torch.nn.Module, steps: int) -> None:
    """Add at run time what a folded constant gets wrong where a kernel reaches over a zero-padded border."""
    gone: dict[str, list[int]] = {}
    for action in encoding.trajectory.actions[:steps]:
        gone.setdefault(action.layer, []).extend(action.neurons)
    for layer in encoding.anatomy.layers:
        for consumer in layer.consumers if layer.name in gone else ():
            view = encoding.views[consumer.weight]
            channels = channels_of(layer, view)
            module = small.get_submodule(consumer.module)
            if channels is None or channels.shape[1] != 1 or not isinstance(module, torch.nn.Conv2d):
                continue
            dead = torch.zeros(layer.neurons, dtype=torch.bool)
            dead[gone[layer.name]] = True
            keep, left = (~dead).nonzero()[:, 0], dead.nonzero()[:, 0]
            places = channels[:, 0]
            shares = takeover(ridged(view.moments[places][:, places]), keep, left)
            constant = view.mean[places[left]] - view.mean[places[keep]] @ shares
            weight = encoding.original.get_submodule(consumer.module).weight.detach().double()
            weight = weight[:, places[left]]
            own = next((other for other in encoding.anatomy.layers if other.weight == consumer.weight), None)
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
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in names:
        task = known_task(name, folders, IMAGES[name])
        entry = results.setdefault(name, {"images": len(task.images), "rows": {}})
        anatomy = hope.inspect(task.model, task.example)
        for row, (without, settings) in track(ROWS.items(), name):
            if row in entry["rows"] or row in skipped:
                continue
            options = {"evict": False, **settings}
            if options.get("calibration") == "images":
                options["calibration"] = list(torch.split(task.unlabelled, 32))
            unit, _, low = POINTS[name][-1].partition("=")
            options[unit] = float(low)
            with _without(*without):
                encoding = hope.encode(
                    task.model, task.example, method="absorb", anatomy=anatomy, progress=False, **options
                )
                scores = {}
                for point in POINTS[name]:
                    small = encoding.at(**{unit: _value(point)})
                    if "border" in without:
                        _exact_borders(encoding, small, encoding.trajectory.steps_to(unit, _value(point)))
                    scores[point] = datasets.accuracy(small, task.images, task.labels)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", help="default: all")
    parser.add_argument("--weights", type=Path, help="another folder with checkpoints")
    parser.add_argument("--skip", nargs="*", default=[], metavar="ROW", help="rows to leave out")
    parser.add_argument("--write-readme", action="store_true")
    options = parser.parse_args()
    if options.write_readme:
        put("study", table())
        return
    data = Path(os.environ.get("HOPE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    folders = [data, *([options.weights] if options.weights else [])]
    run(options.networks or list(POINTS), folders, options.skip)
    print(table())


if __name__ == "__main__":
    main()
