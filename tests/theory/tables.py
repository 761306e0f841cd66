"""What two readings of the paper are worth, on networks that this repository has: for docs/theory.md.

python -m tests.theory.tables                  print
python -m tests.theory.tables --write-pages    and put it into docs/theory.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import hope
from hope.geometry.kernels import exact_signs
from hope.geometry.pairwise import warped_correlation
from hope.geometry.parent import Side, alignments, parents, recipe
from hope.methods.pairs import PaperState
from hope.methods.paper import paper_state
from hope.statistics.checkpoint import Checkpoint
from tests.geometry.beyond import overlaps, parent_of_many
from tests.geometry.explicit import random_layer
from tests.golden.record import digits
from tests.theory.surrogate import Array, correlations, layer_wide

PAGE = Path(__file__).resolve().parents[2] / "docs" / "theory.md"
LAYERS = {"stem.0": "stem.1", **{f"blocks.{k}.conv1": f"blocks.{k}.bn1" for k in range(3)}, "squeeze": "bn"}


def put(name: str, text: str) -> None:
    """Replace what stands between a table's two markers in docs/theory.md."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    before, _, rest = PAGE.read_text().partition(start)
    PAGE.write_text(f"{before}{start}\n{text.strip()}\n{end}{rest.partition(end)[2]}")


# ---- many neurons at once, or pair by pair -----------------------------------------------------------------


def cut_out(state: PaperState, which: list[int]) -> tuple[Side, torch.Tensor, torch.Tensor]:
    """Some neurons, and their two Gram matrices."""
    at = torch.tensor(which)
    return state.side(at), state.inner[at][:, at], state.outer[at][:, at]


def pair_by_pair(some: Side, inner: torch.Tensor, outer: torch.Tensor, merge: str) -> tuple[Array, Array]:
    """The parent that merges in a row leave: its filter and its outgoing weights, in terms of the M neurons.

    The nearest two are merged until one is left; each parent has the scale of least distortion, b of a sum
    and b/2 of a pair.
    """
    into, out = torch.eye(len(inner), dtype=torch.float64), torch.eye(len(inner), dtype=torch.float64)
    spread = some.spread
    while len(into) > 1:
        mean, bias = into @ some.mean, into @ some.bias
        g, h = into @ inner @ into.T, out @ outer @ out.T
        now = Side(
            mean, spread, some.slope[: len(into)], _energy(mean, spread), bias, g.diagonal(), h.diagonal()
        )
        i, j = (Side(*(tensor[at] for tensor in now)) for at in ((..., None), (None, ...)))
        b = alignments(i, j, g, h, kernel="exact")
        squares = now.energy * now.outer
        a = squares[:, None] + squares
        lost = a + 2 * overlaps(i, j, g, h) - b**2 if merge == "sum" else a - b**2 / 2
        lost = lost.masked_fill(torch.eye(len(into), dtype=torch.bool) | (b <= 0), np.inf)
        one, other = divmod(int(lost.argmin()), len(into))
        pair = Side(*(t[one] for t in now)), Side(*(t[other] for t in now))
        found = parents(*pair, g[one, other], h[one, other], kernel="exact")
        scale = float(found.alignment) / (1 if merge == "sum" else 2)
        made = recipe(found, *pair, scale)
        rows = [k for k in range(len(into)) if k not in (one, other)]
        into, out = (
            torch.cat([whole[rows], (c[0] * whole[one] + c[1] * whole[other])[None]])
            for whole, c in ((into, made.rows), (out, made.outs))
        )
        spread = torch.cat([spread[rows], torch.tensor([made.spread], dtype=torch.float64)])
    return into[0].numpy(), out[0].numpy()


