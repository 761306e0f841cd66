"""Run the tests against small wrong programs (see `mutants`), and say which nobody notices.

    python -m tests.mutation.run --map                      # which test runs which line, once
    python -m tests.mutation.run geometry methods --sample 120
    python -m tests.mutation.run --again                    # those that survived, with the tests of today
    python -m tests.mutation.run --page                     # docs/mutation.md

Nothing is written to the sources: a wrong module is compiled in memory, in a process of its own. It meets the
tests that run its line, quickest first, for about `--seconds`; the first that fails ends it. Results are kept
in results.json after every mutant, so that a run can be stopped and goes on. A survivor that does not matter
is given its reason there by hand, as "why".
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import json
import math
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "hope"
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "mutation.md"
PACKAGES = ("geometry", "methods", "schedule", "rewrite", "deft")
TESTS = ("geometry", "methods", "schedule", "rewrite", "evaluate", "statistics", "deft", "test_encode.py")
PATIENCE = 40  # seconds of the processor more than its tests take, and it hangs
BARE = [
    "-x",
    "-q",
    "--assert=plain",
    *(f"-pno:{plugin}" for plugin in ("cacheprovider", "hypothesispytest", "xdist")),
]
ASLEEP = 1800  # seconds, however busy the machine is

Map = dict[str, Any]


# ---- which test runs which line ----------------------------------------------------------------------------


class Tracer:
    """A pytest plugin: test -> seconds, and file -> line -> the tests that run it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[str, list[int]]] = {}
        self.names: list[str] = []
        self._failed: set[str] = set()
        self._here: set[tuple[str, int]] = set()

    def _local(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self._here.add((frame.f_code.co_filename, frame.f_lineno))
        return self._local

    def _enter(self, frame: FrameType, event: str, _: object) -> Any:
        return self._local if frame.f_code.co_filename.startswith(str(SOURCE)) else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._here = set()
        started = time.process_time()
        sys.settrace(self._enter)
        try:
            result = yield
        finally:
            sys.settrace(None)
        if item.nodeid not in self._failed:
            self.seconds[item.nodeid] = time.process_time() - started
            self.names.append(item.nodeid)
            for file, line in self._here:
                own = str(Path(file).relative_to(SOURCE))
                self.lines.setdefault(own, {}).setdefault(str(line), []).append(len(self.names) - 1)
        return result


def draw_map(path: Path, tests: Sequence[str]) -> None:
    """Run tests once under a tracer: some, which are added to the map, or all of `TESTS` and the doctests."""
    tracer = Tracer()
    if tests:
        known = json.loads(path.read_text())
        tracer.names, tracer.seconds, tracer.lines = known["tests"], known["seconds"], known["lines"]
    folders = [str(ROOT / "tests" / name) for name in TESTS] + [str(SOURCE / name) for name in PACKAGES]
    pytest.main(["-q", "-p", "no:cacheprovider", *(tests or folders)], plugins=[tracer])
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"tests": tracer.names, "seconds": tracer.seconds, "lines": tracer.lines}))


def chosen(mutant: Mutant, known: Map, seconds: float) -> list[str]:
    """The tests that a mutant meets: those that run its lines, or its module if it is done at import."""
    lines = known["lines"].get(mutant.file, {})
    wanted = range(mutant.line, mutant.end + 1) if mutant.local else map(int, lines)
    names = {known["tests"][k] for line in wanted for k in lines.get(str(line), ())}
    total, found = 0.0, []
    for name in sorted(names, key=lambda name: (known["seconds"][name], name)):
        total += known["seconds"][name]
        if found and total > seconds:
            break
        found.append(name)
    return found


# ---- one mutant --------------------------------------------------------------------------------------------


class Wrong(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module as a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        path = SOURCE / mutant.file
        self.module = ".".join(("hope", *Path(mutant.file).with_suffix("").parts)).removesuffix(".__init__")
        self.path, self.made = path, compile(mutant.code(), str(path), "exec")

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if fullname == self.module:
            return importlib.util.spec_from_file_location(fullname, self.path, loader=self)
        return None

    def get_code(self, fullname: str) -> CodeType:
        return self.made

    def get_source(self, fullname: str) -> str:
        return self.path.read_text()


def meet(mutant: Mutant, tests: Sequence[str], seconds: float) -> str:
    """ "caught", "survived", "hangs" (which is caught, too) or "no test"."""
    if not tests:
        return "no test"
    child = os.fork()
    if child == 0:
        try:
            shown, quiet = os.fdopen(os.dup(2), "w"), os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))
            sys.meta_path.insert(0, Wrong(mutant))
            code = pytest.main([*BARE, *(str(ROOT / name) for name in tests)])
            os._exit(0 if code == 0 else 1)
        except BaseException:
            traceback.print_exc(file=shown)
            shown.flush()
            os._exit(9)
    ends = time.monotonic() + ASLEEP
    while time.monotonic() < ends:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid and os.WIFSIGNALED(status):
            return "hangs"  # the limit's signal
        if pid and os.WEXITSTATUS(status) == 9:
            raise SystemExit("the tests did not even begin: see above")
        if pid:
            return "survived" if status == 0 else "caught"
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


