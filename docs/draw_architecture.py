"""Draw docs/architecture.svg from the package's real imports: `python docs/draw_architecture.py`.

A box a package, those that import above those that are imported. An arc joins two packages of which one
imports the other, unless a longer way says so already; its width tells how many modules do. An arc upwards
would be an import the wrong way round, which `make lint` refuses.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import grimp
import networkx

TARGET = Path(__file__).with_name("architecture.svg")
ROWS = {
    "cli": "the command line",
    "demo": "a small network and its digits",
    "bench": "speed and latency of your own model",
    "deft": "core and slack: learn anew, forget nothing",
    "api": "inspect, encode, capacities: the way of the data",
    "encoding": "what a run came to",
    "report": "a run as a page or a figure",
    "storage": "runs and adapters as files",
    "judge": "what must run the model to decide",
    "surgery": "steps on a copy: real, smaller modules",
    "run": "the merge of all paths, budgets, trajectories",
    "methods": "an object per method: states, paths, prices",
    "signals": "what signals look like: moments",
    "anatomy": "units, blocks, reasons, steps, sizes",
    "ops": "everything about an operator, once",
    "graph": "the captured network: one program",
    "geometry": "the algebra: kernels, parents, costs, projections",
    "reasons": "why something is left alone",
    "_util": "helpers that know nothing of networks",
    "errors": "one family",
}
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
    """Without imports that a longer way tells of; those the wrong way round always stay."""
    found = graph.copy()
    for a, b in product(graph, graph):
        if graph.has_edge(a, b):
            ways = networkx.all_simple_paths(graph, a, b, cutoff=4)
            if any(len(way) > 2 for way in ways):
                found.remove_edge(a, b)
    return found


def draw(graph: networkx.DiGraph) -> str:
    """The picture, in colours that do on a light and on a dark page."""
    rows = list(ROWS)
    total = len(rows) * (HEIGHT + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" font-family="sans-serif" '
        'font-size="13">',
        "<title>The packages of hope and what imports what</title>",
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
    """Write the picture; with --check say whether the one that is there is true."""
    picture = draw(short(imports()))
    if "--check" in sys.argv:
        return int(picture != TARGET.read_text(encoding="utf-8"))
    TARGET.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