def _energy(mean: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    return hope.geometry.gaussian.energy(mean, spread, torch.zeros_like(mean))


def losses(some: Side, inner: torch.Tensor, outer: torch.Tensor) -> dict[str, float]:
    """Both criteria for both ways, as fractions of what the neurons are."""
    m, h = len(inner), outer.numpy()
    found = parent_of_many(some, inner, outer, kernel="exact")
    rho, b = found.correlation, float(found.alignment)
    i, j = (Side(*(tensor[at] for tensor in some)) for at in ((..., None), (None, ...)))
    kernel = exact_signs(i.mean, j.mean, i.spread, j.spread, rho, i.slope, j.slope)[0].numpy()
    kernel[np.diag_indices(m)] = some.energy.numpy()
    a, total = float((kernel * h).trace()), float((kernel * h).sum())
    reported = {"pair, at once": a - b**2 / m, "sum, at once": total - b**2}
    sigma = (rho * some.spread[:, None] * some.spread).numpy()
    for merge in ("pair", "sum"):
        z, out = pair_by_pair(some, inner, outer, merge)
        spread = torch.tensor(max(float(z @ sigma @ z), 0.0), dtype=torch.float64).sqrt().expand(m)
        mean = torch.tensor(float(z @ some.mean.numpy()), dtype=torch.float64).expand(m)
        toward = torch.from_numpy(sigma @ z) / (spread * some.spread)
        reach = exact_signs(mean, some.mean, spread, some.spread, toward, some.slope, some.slope)[0].numpy()
        own = float(_energy(mean, spread)[0]) * float(out @ h @ out)  # ‖f_p‖²
        shared = float(reach * (h @ out) @ np.ones(m))  # ⟨f_p, Σf⟩
        reported[f"{merge}, in pairs"] = (
            a + m * own - 2 * shared if merge == "pair" else total + own - 2 * shared
        )
    sizes = {"pair": a, "sum": total}
    return {name: np.sqrt(max(lost, 0.0) / sizes[name.partition(",")[0]]) for name, lost in reported.items()}


def families(state: PaperState, count: int) -> Iterator[list[int]]:
    """Each neuron with those that it would lose least with by being merged."""
    every = state.side(slice(None))
    i, j = (Side(*(tensor[at] for tensor in every)) for at in ((..., None), (None, ...)))
    b = alignments(i, j, state.inner, state.outer, kernel="exact")
    squares = state.capacities**2
    lost = (squares[:, None] + squares - b**2 / 2).masked_fill(torch.eye(len(b), dtype=torch.bool), np.inf)
    for neuron in range(0, len(lost), max(1, len(lost) // 8)):  # eight of a layer
        row = lost[neuron]
        near = row.argsort()[: count - 1].tolist()
        if len(row) >= count and torch.isfinite(row[near]).all():
            yield [neuron, *near]


def consolidation() -> str:
    """M neurons into one, at once and by merges in a row."""
    net = digits().double()
    anatomy = hope.inspect(net, torch.zeros(1, 1, 8, 8, dtype=torch.float64))
    numbers = Checkpoint.of(net, anatomy)
    states = {unit.name: paper_state(unit, numbers, 1) for unit in anatomy.layers}
    groups = {
        "random, alike (noise .1)": [random_layer(s, 8, clusters=1, noise=0.1).state() for s in range(5)],
        "random, related (noise .5)": [random_layer(s, 8, clusters=1, noise=0.5).state() for s in range(5)],
        "trained on digits": [state for state in states.values() if isinstance(state, PaperState)],
    }
    names = ("sum, at once", "sum, in pairs", "pair, at once", "pair, in pairs")
    lines = ["| neurons | M | " + " | ".join(names) + " |", "|---|---" + "|---:" * len(names) + "|"]
    for group, layers in groups.items():
        for count in (3, 5, 8):
            reported = [losses(*cut_out(layer, some)) for layer in layers for some in families(layer, count)]
            cells = (f"{np.mean([one[name] for one in reported]):.3f}" for name in names)
            lines.append(f"| {group} | {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# ---- the whole layer's surrogate, or pair by pair ----------------------------------------------------------


def measured(net: nn.Module, names: list[str]) -> dict[str, Array]:
    """Correlations of the layers' signals on the demo's test images."""
    images = hope.demo.digits()[2].double()
    found: dict[str, Array] = {}

    def keep(name: str) -> None:
        def hook(_: nn.Module, __: object, output: torch.Tensor) -> None:
            signals = output.detach().movedim(1, 0).flatten(1).numpy()
            found[name] = correlations(np.cov(signals))

        net.get_submodule(name).register_forward_hook(hook)

    for name in names:
        keep(name)
    with torch.no_grad():
        net(images)
    return found


def surrogates() -> str:
    """Correlations of all pairs of a layer by the pairwise form, by the whole layer's, and on real inputs."""
    net = digits().double()
    true = measured(net, list(LAYERS))
    lines = [
        "| layer | filters | inputs | pairwise against layer-wide | pairwise against measured | "
        "layer-wide against measured | μ not met |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, norm in LAYERS.items():
        bn = net.get_submodule(norm)
        w = net.get_submodule(name).weight.detach().flatten(1).numpy()
        mu, variances = bn.running_mean.numpy(), bn.running_var.numpy()
        found = layer_wide(w, mu, variances)
        reached = w @ found.covariance @ w.T
        joint = correlations(reached)
        pair = warped_correlation(torch.from_numpy(w @ w.T), bn.running_var.sqrt()).numpy()
        off = np.triu_indices(len(w), 1)

        def rms(one: Array, other: Array, off: tuple[Array, Array] = off) -> str:
            apart, r = np.sqrt(((one - other)[off] ** 2).mean()), np.corrcoef(one[off], other[off])[0, 1]
            return f"{apart:.3f} (r = {r:.2f})"

        missed = np.linalg.norm(w @ found.mean - mu) / np.linalg.norm(mu)
        assert np.abs(reached.diagonal() / variances - 1).max() < 1e-3, name
        cells = (rms(pair, joint), rms(pair, true[name]), rms(joint, true[name]), f"{missed:.0%}")
        lines.append(f"| `{name}` | {len(w)} | {w.shape[1]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write-pages", action="store_true", help="put the tables into docs/theory.md")
    asked = parser.parse_args()
    for name, table in (("parents", consolidation), ("surrogates", surrogates)):
        made = table()
        print(made, end="\n\n")
        if asked.write_pages:
            put(name, made)


if __name__ == "__main__":
    main()