# ---- many --------------------------------------------------------------------------------------------------


def every(package: str) -> list[Mutant]:
    """All mutants of a package."""
    files = sorted((SOURCE / package).glob("*.py"))
    return [one for file in files for one in mutants(file.read_text(), f"{package}/{file.name}")]


def load() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"of": {}, "how": {}, "mutants": {}}


def save(kept: dict[str, Any]) -> None:
    part = RESULTS.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    part.replace(RESULTS)


def warm() -> None:
    """What every child would import anew. Nothing of hope's."""
    sys.dont_write_bytecode = False  # the right modules are compiled once; the wrong one never gets to disk
    for name in ("msgspec", "networkx", "safetensors.torch", "scipy.optimize", "torch.export"):
        importlib.import_module(name)
    torch = importlib.import_module("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2), torch.nn.ReLU()).eval()
    torch.export.export(net, (torch.zeros(2, 1, 2, 2),))
    assert "hope" not in sys.modules


def run(work: Sequence[Mutant], known: Map, kept: dict[str, Any], limit: float, seed: int) -> None:
    """Let the mutants meet their tests, and write down what became of each, and which seed drew it."""
    for same in {mutant.file.partition("/")[0]: mutant.unchanged() for mutant in work}.values():
        if meet(same, chosen(same, known, limit), 600) == "caught":
            raise SystemExit(f"tests of {same.file} fail without a change: draw the map again")
    for at, mutant in enumerate(work):
        tests = chosen(mutant, known, limit)
        seconds = PATIENCE + 2 * sum(known["seconds"][name] for name in tests)
        outcome = meet(mutant, tests, seconds)
        entry = {"first": outcome, "draw": seed, **kept["mutants"].get(mutant.name, {}), "outcome": outcome}
        if outcome in ("survived", "no test"):
            entry["line"] = mutant.line
        else:
            entry = {name: value for name, value in entry.items() if name not in ("line", "why")}
        kept["mutants"][mutant.name] = entry
        save(kept)
        print(f"{at + 1}/{len(work)} {outcome:9} {mutant.line:4} {mutant.name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("packages", nargs="*", help=f"of {', '.join(PACKAGES)}")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants of each package; all without")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--seconds", type=float, default=8, help="of tests for a mutant, as the map has them")
    parser.add_argument("--map", nargs="*", metavar="TESTS", help="find out which line is run by which test")
    parser.add_argument("--again", action="store_true", help="those that survived, once more")
    parser.add_argument("--page", action="store_true", help="write docs/mutation.md")
    parser.add_argument("--lines", type=Path, default=ROOT / "build" / "mutation.json", help="the map's file")
    asked = parser.parse_args()
    kept = load()
    if asked.map is not None:
        draw_map(asked.lines, asked.map)
    if asked.packages or asked.again:
        known = json.loads(asked.lines.read_text())
        warm()
        work: list[Mutant] = []
        for package in asked.packages or sorted({name.partition("/")[0] for name in kept["mutants"]}):
            found = every(package)
            if asked.again:
                left = {n for n, e in kept["mutants"].items() if e["outcome"] in ("survived", "no test")}
                work += [one for one in found if one.name in left and "why" not in kept["mutants"][one.name]]
                continue
            kept["of"][package] = len(found)
            drawn = random.Random(asked.seed).sample(found, min(asked.sample or len(found), len(found)))
            work += [one for one in drawn if one.name not in kept["mutants"]]
        if not asked.again:
            kept["how"] = {"note": "a random draw", **kept["how"], "seconds": asked.seconds}
        random.Random(asked.seed).shuffle(work)  # so that one that was stopped has some of every package
        run(work, known, kept, asked.seconds, asked.seed)
    if asked.page:
        from tests.mutation.page import written

        PAGE.write_text(written(kept))


if __name__ == "__main__":
    main()
