"""`hope encode`: compress a checkpoint to a budget and save the run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hope._util.files import check_folder
from hope._util.locks import locked
from hope._util.names import current_method
from hope._util.notes import note
from hope.cli import curves, healing, models, other_programs
from hope.cli.budget_options import add_bits, add_budgets, budget_of, unit_given
from hope.cli.compare import differing, started_otherwise
from hope.cli.output_paths import path, saved
from hope.cli.text import windows
from hope.errors import (
    CannotWrite,
    InfeasibleBudget,
    UnknownMethod,
)
from hope.schedule.budget import run_budget
from hope.schedule.resources import UNITS

if TYPE_CHECKING:
    from hope.evaluate.estimate import Estimate
    from hope.methods import Method

METHODS = ("absorb", "paper", "l1-in", "l1-joint", "bn-scale", "random")
READINGS = ("mended", "literal", "literal kernel", "literal deviation", "literal parent")
PAPER = {
    "merge": (("pair", "sum", "none"), "how two neurons are merged"),
    "kernel": (("zero-bias", "exact"), "kernel of two neurons"),
    "reading": (READINGS, "the paper's equations with corrections, or as printed"),
    "release": (("static", "live"), "rank steps by savings in the original or the current network"),
}
OPTIONS = {**dict.fromkeys(PAPER, ("paper",)), "calibration": ("absorb", "paper")}  # whose they are
PARTIAL = "partial.json"
LONG = 10.0  # seconds from which on an estimate is printed


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "encode",
        help="compress a checkpoint to a budget and save the run",
        description="Compress a trained network to a budget, without data where it has batch norm, and save "
        "the run: every step, and the compressed weights. Any other moment of the run can be had back with "
        "`hope extract`.",
        epilog="example: hope encode torchvision:resnet18 --weights r18.safetensors --params 0.6 --out run/",
    )
    models.add_arguments(parser)
    add_budgets(parser, required=True, or_bits=True)
    parser.add_argument("--out", metavar="FOLDER", type=path, required=True, help="where to save the run")
    _add_options(parser)
    healing.add_argument(parser)
    other_programs.add_arguments(parser)
    parser.add_argument("--force", action="store_true", help="replace an existing run in the folder")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="resume an interrupted run; of a run that the folder already has, compute only what --curve and "
        "--report lack; a run with other options is replaced with --force only",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        nargs="?",
        const="",
        help="also write a report of the run (without a FILE: report.html in the run's folder); implies "
        "--curve",
    )
    parser.add_argument(
        "--curve",
        action="store_true",
        help="also predict the fidelity, and compute the score of --evaluate, at ten points along the run, "
        "for the report and for `hope plot`; takes longer than the run itself on most networks",
    )
    parser.set_defaults(run=run)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """What the run is made with."""
    parser.add_argument(
        "--method",
        choices=METHODS,
        type=current_method,
        default="absorb",
        help="compression method (default: %(default)s); paper is the paper's own",
    )
    for name, (choices, words) in PAPER.items():
        parser.add_argument(f"--{name}", choices=choices, help=f"{words} (paper only; default: {choices[0]})")
    add_bits(parser)
    parser.add_argument(
        "--evaluate",
        metavar="FILE.py:FUNCTION",
        help="your own score, for --drop, the summary and the report: a function that takes a network and "
        "returns a number",
    )
    parser.add_argument("--no-evict", action="store_true", help="keep all blocks")
    parser.add_argument("--streams", action="store_true", help="also prune channels of residual streams")
    parser.add_argument(
        "--exclude", metavar="PATTERN", action="append", default=[], help="modules that are not changed"
    )
    parser.add_argument(
        "--multiple-of",
        metavar="N",
        type=int,
        help="keep widths that are multiples of N (8, 16, 32; default: 1; with --latency a width that suits "
        "the runtime, with --uniform one that stacked experts need)",
    )
    parser.add_argument(
        "--uniform",
        action="store_true",
        help="keep one width for all corresponding layers, so that from_pretrained loads what "
        "save_pretrained writes; nothing is evicted then",
    )
    parser.add_argument(
        "--runtime",
        metavar="ENGINE",
        help="runtime of --latency: torch (the default) or onnxruntime, on the CPU of this machine",
    )
    parser.add_argument("--batch", metavar="N", type=int, help="its batch size (default: that of --input)")
    parser.add_argument("--threads", metavar="N", type=int, help="its number of threads (default: torch's)")
    parser.add_argument(
        "--memory", metavar="8GB", help="what the process may use (default: $HOPE_MEMORY, or all)"
    )
    parser.add_argument(
        "--calibration",
        metavar="WHAT",
        help="inputs to measure statistics on: a folder of images, a .npy or .npz file of unlabelled "
        "inputs (bytes are divided by 255), or a .txt file for a "
        'language model of hf:FOLDER; "patterns" (no data; the default for absorb); "dream" (no data, '
        "slower, better; for a language model, and its default: texts that it generates); "
        '"none" (closed forms only; the default for paper)',
    )


def run(options: argparse.Namespace) -> None:
    """Encode, save, and print the summary; no other process writes to the folder meanwhile."""
    out, budget = Path(options.out), budget_of(options)
    check_folder(out)
    _check_free(out, options)
    _check_options(options)
    from hope._util.memory import limited  # not before it has something to do: this imports torch

    with limited(options.memory), locked(out):
        _check_free(out, options)
        _run(options, out, budget)


def _run(options: argparse.Namespace, out: Path, budget: dict[str, Any]) -> None:
    with models.loading(options):
        from hope._util.disk_cache import remove_checkpoint
        from hope._util.progress import READ, run_of
        from hope.api import encode_resumable

        model, example = models.build(options)
    other_programs.check(options, model)
    if models.random_weights(options):
        note(f"{options.model} has random weights: give --weights FILE or --pretrained for trained ones")
    score = models.function(options.evaluate) if options.evaluate else None
    given = _given(options, model, example)
    differs = differing(out, model, example, budget, given) if options.resume else None
    partial, curve = out / PARTIAL, options.curve or options.report is not None
    if differs == [] and not partial.exists():
        print(f"{options.out} already has this run")
        if curve:
            curves.complete(out, model, example, given["method"], score)
        _report(options, model, example, given)
        return
    if options.resume and not options.force:
        interrupted = started_otherwise(partial, model, example, budget, given)
        _check_same(options.out, "a run", differs)
        _check_same(options.out, "an interrupted run", interrupted)
    if differs:
        print(f"{options.out} has another run ({'; '.join(differs)}): it is made again")
    if not options.resume:
        remove_checkpoint(partial)
    healing.forget(out)
    given |= {"evaluations": curves.POINTS + 2 if curve else 1, "on_estimate": _print_estimate}
    given["evaluate"] = score  # no option of the run: it is not compared above
    source = models.source(options)
    with run_of((READ,)):
        try:
            asked = run_budget(given["bits"], budget)
            encoding = encode_resumable(model, example, asked, checkpoint=partial, **given)
        except InfeasibleBudget:  # nothing can be resumed
            remove_checkpoint(partial)
            raise
        encoding.save(out, source=source)  # what follows may take longer than the run, or fail
        if curve:
            curves.draw(encoding)
        summary = str(encoding)
        encoding.save(out, source=source)  # with the numbers of the summary
        remove_checkpoint(partial)
    print(summary)
    print(saved(out, options.out))
    _report(options, model, example, given)


def _print_estimate(estimate: Estimate) -> None:
    if sum(estimate.seconds.values()) >= LONG:
        note(f"this takes {estimate}")


def _check_free(out: Path, options: argparse.Namespace) -> None:
    """Refuse to replace a run without --force."""
    if options.force or options.resume:
        return
    for name, what in (("trajectory.json", "a run"), (PARTIAL, "an interrupted run")):
        if (out / name).exists():
            raise CannotWrite(
                f"{options.out} must not contain {what}, got one: give --resume to continue it, --force to "
                "replace it, or another folder"
            )


def _check_same(out: str, what: str, differs: list[str] | None) -> None:
    """Refuse to replace a run with other options."""
    if differs:
        raise CannotWrite(
            f"{out} must have a run of the same options, got {what} of other options "
            f"({'; '.join(differs)}): give the same to resume it, --force too to replace it, or another "
            "folder"
        )


def _report(options: argparse.Namespace, model: Any, example: Any, given: dict[str, Any]) -> None:
    folders = [Path(options.out)]
    if options.heal is not None:
        folders.append(healing.heal_run(folders[0], model, example, given["method"], options.heal))
    other_programs.write_run(options, model, folders[-1])
    if options.report is not None:
        from hope.cli.report import PAGE, write

        write(folders, Path(options.report) if options.report else folders[0] / PAGE)


def _check_options(options: argparse.Namespace) -> None:
    """Check before any work which options the method does not have, and that there is a budget."""
    if not budget_of(options) and options.bits in ("auto", None):
        names = " ".join(f"--{name.replace('_', '-')}" for name in UNITS)
        raise InfeasibleBudget(
            f"one of the arguments {names} --bits must be given, got none: see `hope encode --help`"
        )
    unit = unit_given(options)
    if unit is not None and unit.scored and not options.evaluate:
        raise UnknownMethod(
            "--drop must have a score, got no --evaluate: add --evaluate FILE.py:FUNCTION, or give "
            "--fidelity 0.9"
        )
    for name, methods in OPTIONS.items():
        if getattr(options, name) is not None and options.method not in methods:
            raise UnknownMethod(
                f"--{name} must be left out with --method {options.method}, which does not have it: omit "
                f"it, or use --method {' or '.join(methods)}"
            )
    where, timed = _runtime(options), unit is not None and unit.timed
    if where and not timed:
        name = next(iter(where)).replace("engine", "runtime")
        raise UnknownMethod(
            f"--{name} must come with --latency, got another budget: omit it, or give --latency (0.6, 12ms)"
        )
    if timed:
        from hope.latency.runtime import Runtime, runtime_of

        runtime_of(Runtime(**{"engine": "torch", **where}))
    if options.uniform and options.streams:
        raise UnknownMethod("--uniform and --streams cannot be combined: omit one of them")
    if options.multiple_of is not None and options.multiple_of < 1:
        raise UnknownMethod(
            f"--multiple-of must be at least 1, got {options.multiple_of}: give 8, 16 or 32, or 1 for any "
            "width"
        )


def _calibration(what: str | None, options: argparse.Namespace, model: Any, example: Any) -> Any:
    """The inputs to measure statistics on."""
    from hope.cli.calibration_files import inputs
    from hope.methods.calibration import SYNTHETIC

    if what is None or what in SYNTHETIC:
        return what
    if what == "none":
        return None
    if isinstance(example, dict) and options.model.startswith("hf:"):
        return windows(what, options.model.partition(":")[2], example)
    return inputs(what, options.model, model, example)


def _method(options: argparse.Namespace, model: Any, example: Any) -> Method:
    """The requested method with its options."""
    from hope.methods import Absorb, Paper, named

    if options.method == "paper":
        given: dict[str, Any] = {name: getattr(options, name) or PAPER[name][0][0] for name in PAPER}
        given = {name: None if value == "none" else value for name, value in given.items()}
        return Paper(
            **given,
            calibration=_calibration(options.calibration, options, model, example),
        )
    if options.method == "absorb":
        usual = "dream" if isinstance(example, dict) else "patterns"
        return Absorb(calibration=_calibration(options.calibration or usual, options, model, example))
    return named(options.method)


def _given(options: argparse.Namespace, model: Any, example: Any) -> dict[str, Any]:
    """The other options of the run, as keywords."""
    from hope.rewrite.experts import widths_of

    multiple_of, unit = options.multiple_of, unit_given(options)
    if multiple_of is None and not (unit is not None and unit.timed):
        multiple_of = widths_of(model) if options.uniform else 1
        if multiple_of > 1:
            note(
                f"widths are multiples of {multiple_of}: torch's grouped product requires that of stacked "
                "experts"
            )
    given = {
        "method": _method(options, model, example),
        "evict": not options.no_evict and not options.uniform,
        "streams": options.streams,
        "exclude": options.exclude,
        "multiple_of": multiple_of,
        "uniform": options.uniform,
        "bits": options.bits,
        "group": options.group,
        "round": options.round,
    }
    if unit is not None and unit.timed:
        from hope.latency.runtime import Runtime

        given["runtime"] = Runtime(**{"engine": "torch", **_runtime(options)})
    return given


def _runtime(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the runtime."""
    names = {"runtime": "engine", "batch": "batch", "threads": "threads"}
    given = {key: getattr(options, name) for name, key in names.items()}
    return {key: value for key, value in given.items() if value is not None}
