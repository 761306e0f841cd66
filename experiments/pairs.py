"""Two networks followed together, in closed form: `python -m experiments.pairs [NETWORK ...]`.

Two questions. How well does the closed-form fidelity rank plans, beside the judge that runs noise through
both networks? And can the loop be closed from it, so that weights are fitted without a single input? (No:
the surrogate takes errors as larger than they are, and what is fitted to it is shrunk too much.)
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hope
from experiments import data, readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser
from experiments.compression.page import TITLES
from experiments.data import data_folder
from hope._util.calls import duplicate
from hope.bench.accuracy import accuracy
from hope.bench.results import check_out, versions, write_results
from hope.encoding import Encoding
from hope.evaluate.closed import ClosedForm
from hope.evaluate.fidelity import Fidelity
from hope.geometry.projection import variances
from hope.ops.registry import Form, Signal
from hope.ops.weight import is_weight
from hope.rewrite.apply import Outcome, outcome
from hope.rewrite.layer_sites import LayerSite, gain, spots
from hope.rewrite.zero_pad import IndexMap, embedded, places_of, silences
from hope.statistics.propagated import Propagated
from hope.storage.run import fingerprint
from zoo import networks

RESULTS = FOLDER / "pairs.json"
NETWORKS = ("cifar10-resnet20", "cifar10-resnet56")
IMAGES = 1000
METHODS: dict[str, dict[str, Any]] = {
    "absorb": {"method": hope.Absorb(calibration=None, refit=False), "evict": False},
    "hope": {"method": hope.Paper()},
    "hope, no eviction": {"method": hope.Paper(), "evict": False},
    "bn-scale": {"method": hope.Score("bn-scale")},
    "random": {"method": hope.Score("random")},
}
DENSITIES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
FITS = {"as it is": (0.01, 0.0), "deviations kept": (0.01, 1.0), "nearer to what was there": (10.0, 1.0)}
"""Ways to fit: the weight of what was there, and how far outputs get their deviation back."""


class Closing(Propagated):
    """Follows both networks and fits each weight of the second before it is used."""

    def __init__(self, original: Propagated, places: IndexMap, prior: float, repair: float, **given: Any):
        self.original, self.places, self.prior, self.repair = original, places, prior, repair
        self.spots = {spot.position: spot for spot in spots(original.program).values()}
        super().__init__(original.program, original.tensors, **given)

    def _follow(self, form: Form | None) -> Signal | None:
        if form is not None and is_weight(form) and form.operation.position in self.spots:
            x = self.signals[form.inputs[0]]
            if x is not None and not x.guess and form.operation.arguments.get("groups", 1) == 1:
                self._fit(form, self.spots[form.operation.position], x)
        return super()._follow(form)

    def _fit(self, form: Form, spot: LayerSite, x: Signal) -> None:
        first, second = self.networks
        assert isinstance(second, dict)
        laid, mine = (_laid(tensors[spot.weight], x.repeat) for tensors in (first, second))
        left = self.places.get(spot.weight, {})
        rows = left.get(0, torch.arange(len(laid)))
        columns = torch.unique(left[1] // x.repeat) if 1 in left else torch.arange(laid.shape[2])
        own = x.covariance[1::2, 1::2][columns][:, columns]
        lacks = laid[rows] @ x.covariance[::2, 1::2][:, columns] - mine[rows][:, :, columns] @ own
        wanted = laid[rows].sum(dim=1) @ x.mean[::2]
        drift = self._drift(form, spot, rows)
        if drift is not None:
            lacks[:, lacks.shape[1] // 2] += drift[0][:, columns]
            wanted = wanted + drift[1]
        ridge = self.prior * float(own.diagonal().mean()) * torch.eye(len(columns), dtype=torch.float64)
        change = torch.linalg.solve(own + ridge, lacks.flatten(0, 1).T).T.reshape(lacks.shape)
        fitted = mine[rows]
        fitted[:, :, columns] += change
        mine[rows] = fitted
        weight = second[spot.weight]
        second[spot.weight] = mine.transpose(1, 2).reshape(weight.shape).to(weight.dtype)
        shift = wanted - fitted.sum(dim=1) @ x.mean[1::2]
        if not spot.bn:
            if spot.bias:
                second[spot.bias] = first[spot.bias].index_add(0, rows, shift.float())
            return
        second[f"{spot.bn}.running_mean"] = first[f"{spot.bn}.running_mean"].index_add(
            0, rows, -shift.float()
        )
        taps = self.original.by_operation[form.operation.position].taps
        before = variances(laid[rows], taps, x.covariance[::2, ::2])
        after = variances(fitted, taps, x.covariance[1::2, 1::2])
        ratio = torch.where(after > 1e-4 * before, after / before.clamp(min=1e-300), 1.0) ** self.repair
        variance = first[f"{spot.bn}.running_var"].clone()
        variance[rows] *= ratio.float()
        second[f"{spot.bn}.running_var"] = variance

    def _drift(self, form: Form, spot: LayerSite, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """What the stream beside a branch lacks, in the units in front of the branch's BN: its covariance
        with what the small network reads, and its mean.
        """
        stream = self.signals[spot.beside] if 0 <= spot.beside < len(self.signals) else None
        cross = self.cross(spot.beside, form.inputs[0]) if stream is not None else None
        if stream is None or cross is None or len(rows) * 2 != len(stream.mean):
            return None
        unit = gain(self.tensors, spot).double()
        between = (cross[::2] - cross[1::2])[:, 1::2]
        return unit[:, None] * between, unit * (stream.mean[::2] - stream.mean[1::2])


def _laid(weight: Tensor, repeat: int) -> Tensor:
    """(outputs, taps, channels), as a copy."""
    raw = weight.detach().double()
    flat = raw.flatten(2) if raw.ndim > 2 else raw.reshape(len(raw), -1, repeat)
    return flat.transpose(1, 2).contiguous()


def closed(judge: ClosedForm, small: nn.Module, done: Outcome, prior: float, repair: float) -> nn.Module:
    """A copy of a small network whose loop is closed without an input."""
    places = places_of(judge.anatomy, done)
    beside = embedded(judge.anatomy, small, places)
    original = Propagated(judge.anatomy.program, judge.tensors)
    Closing(original, places, prior, repair, beside=beside, silent=silences(judge.anatomy, done))
    fitted = duplicate(small)
    with torch.no_grad():
        for name, tensor in [*fitted.named_parameters(), *fitted.named_buffers()]:
            value = beside[name]
            for dim, left in places.get(name, {}).items():
                value = value.index_select(dim, left)
            tensor.copy_(value)
    return fitted


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's, ties sharing their mean rank.

    >>> rank_correlation([1, 2, 3], [10, 30, 20])
    0.5
    """

    def ranks(values: Sequence[float]) -> Tensor:
        t = torch.tensor(values, dtype=torch.float64)
        return (t[:, None] > t).sum(dim=1) + ((t[:, None] == t).sum(dim=1) - 1) / 2.0

    return round(float(torch.corrcoef(torch.stack([ranks(a), ranks(b)]).double())[0, 1]), 6)


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    what = "Measure the closed-form fidelity beside the judge's, and weights fitted in closed form."
    return network_parser("pairs", what, NETWORKS, RESULTS)


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"pairs": table}):
        return
    out = Path(options.out)
    check_out(out)
    results = json.loads(out.read_text()) if out.is_file() else {}
    folder = data_folder(options.data)
    folders = [folder, *([Path(options.weights)] if options.weights else [])]
    for name in options.networks or NETWORKS:
        model = networks.trained(name, *folders)
        images, labels, _ = data.cifar10(folder, IMAGES, apart=True)
        entry = results.setdefault(name, {"plans": {}, "fits": {}})
        entry |= {"images": len(images), "weights": fingerprint(model)[:16], "versions": versions()}
        entry["base"] = accuracy(model, images, labels)
        for method in METHODS:
            if method not in entry["plans"]:
                run = hope.encode(
                    model, images[:1], density=min(DENSITIES), progress=False, **METHODS[method]
                )
                entry["plans"][method] = _plans(run, model, images, labels)
                if method == "absorb":
                    entry["fits"] = _fits(run, model, images, labels)
                write_results(out, results)


