"""`hope bench`: measurements of your own networks."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.names import current_method
from hope._util.notes import note
from hope._util.tables import grid, text
from hope.bench import compression, latency, speed
from hope.bench.budgets import KEPT, candidates, parse
from hope.bench.latency_candidates import UNITS, LatencyCandidate
from hope.bench.results import check_out, write_results
from hope.cli import models
from hope.errors import UnknownModel
from hope.latency.runtime import ENGINES
from hope.methods import METHODS


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure what compression does to accuracy and latency, and how fast encoding is",
        description="Measurements of a network of yours.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    _register_compression(kinds)
    _register_latency(kinds)
    _register_speed(kinds)


def _register_compression(kinds: Any) -> None:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "compression",
        help="accuracy of compressed networks on labelled images",
        description="Compress a network to some budgets and measure the accuracy of the original and all "
        "compressed networks, without fine-tuning, and again after BN re-estimation on images that are set "
        "apart.",
        epilog="example: hope bench compression file.py:function --weights w.safetensors --data images/",
    )
    models.add_arguments(parser)
    parser.add_argument(
        "--data",
        metavar="PATH",
        required=True,
        help="labelled images: a folder (one sub-folder per class, or files named by class number) or an "
        ".npz with x and y",
    )
    add_networks(parser, compression.BUDGETS)
    for name in ("--mean", "--std"):
        parser.add_argument(
            name, nargs="+", type=float, metavar="N", help="per channel, of 0 to 1 (default: ImageNet's)"
        )
    parser.add_argument("--images", metavar="N", type=int, help="how many images to measure on")
    parser.add_argument("--seed", type=int, default=0, help="which images are measured (default: 0)")
    parser.set_defaults(run=run_compression)


def _register_latency(kinds: Any) -> None:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "latency",
        help="speed-up of compressed networks, in torch and onnxruntime",
        description="Compress a network to some budgets and time the original and all compressed networks "
        "side by side, in turns. What counts is the ratio to the original.",
        epilog="example: hope bench latency torchvision:resnet18 --budgets params=0.5 macs=0.5 latency=0.5 "
        "--multiple-of 8",
    )
    models.add_arguments(parser, optional=True)
    add_latency(parser)
    parser.set_defaults(run=run_latency)


def _register_speed(kinds: Any) -> None:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "speed",
        help="time and memory of encoding, against its Gram products",
        description="Time and memory of encoding MODEL, against the Gram products of its weights.",
        epilog="example: hope bench speed torchvision:resnet50",
    )
    models.add_arguments(parser)
    parser.add_argument("--density", type=float, default=0.3, help="how far to go (default: %(default)s)")
    parser.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    parser.set_defaults(run=run_speed)


def add_networks(
    parser: argparse.ArgumentParser, budgets: Sequence[str], units: str = "params, density or macs"
) -> None:
    """Options: which compressed networks are measured, and the output file."""
    parser.add_argument(
        "--methods",
        "--method",
        nargs="+",
        choices=METHODS,
        type=current_method,
        default=["absorb"],
        help="default: absorb",
    )
    parser.add_argument(
        "--budgets",
        nargs="+",
        metavar="UNIT=SHARE",
        default=list(budgets),
        help=f"shares to keep of {units} (default: {' '.join(budgets)})",
    )
    parser.add_argument(
        "--multiple-of",
        metavar="N",
        type=int,
        default=1,
        help="measure every budget also with widths that are multiples of N",
    )
    parser.add_argument("--out", metavar="FILE", help="write the figures as JSON")


def add_latency(parser: argparse.ArgumentParser) -> None:
    """The options of a latency measurement, whatever the network."""
    add_networks(parser, ("params=0.5", "macs=0.5", "latency=0.7"), "params, density, macs or latency")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32], help="default: 1 32")
    parser.add_argument("--repeats", type=int, default=30, help="default: %(default)s")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=ENGINES,
        default=list(ENGINES),
        help="default: both; without onnxruntime installed, torch alone",
    )


def run_compression(options: argparse.Namespace) -> None:
    """Compress, measure, print and write."""
    for budget in options.budgets:
        parse(budget)
    if models.random_weights(options):
        raise UnknownModel(
            f"{options.model} must have trained weights, got none: give --weights FILE or --pretrained"
        )
    if options.out:
        check_out(Path(options.out))
    model, example = models.build_plain(options)
    how = {"mean": options.mean, "std": options.std, "count": options.images, "seed": options.seed}
    chosen = compression.read_images(options.model, model, example, Path(options.data), **how)
    networks = {name: getattr(options, name) for name in ("methods", "budgets", "multiple_of")}
    results = compression.measure(options.model, model, chosen, seed=options.seed, **networks)
    print(text(*compression_tables(results)))
    if options.out:
        write_results(Path(options.out), results)


def compression_tables(results: dict[str, Any]) -> list[object]:
    """What every network keeps, and its accuracies with 95% intervals."""
    table = grid(
        f"{results['model']}: accuracy on {results['images']:,} images, without fine-tuning",
        " method", " budget", "widths of?", "neurons?", "parameters", "MACs?", " actions?", "accuracy",
        "95%?", "BN re-est.", "95%?",
    )  # fmt: skip
    for row in results["rows"]:
        cells = [" ".join(f"{count}{kind[0]}" for kind, count in row["mix"].items() if count)]
        for figure in ("accuracy", "recalibrated"):
            low, high = row[f"{figure} interval"]
            cells += [f"{row[figure]:.3f}", f"{low:.3f}–{high:.3f}"]
        table.add_row(*_made(row), *cells)
    return [table, "", *results["notes"], "actions: a absorb, p prune, m merge, e evict"]


def run_latency(options: argparse.Namespace) -> None:
    """Check, build, and measure; without a MODEL the demo's network."""
    check_latency(options)
    if options.model:
        measure_latency(options.model, *models.build_plain(options), options)
        return
    from hope.demo import DigitsNet

    note("no MODEL given: measuring the demo's small network with random weights")
    torch.manual_seed(0)
    measure_latency("DigitsNet", DigitsNet().eval(), torch.zeros(1, 1, 8, 8), options)


