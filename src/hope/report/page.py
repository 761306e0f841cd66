"""The report: a run as data, and the data as one HTML file that works offline.

The data is small: per step a target, a kind, two neurons, J, and differences of sizes. The page's script adds
them up.
"""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hope._util.files import write_file
from hope._version import __version__
from hope.actions import kinds
from hope.methods import Method, method_from_dict
from hope.methods.scores import SCORES
from hope.report.steps import evictions, layer_bits, numbers, short, steps_data
from hope.storage.codec import SENSELESS, damaged
from hope.storage.record import PLAN, RUN
from hope.storage.run import BY_HAND, Run

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
    some = [_checked(run, points[n], source) for n, run in enumerate(runs)]
    for one, name, scale in zip(some, labels(runs), scales(runs), strict=True):
        one["name"], one["scale"] = name, scale
    return {"version": __version__, "actions": _words(), "runs": some}


def _checked(
    run: Run, accuracy: Sequence[tuple[int, float]], source: Mapping[str, str] | None
) -> dict[str, Any]:
    """One run as plain data; refused if what was read makes no sense."""
    try:
        with np.errstate(all="raise"):
            data = run_data(run, accuracy, source)
        json.dumps(data, allow_nan=False)
        return data
    except SENSELESS as error:
        raise damaged(run.folder / PLAN, RUN, error) from error


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
        **steps_data(run),
        "accuracy": [list(point) for point in accuracy],
        "score": [list(point) for point in run.details.scores],
        "fidelity": [list(point) for point in run.details.fidelities],
        **_times(run),
    }


def _times(run: Run) -> dict[str, Any]:
    """Predicted times in nanoseconds, as differences, and measured times; empty if unknown."""
    times, timing = run.trajectory.times, run.record.timing
    if times is None or timing is None:
        return {"times": [], "timed": [], "runtime": ""}
    differences = [int(times[0]), *(int(d) for d in times[1:] - times[:-1])]
    measured = [[steps, nanoseconds / 1e6] for steps, nanoseconds in timing.measured]
    return {"times": differences, "timed": measured, "runtime": str(timing.runtime)}


def _about(run: Run, source: Mapping[str, str]) -> dict[str, Any]:
    """The run's model, method and sizes, and what it keeps."""
    kind = method_from_dict(run.record.method) or Method  # by hand, or of somebody else
    return {
        "title": model_name(run, source),
        "model": run.anatomy.model,
        "method": run.method,
        "by": run.method if run.method == BY_HAND else f"by {run.method}",
        "byHand": run.method == BY_HAND,
        "baseline": run.method in SCORES,
        "criterion": CRITERIA.get(run.method),
        "price": kind.price,
        "relative": kind.relative,
        "searched": kind.evictions == "searched",
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
    layers, blocks = numbers(anatomy)
    outer_first = sorted(anatomy.blocks, key=lambda block: -len(block.layers))
    home = {name: block.name for block in outer_first for name in block.layers}
    bits = layer_bits(anatomy, run.trajectory.steps)
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
                "bits": bits.get(layer.name, []),
                "capacities": [short(c) for c in measures.get(layer.name, ())],
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
