"""The report: a run as data, and the data as one HTML file that works offline.

The data is small: per step a target, a kind, two neurons, J, and differences of sizes. The page's script adds
them up.
"""

from __future__ import annotations

import html
import json
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from hope._util.files import write_file
from hope._version import __version__
from hope.actions import Action, kinds
from hope.methods.scores import SCORES
from hope.report.absorbers import absorbers
from hope.storage.run import BY_HAND, Run
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed

SCRIPTS = ("run.js", "charts.js", "works.js", "page.js")  # in one scope, in this order
NAMELESS = {"build", "create", "get", "load", "main", "make", "model", "net", "network"}
EXAMPLE_INPUT = "1x3x224x224"  # the default output of `hope extract`
CRITERIA = {
    "l1-in": "the sum of its incoming weights' sizes",
    "l1-joint": "the sum of its incoming and outgoing weights' sizes",
    "bn-scale": "the size of its BN's scale",
    "random": "a random number",
}


def write_page(
    runs: Sequence[Run],
    target: Path,
    *,
    accuracies: Sequence[Sequence[tuple[int, float]]] = (),
    source: Mapping[str, str] | None = None,
) -> Path:
    """Write the report of one or several runs.

    Args:
        runs: what `read_run` returned.
        accuracies: per run, (steps, accuracy) where it was measured.
        source: "model", "weights" and "input" for the extraction command, if the run does not store them.
    """
    write_file(target, render(page_data(runs, accuracies=accuracies, source=source)).encode())
    return target


