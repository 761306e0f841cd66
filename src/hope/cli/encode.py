"""`hope encode`: compress a checkpoint to a budget and save the run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hope._util.files import check_folder
from hope._util.notes import note
from hope.cli import models
from hope.errors import (
    CannotWrite,
    DamagedFolder,
    InfeasibleBudget,
    InvalidExample,
    UnknownMethod,
    first_line,
)
from hope.run.budget import UNITS, one_budget

if TYPE_CHECKING:
    from hope.methods import Method

METHODS = ("absorb", "hope", "l1-in", "l1-joint", "bn-scale", "random")
OPTIONS = {"merge": ("hope",), "kernel": ("hope",), "calibration": ("absorb", "hope")}  # whose they are
PARTIAL = "partial.json"
KEPT = {"density": "neurons", "params": "parameters", "macs": "MACs"}


def add_budgets(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """--density, --params, --macs, --steps: one of them; where a run is made, also --fidelity."""
    group = parser.add_mutually_exclusive_group(required=required)
    for unit in UNITS:
        kept = f"{KEPT.get(unit, unit)} to keep: a fraction (0.6) or a count"
        words = "how many steps to take" if unit == "steps" else kept
        group.add_argument(f"--{unit}", type=_number, metavar="N", help=words)
    if required:
        group.add_argument(
            "--fidelity", type=_number, metavar="F", help="the least predicted fidelity, e.g. 0.9"
        )


def _number(text: str) -> float:
    """A budget: "0.6" is a fraction, "15_000_000" a count.

    >>> _number("0.6"), _number("15_000_000")
    (0.6, 15000000)
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        words = f"{text!r} is no number: give a fraction up to 1 (0.6) or a whole count"
        raise argparse.ArgumentTypeError(words) from None


def budget_of(options: argparse.Namespace) -> dict[str, Any]:
    """The budget that was given, as keywords."""
    given = {unit: getattr(options, unit, None) for unit in (*UNITS, "fidelity")}
    return {unit: value for unit, value in given.items() if value is not None}


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
    add_budgets(parser, required=True)
    parser.add_argument("--out", metavar="FOLDER", required=True, help="where to save the run")
    parser.add_argument(
        "--method", choices=METHODS, default="absorb", help="how to choose (default: %(default)s)"
    )
    parser.add_argument(
        "--merge",
        choices=("pair", "sum", "none"),
        help="of two neurons (hope only; default: pair)",
    )
    parser.add_argument(
        "--kernel", choices=("zero-bias", "exact"), help="of two neurons (hope only; default: zero-bias)"
    )
    parser.add_argument("--no-evict", action="store_true", help="leave all blocks in place")
    parser.add_argument("--streams", action="store_true", help="let channels of residual streams go, too")
    parser.add_argument(
        "--exclude", metavar="PATTERN", action="append", default=[], help="modules to leave untouched"
    )
    parser.add_argument(
        "--multiple-of",
        metavar="N",
        type=int,
        default=1,
        help="keep widths that are multiples of N (8, 16, 32: what hardware likes)",
    )
    parser.add_argument(
        "--calibration",
        metavar="WHAT",
        help='what to measure signals on: a .npy file of unlabelled inputs; "patterns" (no data; the default '
        'for absorb); "dream" (no data, slower, better); "none" (closed forms only; the default for hope)',
    )
    parser.add_argument("--force", action="store_true", help="replace a run that the folder already has")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with an interrupted run; do nothing if the folder already has this run",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        nargs="?",
        const="",
        help="also write a page about the run (without a FILE: report.html in the run's folder)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Encode, save, and print the summary."""
    out, budget = Path(options.out), budget_of(options)
    one_budget(**budget)
    check_folder(out)
    _check_free(out, options)
    _check_options(options)
    with models.loading(options):
        from hope.api import work

        model, example = models.build(options)
    if models.random_weights(options):
        note(f"{options.model} has random weights: give --weights FILE or --pretrained for a trained network")
    given = _given(options)
    differs = _differs(out, model, budget, given) if options.resume else None
    partial = out / PARTIAL
    if differs == [] and not partial.exists():
        print(f"{options.out} already has this run")
        _report(options)
        return
    if differs:
        print(f"{options.out} has another run ({'; '.join(differs)}): it is made anew")
    if not options.resume:
        partial.unlink(missing_ok=True)
    try:
        encoding = work(model, example, one_budget(**budget), checkpoint=partial, **given)
    except InfeasibleBudget:  # there is nothing to go on with
        partial.unlink(missing_ok=True)
        with suppress(OSError):
            out.rmdir()
        raise
    source = _source(options)
    encoding.save(out, source=source)
    encoding.fidelities()
    encoding.save(out, source=source)
    partial.unlink(missing_ok=True)
    print(encoding)
    print(f"saved in {options.out}; for another budget of the same run: hope extract --help")
    _report(options)


