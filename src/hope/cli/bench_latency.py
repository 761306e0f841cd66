"""`hope bench latency`: how much faster compressed networks answer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hope._util.tables import grid, text
from hope.bench import latency, networks
from hope.bench.compression import check_out, write_results
from hope.bench.datasets import data_folder
from hope.cli import models
from hope.methods.plan import METHODS


def register(kinds: Any) -> None:
    """Add the kind."""
    parser: argparse.ArgumentParser = kinds.add_parser(
        "latency",
        help="speed-up of compressed networks, in torch and onnxruntime",
        description="Compress a network to some budgets and time the original and all compressed networks "
        "side by side, in turns. What counts is the ratio to the original.",
        epilog="example: hope bench latency torchvision:resnet18 --budgets params=0.65 params=0.4 "
        f"--multiple-of 8. MODEL may also be one of {', '.join(networks.CHECKPOINTS)}",
    )
    models.add_arguments(parser)
    parser.add_argument(
        "--methods", "--method", nargs="+", choices=METHODS, default=["absorb"], help="default: absorb"
    )
    parser.add_argument(
        "--budgets",
        nargs="+",
        metavar="UNIT=SHARE",
        default=["params=0.65", "params=0.4"],
        help="shares to keep of params, density or macs (default: params=0.65 params=0.4)",
    )
    parser.add_argument(
        "--multiple-of",
        metavar="N",
        type=int,
        default=1,
        help="measure every budget also with widths that are multiples of N",
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32], help="default: 1 32")
    parser.add_argument("--repeats", type=int, default=30, help="default: %(default)s")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=latency.ENGINES,
        default=list(latency.ENGINES),
        help="default: both; without onnxruntime installed, torch alone",
    )
    parser.add_argument(
        "--data", metavar="FOLDER", help="the benchmark's own checkpoints (default: $HOPE_DATA)"
    )
    parser.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Compress, measure, print and write."""
    latency.check(options.batches, options.repeats)
    if options.out:
        check_out(Path(options.out))
    model, example = _model(options)
    left_out: list[str] = []
    compared = latency.candidates(
        model,
        example,
        methods=options.methods,
        budgets=options.budgets,
        multiple_of=options.multiple_of,
        note=left_out.append,
    )
    results = latency.measure(
        compared,
        example,
        batches=options.batches,
        repeats=options.repeats,
        engines=options.engines,
        note=lambda line: print(line, file=sys.stderr),
    )
    results |= {"model": options.model, "notes": left_out + results["notes"]}
    print(text(*tables(results)))
    if options.out:
        write_results(Path(options.out), results)


def _model(options: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    if options.model not in networks.CHECKPOINTS:
        return models.build(options)
    shape = networks.SHAPES[options.model] if options.input == models.INPUT else options.input
    if options.weights:
        model = networks.untrained(options.model)
        models.load_weights(model, Path(options.weights))
    else:
        model = networks.trained(options.model, data_folder(options.data))
    return model.eval(), models.example(shape)


def tables(results: dict[str, Any]) -> list[object]:
    """One table per engine and batch size."""
    parts: list[object] = []
    for engine, batch in dict.fromkeys((row["engine"], row["batch"]) for row in results["rows"]):
        table = grid(
            f"{results['model']}, {engine}, batch {batch}, {results['threads']} threads: median of "
            f"{results['repeats']} (quartiles)",
            " method",
            " budget",
            "widths of",
            "neurons",
            "parameters",
            "MACs",
            "ms",
            "speed-up",
        )
        for row in results["rows"]:
            if (row["engine"], row["batch"]) == (engine, batch):
                spread = f"{row['lower quartile ms']:.2f}–{row['upper quartile ms']:.2f}"
                table.add_row(
                    row["method"],
                    row["budget"],
                    str(row["multiple of"]) if row["multiple of"] > 1 else "",
                    *(f"{row[kept]:.3f}" for kept in ("neurons", "parameters", "macs")),
                    f"{row['median ms']:.2f} ({spread})",
                    f"{row['speed-up']:.2f}",
                )
        parts += [table, ""]
    return [*parts, *results["notes"]]
