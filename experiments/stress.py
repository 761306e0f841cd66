"""Random networks, forged folders and killed runs, and what was found: `python -m experiments.stress`.

A network is drawn from its seed by the generator of the property tests, and encoded by four methods: a run
ends with a network or a `HopeError`, its original is as before, and cutting is silencing (`hope.invariants`
checks both). Folders are forged as in tests/storage/test_fuzz.py. A run is killed at a random moment and
resumed: its weights are those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hope
from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call
from hope.bench.results import check_out, versions, write_results
from hope.errors import InvariantViolated
from hope.methods import Method
from hope.schedule.search_space import SearchSpace

RESULTS = FOLDER / "stress.json"
METHODS: dict[str, Callable[[list[Any]], Method]] = {
    "l1-in": lambda inputs: hope.Score("l1-in"),
    "paper": lambda inputs: hope.Paper(calibration=inputs),
    "absorb": lambda inputs: hope.Absorb(calibration=inputs),
    "absorb without data": lambda inputs: hope.Absorb(),
}
INPUTS = 16  # that statistics are measured on
DRAWS = 4  # the first drawings of a seed are simple
MODEL = """
import torch
from hope.demo import DigitsNet

def build():
    torch.manual_seed(0)
    return DigitsNet()
"""
WHAT = {
    "networks": "random networks, each encoded by four methods",
    "folders": "forged folders, each read by up to four calls",
    "kills": "runs killed at a random moment and resumed",
}


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    prog = "python -m experiments.stress"
    top = argparse.ArgumentParser(
        prog=prog,
        description="Try random networks, forged folders and killed runs. Started again, it goes on where it "
        "stopped.",
        epilog=f"example: {prog} --networks 1000 --folders 10000 --kills 20",
    )
    for name, number in (("networks", 1000), ("folders", 10000), ("kills", 20)):
        top.add_argument(f"--{name}", metavar="N", type=int, default=number, help=f"default: {number:,}")
    top.add_argument(
        "--minutes", metavar="N", type=float, help="stop after so many minutes of processor time"
    )
    top.add_argument("--out", metavar="FILE", default=str(RESULTS), help="default: the committed results")
    readme.add_arguments(top)
    return top


def drawn(seed: int) -> Any:
    """The network of a seed."""
    hypothesis: Any = importlib.import_module("hypothesis")
    networks, found = importlib.import_module("tests.properties.networks").networks, list[Any]()
    how: dict[str, Any] = {"database": None, "deadline": None, "max_examples": DRAWS}
    how |= {"phases": [hypothesis.Phase.generate], "suppress_health_check": list(hypothesis.HealthCheck)}

    def take(net: Any) -> None:
        found.append(net)

    hypothesis.seed(seed)(hypothesis.settings(**how)(hypothesis.given(networks())(take)))()
    return found[-1]


def network(seed: int) -> dict[str, str]:
    """What the runs of one network came to: method -> "made", "refused", or what is wrong."""
    nets = importlib.import_module("tests.properties.networks")
    net = drawn(seed)
    model, example = nets.build(net), nets.example(net)
    anatomy, found = hope.inspect(model, example), {}
    for name, method in METHODS.items():
        torch.manual_seed(seed)
        try:
            inputs = [torch.randn(INPUTS, *example.shape[1:], dtype=example.dtype)]
            space = SearchSpace.of(model, example, anatomy, method(inputs))
            steps = sum(state.neurons - 1 for state in space.states) // 2
            encoding = hope.encode(model, example, steps=steps, method=method(inputs), anatomy=anatomy)
            finite = all(bool(one.isfinite().all()) for one in encoding.model.state_dict().values())
            found[name] = (
                ("made" if steps else "nothing to remove") if finite else "numbers that are not finite"
            )
        except InvariantViolated as error:
            found[name] = str(error)
        except hope.HopeError:
            found[name] = "refused"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def folder(seed: int) -> dict[str, str]:
    """What a forged folder came to: number of its use -> "read", "refused", or what is wrong."""
    fuzz = importlib.import_module("tests.storage.test_fuzz")
    name, found = fuzz.FOLDERS[seed % len(fuzz.FOLDERS)], {}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / f"{name}-{seed}"
        shutil.copytree(fuzz.OLD / name, path)
        fuzz.forge(path, random.Random(f"{name} {seed}"))
        for number, use in enumerate(fuzz.uses(path)):
            try:
                found[str(number)] = "refused" if fuzz.attempt(use, f"use {number}") else "read"
            except AssertionError as error:
                found[str(number)] = str(error)
    return found


def kill(seed: int) -> dict[str, str]:
    """What a run that is killed came to, compared with one that is not."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "model.py").write_text(MODEL)
        words = [
            sys.executable,
            "-m",
            "hope.cli.main",
            "encode",
            f"{place}/model.py:build",
            "--input",
            "1x1x8x8",
        ]
        words += ["--density", "0.5", "--out"]
        started = time.monotonic()
        subprocess.run([*words, f"{place}/whole"], check=True, capture_output=True)
        moment = random.Random(seed).uniform(0, time.monotonic() - started)
        running = subprocess.Popen(
            [*words, f"{place}/run"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            running.wait(moment)
        except subprocess.TimeoutExpired:
            running.kill()
        running.wait()
        again = subprocess.run(
            [*words, f"{place}/run", "--resume"], capture_output=True, text=True, check=False
        )
        if again.returncode or "Traceback" in again.stderr:
            return {"run": f"the resumed run says {again.stderr[-200:]!r}"}
        left = [path.name for path in Path(place).rglob("*.part")]
        model: nn.Module = importlib.import_module("hope.demo").DigitsNet()
        one, other = (hope.load(f"{place}/{name}", model).state_dict() for name in ("whole", "run"))
        same = all(torch.equal(tensor, other[name]) for name, tensor in one.items())
        return {"run": ("same weights" if same else "other weights") if not left else f"{left} is left"}


FINE = {"made", "nothing to remove", "refused", "read", "same weights"}
CASES: dict[str, Callable[[int], dict[str, str]]] = {"networks": network, "folders": folder, "kills": kill}


def run(options: argparse.Namespace) -> None:
    """Try what is missing, a case of each kind in turn."""
    if readme.shown(options, {"stress": table}):
        return
    warnings.simplefilter("ignore")
    out, started, shown = Path(options.out), _processor(), 0.0
    check_out(out)
    results = json.loads(out.read_text()) if out.is_file() else {}
    results["versions"] = versions()
    kinds = {name: results.setdefault(name, {"cases": 0, "outcomes": {}, "found": []}) for name in CASES}
    while left := [name for name, entry in kinds.items() if entry["cases"] < getattr(options, name)]:
        if options.minutes is not None and _processor() - started > 60 * options.minutes:
            break
        name = min(left, key=lambda one: kinds[one]["cases"] / getattr(options, one))
        entry = kinds[name]
        seed = entry["cases"]
        for what, outcome in CASES[name](seed).items():
            fine = outcome in FINE
            word = outcome if fine else "wrong"
            entry["outcomes"][word] = entry["outcomes"].get(word, 0) + 1
            entry["found"] += [] if fine else [{"seed": seed, "in": what, "was": outcome[:300]}]
        entry["cases"] += 1
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            write_results(out, results)
            _show(kinds, options)
    write_results(out, results)
    _show(kinds, options)


def _processor() -> float:
    """Seconds of processor time of this process and those that it has started."""
    return sum(os.times()[:4])


def _show(kinds: dict[str, Any], options: argparse.Namespace) -> None:
    done = (f"{entry['cases']} of {getattr(options, name)} {name}" for name, entry in kinds.items())
    wrong = sum(len(entry["found"]) for entry in kinds.values())
    print(f"{', '.join(done)}; {wrong} wrong", file=sys.stderr, flush=True)


def table() -> str:
    """A row per kind of case, and what was found."""
    results = json.loads(RESULTS.read_text())
    lines = ["| cases | seeds | outcomes | wrong |", "|---|---|---|---:|"]
    for name, words in WHAT.items():
        entry = results[name]
        fine = {word: count for word, count in entry["outcomes"].items() if word != "wrong"}
        outcomes = ", ".join(f"{count:,} {word}" for word, count in sorted(fine.items()))
        seeds = f"0 to {entry['cases'] - 1:,}"
        lines.append(f"| {entry['cases']:,} {words} | {seeds} | {outcomes} | {len(entry['found'])} |")
    every = [one for name in WHAT for one in results[name]["found"]]
    found = [
        f"- {one['in']}, seed {one['seed']}: {one['was']} ({one.get('fixed', 'not fixed')})" for one in every
    ]
    return "\n".join([*lines, "", *(found or ["Nothing was found wrong."])]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