def _check_free(out: Path, options: argparse.Namespace) -> None:
    """Nobody's run is replaced unasked."""
    if options.force or options.resume:
        return
    for name, what in (("trajectory.json", "a run"), (PARTIAL, "an interrupted run")):
        if (out / name).exists():
            raise CannotWrite(
                f"{options.out} has {what} already: give --resume to go on with it, --force to replace it, "
                "or another folder"
            )


def _source(options: argparse.Namespace) -> dict[str, str]:
    """What a report or an extraction needs to build the model again."""
    given = {name: getattr(options, name) for name in ("model", "weights", "input")}
    found = {name: str(value) for name, value in given.items() if value}
    return {**found, **({"pretrained": "yes"} if options.pretrained else {})}


def _report(options: argparse.Namespace) -> None:
    if options.report is None:
        return
    from hope.cli.report import PAGE
    from hope.report.page import write_page
    from hope.storage.run import read_run

    target = Path(options.report) if options.report else Path(options.out) / PAGE
    write_page([read_run(options.out)], target)
    print(f"{target}: a page about it; open it in a browser")


def _check_options(options: argparse.Namespace) -> None:
    """Say before any work what cannot be asked of the method."""
    for name, methods in OPTIONS.items():
        if getattr(options, name) is not None and options.method not in methods:
            raise UnknownMethod(
                f"--{name} is no option of {options.method}: leave it out, "
                f"or take --method {' or '.join(methods)}"
            )
    if options.multiple_of < 1:
        raise UnknownMethod(
            f"--multiple-of {options.multiple_of} makes no sense: give 8, 16 or 32, or 1 for any width"
        )


def _calibration(what: str | None) -> Any:
    """Inputs to measure signals on."""
    import numpy as np
    import torch

    from hope.methods.calibration import MADE_UP

    if what is None or what in MADE_UP:
        return what
    if what == "none":
        return None
    try:
        array = np.load(what, allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.ndim < 2:
            raise ValueError("it holds no batch of inputs")
        inputs = torch.from_numpy(array).float()
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise InvalidExample(
            f"--calibration {what} cannot be read ({first_line(error)}): "
            'give "patterns", "dream", "none" or a .npy file of inputs'
        ) from error
    return torch.split(inputs, 32)


def _method(options: argparse.Namespace) -> Method:
    """The method that was asked for, with its options."""
    from hope.methods import Absorb, Paper, named

    if options.method == "hope":
        merge, kernel = options.merge or "pair", options.kernel or "zero-bias"
        return Paper(
            merge=None if merge == "none" else merge,
            kernel=kernel,
            calibration=_calibration(options.calibration),
        )
    if options.method == "absorb":
        return Absorb(calibration=_calibration(options.calibration or "patterns"))
    return named(options.method)


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for besides the budget, as keywords."""
    return {
        "method": _method(options),
        "evict": not options.no_evict,
        "streams": options.streams,
        "exclude": options.exclude,
        "multiple_of": options.multiple_of,
    }


def _differs(folder: Path, model: Any, budget: dict[str, Any], given: dict[str, Any]) -> list[str] | None:
    """What sets a saved run apart from the one that is asked for; None if there is no run."""
    from hope.storage.run import fingerprint, read_run

    try:
        saved = read_run(folder)
    except DamagedFolder:
        return None
    told, wanted = (
        _flat({"streams": False, **saved.details.settings}),
        _flat({**given, "method": given["method"].told()}),
    )
    found = [
        f"{name} was {_word(told[name])}, not {_word(value)}"
        for name, value in wanted.items()
        if name in told and told[name] != value
    ]
    if told.get("method") == wanted["method"] and not wanted.keys() <= told.keys():
        found.append("it does not tell its options")
    if saved.original != fingerprint(model):
        found.append("it has other weights")
    ((unit, value),) = budget.items()
    try:  # where a fidelity is met is not told by the sizes
        same = unit != "fidelity" and saved.trajectory.steps_to(unit, value) == saved.steps
    except InfeasibleBudget:
        same = False
    return found if same else [*found, "another budget"]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the method's options beside them.

    >>> _flat({"evict": True, "method": {"name": "hope", "merge": None}})
    {'evict': True, 'method': 'hope', 'merge': None}
    """
    found = {name: value for name, value in settings.items() if name != "method"}
    method = dict(settings.get("method", {}))
    return {**found, **({"method": method.pop("name")} if method else {}), **method}


def _word(value: Any) -> str:
    """An option's value in a message.

    >>> _word(None), _word(["head*", "stem"]), _word([]), _word("pair")
    ('none', 'head*, stem', 'none', 'pair')
    """
    if isinstance(value, list):
        value = ", ".join(value)
    return str(value or "none") if not isinstance(value, bool) else str(value)
