"""Draw docs/architecture.svg from the package's imports: `python docs/draw_architecture.py`.

One box per package, in the order of the layers in pyproject.toml. An arc means that the upper package imports
the lower one; its width grows with the number of importing modules. Arcs that follow from others are not
drawn. An upward arc would be an import in the wrong direction, which `make lint` refuses.
"""

from __future__ import annotations

import sys
import tomllib
from itertools import product
from pathlib import Path

import grimp
import networkx

TARGET = Path(__file__).with_name("architecture.svg")
WORDS = {
    "cli": "the command line",
    "demo": "a small network for digits",
    "bench": "accuracy, latency and speed of your own model",
    "deft": "core and slack: fine-tuning without forgetting",
    "api": "inspect, encode, capacities",
    "pipeline": "the stages of encode",
    "encoding": "the result of a run",
    "report": "a run as an HTML page or a figure",
    "storage": "runs and adapters as files",
    "healing": "distillation towards the original",
    "evaluate": "decisions that run the model",
    "latency": "measured and predicted time",
    "rewrite": "steps applied to a copy; refit",
    "actions": "prune, merge, absorb, evict, quantise",
    "schedule": "paths merged into a trajectory; budgets",
    "methods": "one object per method: states, paths, prices",
    "statistics": "input statistics: stored, propagated, measured",
    "structure": "units, blocks and their sizes",
    "ops": "the table of operators",
    "trace": "the captured network as one program",
    "geometry": "kernels, parents, costs, projections",
    "reasons": "why something is kept",
    "_util": "helpers without knowledge of networks",
    "errors": "one family of errors",
}


def _layers() -> list[str]:
    settings = tomllib.loads((TARGET.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    return [layer.removeprefix("hope.") for layer in contract["layers"]]


ROWS = {name: WORDS[name] for name in _layers()}
WIDTH, HEIGHT, GAP, LEFT, BOX = 640, 30, 12, 20, 430


def imports() -> networkx.DiGraph:
    """Package -> package, with the number of modules that import."""
    graph = grimp.build_graph("hope", exclude_type_checking_imports=True)
    found = networkx.DiGraph()
    found.add_nodes_from(ROWS)
    for module in sorted(graph.modules):
        own = module.split(".")[1:2]
        for other in graph.find_modules_directly_imported_by(module):
            pair = (*own, *other.split(".")[1:2])
            if len(pair) == 2 and pair[0] != pair[1] and set(pair) <= ROWS.keys():
                weight = found.get_edge_data(*pair, {"weight": 0})["weight"]
                found.add_edge(*pair, weight=weight + 1)
    return found


def short(graph: networkx.DiGraph) -> networkx.DiGraph:
    """Without imports that follow from a longer path."""
    found = graph.copy()
    for a, b in product(graph, graph):
        if graph.has_edge(a, b):
            paths = networkx.all_simple_paths(graph, a, b, cutoff=4)
            if any(len(path) > 2 for path in paths):
                found.remove_edge(a, b)
    return found


def draw(graph: networkx.DiGraph) -> str:
    """The picture, in colours for light and dark pages."""
    rows = list(ROWS)
    total = len(rows) * (HEIGHT + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" font-family="sans-serif" '
        'font-size="13">',
        "<title>The packages of hope and their imports</title>",
    ]
    for a, b, data in sorted(graph.edges(data=True)):
        start, end = (GAP + rows.index(n) * (HEIGHT + GAP) + HEIGHT / 2 for n in (a, b))
        reach = LEFT + BOX + 24 + 15 * abs(rows.index(b) - rows.index(a))
        colour = "#7f8c8d" if end > start else "#e74c3c"
        width = 1 + min(3.0, data["weight"] / 5)
        x = LEFT + BOX
        parts.append(
            f'<path d="M{x} {start:g} C{reach} {start:g} {reach} {end:g} {x} {end:g}" fill="none" '
            f'stroke="{colour}" stroke-width="{width:g}"><title>{a} imports {b}</title></path>'
        )
    for row, (name, words) in enumerate(ROWS.items()):
        y = GAP + row * (HEIGHT + GAP)
        parts += [
            f'<rect x="{LEFT}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="4" fill="#34495e"/>',
            f'<text x="{LEFT + 12}" y="{y + 20}" fill="#ffffff" font-weight="bold">{name}</text>',
            f'<text x="{LEFT + 110}" y="{y + 20}" fill="#ecf0f1">{words}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """Write the picture; with --check only compare it with the file."""
    picture = draw(short(imports()))
    if "--check" in sys.argv:
        return int(picture != TARGET.read_text(encoding="utf-8"))
    TARGET.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