def page_data(
    runs: Sequence[Run],
    *,
    accuracies: Sequence[Sequence[tuple[int, float]]] = (),
    source: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The data of the page."""
    points = [*accuracies, *([()] * len(runs))]
    some = [run_data(run, points[n], source) for n, run in enumerate(runs)]
    for one, name, scale in zip(some, labels(runs), scales(runs), strict=True):
        one["name"], one["scale"] = name, scale
    return {"version": __version__, "actions": _words(), "runs": some}


def render(data: Mapping[str, Any]) -> str:
    """The page as text. Names cannot break out of the data: it holds no `<`, `>` or `&`."""
    files = resources.files("hope.report")
    parts = {name: (files / name).read_text(encoding="utf-8") for name in ("page.css", *SCRIPTS)}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    title = html.escape(" · ".join(dict.fromkeys(f"{run['title']} {run['by']}" for run in data["runs"])))
    page = (files / "template.html").read_text(encoding="utf-8")
    script = "\n".join(parts[name] for name in SCRIPTS)
    slots = {
        "title": title,
        "css": parts["page.css"] + _colours(data["actions"].values()),
        "js": script,
        "data": text,
    }
    pieces = page.split("{{")  # in one pass, so that inserted text is never taken for a slot
    done = [pieces[0]]
    for piece in pieces[1:]:
        slot, _, rest = piece.partition("}}")
        done += [slots[slot], rest]
    return "".join(done)


def _words() -> dict[str, dict[str, Any]]:
    """Letter -> the words of an action, and its colours."""
    named = ("kind", "done", "sentence", "compensates", "colours")
    return {one.letter: {name: getattr(one, name) for name in named} for one in kinds()}


def _colours(actions: Collection[Mapping[str, Any]]) -> str:
    """Colours of actions as properties: --prune, --merge."""
    light, dark = (" ".join(f"--{one['kind']}: {one['colours'][k]};" for one in actions) for k in (0, 1))
    at_night = f"@media screen and (prefers-color-scheme: dark) {{ :root:not(.light) {{ {dark} }} }}"
    return f":root {{ {light} }}\n{at_night}\n"


def run_names(folders: Sequence[Path]) -> list[str]:
    """Short names that distinguish runs: the last parts of their paths, as many as needed.

    >>> run_names([Path("a/run"), Path("b/run")])
    ['a/run', 'b/run']
    """
    paths = [folder.resolve() for folder in folders]
    for depth in range(1, max((len(path.parts) for path in paths), default=1)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return [f"{name} ({n + 1})" if names.count(name) > 1 else name for n, name in enumerate(names)]


def model_name(run: Run, source: Mapping[str, str] | None = None) -> str:
    """The model's name as the user gave it, else that of its class: `torchvision:resnet18` is resnet18.

    A function's name is the model's, unless it is generic, like `build` or `make_model`.
    """
    given = run.details.source.get("model") or (source or {}).get("model") or ""
    name = given.rpartition(":")[2].rstrip("/").rpartition("/")[2]
    bare = name.lower().removesuffix("_model")
    return run.anatomy.model if not name or bare in NAMELESS else name


def labels(runs: Sequence[Run]) -> list[str]:
    """Names that distinguish runs; with the model's name, and its size if necessary, if models differ."""
    names = run_names([run.folder for run in runs])
    kinds = [(model_name(run), run.trajectory.size(0)) for run in runs]
    if len(set(kinds)) < 2:
        return names
    known = [model for model, _ in dict.fromkeys(kinds)]
    return [
        f"{model}{f' of {size.parameters:,} parameters' if known.count(model) > 1 else ''}: {name}"
        for (model, size), name in zip(kinds, names, strict=True)
    ]


def scales(runs: Sequence[Run]) -> list[int]:
    """A number for each run: J of two runs is comparable if their numbers are equal (same method, same
    network).
    """
    kinds = [(run.method, run.anatomy.model, run.trajectory.size(0)) for run in runs]
    return [kinds.index(kind) for kind in kinds]


def run_data(
    run: Run, accuracy: Sequence[tuple[int, float]] = (), source: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """One run, as plain data."""
    return {
        **_about(run, source or {}),
        **_parts(run),
        **_steps(run),
        "accuracy": [list(point) for point in accuracy],
        "fidelity": [list(point) for point in run.details.fidelities],
        **_times(run),
    }


def _times(run: Run) -> dict[str, Any]:
    """Predicted times in nanoseconds, as differences, and measured times; empty if unknown."""
    times, timing = run.trajectory.times, run.timing
    if times is None or timing is None:
        return {"times": [], "timed": [], "runtime": ""}
    differences = [int(times[0]), *(int(d) for d in times[1:] - times[:-1])]
    measured = [[steps, nanoseconds / 1e6] for steps, nanoseconds in timing.measured]
    return {"times": differences, "timed": measured, "runtime": str(timing.runtime)}


def _about(run: Run, source: Mapping[str, str]) -> dict[str, Any]:
    """The run's model, method and sizes, and what it keeps."""
    return {
        "title": model_name(run, source),
        "model": run.anatomy.model,
        "method": run.method,
        "by": run.method if run.method == BY_HAND else f"by {run.method}",
        "byHand": run.method == BY_HAND,
        "baseline": run.method in SCORES,
        "criterion": CRITERIA.get(run.method),
        "stops": list(run.trajectory.stops),
        "uniform": bool(run.details.settings.get("uniform")),
        "saved": run.steps,
        "skipped": [[one.name, one.kind, one.outputs, str(one.reason)] for one in run.anatomy.skipped],
        "leftAlone": [[name, str(reason)] for name, reason in run.details.left_alone.items()],
        "command": _command(run, source),
    }


def _parts(run: Run) -> dict[str, Any]:
    """The network's layers and blocks, and when they are removed."""
    anatomy, measures = run.anatomy, run.details.measures
    layers, blocks = _numbers(anatomy)
    outer_first = sorted(anatomy.blocks, key=lambda block: -len(block.layers))
    home = {name: block.name for block in outer_first for name in block.layers}
    layers_evicted, blocks_evicted = evictions(anatomy, run.trajectory.steps)
    return {
        "layers": [
            {
                "name": layer.name,
                "neurons": layer.neurons,
                "block": blocks.get(layer.block or home.get(layer.name, "")),
                "fanIn": layer.fan_in,
                "fanOut": layer.fan_out,
                "activation": layer.activation,
                "also": list(layer.along),
                "evicted": layers_evicted[layer.name],
                "capacities": [_short(c) for c in measures.get(layer.name, ())],
            }
            for layer in anatomy.layers
        ],
        "blocks": [
            {
                "name": block.name,
                "skip": block.skip,
                "evicted": blocks_evicted[block.name],
                "layers": [layers[name] for name in block.layers if name in layers],
            }
            for block in anatomy.blocks
        ],
    }


def _steps(run: Run) -> dict[str, Any]:
    """Every step, and its differences of sizes."""
    trajectory = run.trajectory
    layers, blocks = _numbers(run.anatomy)
    left = [_short(step.left) for step in trajectory]  # all 0 if not recorded
    sizes = [[int(column[0]), *(int(d) for d in column[1:] - column[:-1])] for column in trajectory.sizes.T]
    return {
        "kinds": "".join(step.letter for step in trajectory),
        "targets": [layers[step.name] if step.evicts is None else blocks[step.evicts] for step in trajectory],
        "evictions": [t for t, step in enumerate(trajectory) if step.evicts is not None],
        **_neurons(trajectory.steps),
        "along": _along(run.anatomy, trajectory.steps),
        "absorbers": _absorbers(run),
        "costs": [_short(step.cost) for step in trajectory],
        "releases": _changes(trajectory.steps),
        "left": left if any(left) else [],
        "neurons": sizes[0],
        "parameters": sizes[1],
        "macs": sizes[2],
    }


def _numbers(anatomy: Anatomy) -> tuple[dict[str, int], dict[str, int]]:
    """Layers and blocks by index, as steps refer to them."""
    layers = {layer.name: n for n, layer in enumerate(anatomy.layers)}
    return layers, {block.name: n for n, block in enumerate(anatomy.blocks)}


def evictions(
    anatomy: Anatomy, steps: Sequence[Action]
) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """After how many steps each layer and each block is evicted; None if it is kept."""
    evicted = {step.evicts: t for t, step in enumerate(steps, start=1) if step.evicts is not None}
    times = [(anatomy.block(name), t) for name, t in evicted.items()]

    def first(name: str) -> float:
        return min((t for block, t in times if block.removes(name)), default=math.inf)

    def known(time: float) -> int | None:
        return None if math.isinf(time) else int(time)

    layers = {
        layer.name: known(max(first(name) for weight in layer.written for name in anatomy.names(weight)))
        for layer in anatomy.layers
    }
    inside = {block.name: block.inside for block in anatomy.blocks}
    blocks: dict[str, int | None] = {}
    for block in anatomy.blocks:
        found, name = math.inf, block.name
        while name in inside:
            found = min(found, evicted.get(name, math.inf))
            name = inside[name] or ""
        blocks[block.name] = known(found)
    return layers, blocks


def _neurons(steps: Sequence[Action]) -> dict[str, Any]:
    """Per step: the removed neuron, its parent (-1 for none), and the whole list if several are removed at
    once.
    """
    who, into = [], []
    several: dict[str, list[int]] = {}
    for t, step in enumerate(steps):
        who.append(step.removed[0] if step.removed else -1)
        into.append(-1 if step.parent is None else step.parent)
        if len(step.removed) != 1 and step.evicts is None:
            several[str(t)] = list(step.removed)
    return {"who": who, "into": into, "several": several}


def _along(anatomy: Anatomy, steps: Sequence[Action]) -> dict[str, dict[int, list[int]]]:
    """Eviction of a segment of a chain -> layer -> its neurons without a counterpart, which are also
    removed.
    """
    layers, _ = _numbers(anatomy)
    account = Removed(anatomy)
    found: dict[str, dict[int, list[int]]] = {}
    for t, step in enumerate(steps):
        lost = account.take(step)
        if step.evicts is not None and anatomy.block(step.evicts).before is not None:
            some = {layers[name]: sorted(neurons) for name, neurons in lost.items() if neurons}
            found |= {str(t): some} if some else {}
    return found


def _absorbers(run: Run) -> dict[str, list[list[float]]]:
    """Absorbing step -> [absorber, share, absorber, share …], if moments are known."""
    times: dict[str, list[int]] = {}
    for t, step in enumerate(run.trajectory):
        if step.compensates and len(step.removed) == 1:
            times.setdefault(step.name, []).append(t)
    found: dict[str, list[list[float]]] = {}
    intakes = run.intakes() if times else {}
    for name, some in times.items():
        order = [run.trajectory[t].removed[0] for t in some]
        shares = absorbers(run.anatomy.unit(name), intakes, order)
        for t, taken in zip(some, shares or (), strict=False):
            found[str(t)] = [[neuron, round(share, 3)] for neuron, share in taken]
    return found


def _changes(steps: Sequence[Action]) -> list[int]:
    """ΔP of each step less that of the step before in the same unit or block: mostly zeros."""
    last: dict[tuple[bool, str], int] = {}
    found = []
    for step in steps:
        key = (step.evicts is not None, step.name)
        found.append(step.release - last.get(key, 0))
        last[key] = step.release
    return found


def _command(run: Run, source: Mapping[str, str]) -> dict[str, Any]:
    """The extraction command, around its number of steps.

    The run's own values come first. A run with a model and without weights was made without any: the model
    has its own.
    """
    own = {name: value for name, value in run.details.source.items() if value}
    known = {**source, **own}
    weights = f"--weights {shlex.quote(known['weights']) if 'weights' in known else 'ORIGINAL.safetensors'} "
    if "model" in own and "weights" not in own:
        weights = ""
    model = shlex.quote(known["model"]) if "model" in known else "MODEL"
    shape = known.get("input", EXAMPLE_INPUT)
    more = f"--input {shlex.quote(shape)} " if shape != EXAMPLE_INPUT else ""
    before = f"hope extract {shlex.quote(str(run.folder))} {model}"
    return {
        "before": before,
        "after": f"{weights}{more}--out small.safetensors",
        "saved": f"{before} {more}--out small.safetensors",
        "complete": "model" in known and (not weights or "weights" in known),
    }


def _short(value: float) -> float | None:
    """Five digits; None if not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