def check_latency(options: argparse.Namespace) -> None:
    """Check before any work what cannot be measured or written."""
    for budget in options.budgets:
        parse(budget, UNITS)
    latency.check(options.batches, options.repeats)
    if options.out:
        check_out(Path(options.out))


def measure_latency(name: str, model: nn.Module, example: Tensor, options: argparse.Namespace) -> None:
    """Compress, measure, print and write."""
    left_out: list[str] = []
    in_time = [one for one in options.budgets if parse(one, UNITS)[0] == "latency"]
    how = {"methods": options.methods, "multiple_of": options.multiple_of, "note": left_out.append}
    by_latency = LatencyCandidate(model, example, in_time, **how) if in_time else None
    others = [one for one in options.budgets if one not in in_time]
    compared = candidates(model, example, budgets=others, fidelities=bool(in_time), **how)
    results = latency.measure(
        list(compared),
        example,
        batches=options.batches,
        repeats=options.repeats,
        engines=options.engines,
        by_latency=by_latency,
        note=partial(print, file=sys.stderr),
    )
    results |= {"model": name, "notes": left_out + results["notes"]}
    print(text(*latency_tables(results)))
    if options.out:
        write_results(Path(options.out), results)


def latency_tables(results: dict[str, Any]) -> list[object]:
    """One table per engine and batch size."""
    parts: list[object] = []
    for engine, batch in dict.fromkeys((row["engine"], row["batch"]) for row in results["rows"]):
        rows = [row for row in results["rows"] if (row["engine"], row["batch"]) == (engine, batch)]
        heads = ("fidelity?", "predicted") if any("predicted ms" in row for row in rows) else ()
        table = grid(
            f"{results['model']}, {engine}, batch {batch}, {results['threads']} threads: median of "
            f"{results['repeats']} (quartiles)",
            " method", " budget", "widths of?", "neurons?", "parameters", "MACs?", "ms", "speed-up", *heads,
        )  # fmt: skip
        for row in rows:
            spread = f"{row['lower quartile ms']:.2f}–{row['upper quartile ms']:.2f}"
            more = [f"{row['fidelity']:.3f}", f"{row['predicted ms']:.2f}"] if heads else []
            cells = [f"{row['median ms']:.2f} ({spread})", f"{row['speed-up']:.2f}", *more]
            table.add_row(*_made(row), *cells)
        parts += [table, ""]
        if heads:
            errors = [abs(row["predicted ms"] / row["fastest ms"] - 1) for row in rows]
            parts += [
                f"predictions are {statistics.median(errors):.1%} off (median), at most {max(errors):.1%}",
                "",
            ]
    return [*parts, *results["notes"]]


def _made(row: dict[str, Any]) -> list[str]:
    """How a network was made, and what it keeps."""
    multiple = str(row["multiple of"]) if row["multiple of"] > 1 else ""
    return [row["method"], row["budget"], multiple, *(f"{row[kept]:.3f}" for kept in KEPT.values())]


def run_speed(options: argparse.Namespace) -> None:
    """Measure, print, and write."""
    if options.out:
        check_out(Path(options.out))
    found = speed.whole_network(*models.build_plain(options), density=options.density)
    print(text(speed_table(found, f"{options.model} to density {options.density:g}")))
    if options.out:
        write_results(Path(options.out), {"network": found})


def speed_table(figures: dict[str, float], title: str) -> object:
    """Figures by name."""
    table = grid(title, " ", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:.2f}")
    return table