def _steps(run: Encoding, density: float) -> Outcome:
    return outcome(run.anatomy, run.trajectory.steps[: run.trajectory.steps_to("density", density)])


def _plans(run: Encoding, model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    exact, judge = ClosedForm(model, run.anatomy), Fidelity(model, images[:1], run.anatomy.program)
    found = {}
    for density in DENSITIES:
        small = run.at(density=density)
        start = time.perf_counter()
        closed_form = exact(small, _steps(run, density))
        between = time.perf_counter()
        noise = judge(small)
        end = time.perf_counter()
        found[str(density)] = {
            "accuracy": accuracy(small, images, labels),
            "closed form": closed_form,
            "judge": noise,
            "seconds": [between - start, end - between],
        }
    return found


def _fits(run: Encoding, model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    exact = ClosedForm(model, run.anatomy)
    found: dict[str, Any] = {}
    for density in DENSITIES[2::2]:
        small, done = run.at(density=density), _steps(run, density)
        found[str(density)] = {"open loop": accuracy(small, images, labels)}
        for name, (prior, repair) in FITS.items():
            fitted = closed(exact, small, done, prior, repair)
            found[str(density)][name] = accuracy(fitted, images, labels)
    return found


def table() -> str:
    """Rank correlations with accuracy, and what fitting in closed form comes to."""
    results: Mapping[str, Any] = json.loads(RESULTS.read_text())
    lines = [
        "| rank correlation with accuracy | plans | closed form | judge, on noise | time / judge's |",
        "|---|---|---|---|---|",
    ]
    for name, entry in results.items():
        groups = {"all methods": entry["plans"].values(), "absorption": [entry["plans"]["absorb"]]}
        for what, plans in groups.items():
            points = [point for some in plans for point in some.values()]
            scores = [point["accuracy"] for point in points]
            both = [
                rank_correlation(scores, [p[judge] for p in points]) for judge in ("closed form", "judge")
            ]
            ratio = sum(p["seconds"][0] for p in points) / sum(p["seconds"][1] for p in points)
            lines.append(
                f"| {TITLES[name]}, {what} | {len(points)} | {both[0]:.2f} | {both[1]:.2f} | {ratio:.1f} |"
            )
    first = next(iter(results.values()))["fits"]
    ways = list(next(iter(first.values())))
    lines += [
        "",
        "| top-1, neurons kept | " + " | ".join(ways) + " |",
        "|---" * (len(ways) + 1) + "|",
    ]
    for name, entry in results.items():
        for density, row in entry["fits"].items():
            lines.append(
                f"| {TITLES[name]}, {density} | " + " | ".join(f"{row[way]:.3f}" for way in ways) + " |"
            )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
