"""What bits are worth in models of text: `python -m experiments.bits_text [MODEL ...]`, resumable.

Every weight of a linear layer rounded to 8, 4 or 3 bits, with one scale per output or per group of inputs: to
nearest, which is what error feedback comes to where nothing is known of inputs, and with error feedback under
statistics measured on a few windows of text. For a model of sentences also with a third of its MLP neurons
gone, rounded afterwards or in the same rewrite.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torch import nn

import hope
from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser
from experiments.data import data_folder
from experiments.language import texts
from experiments.language.__main__ import inputs, measured_by
from experiments.language.parts import parameters, parts_of, wanted
from hope.bench.results import check_out, versions, write_results
from hope.methods.method import NetworkStatistics
from hope.rewrite.refit import compressed
from hope.schedule.bits import readers, with_readers
from hope.schedule.trajectory import Trajectory
from hope.storage.run import fingerprint

RESULTS = FOLDER / "bits-text.json"
SENTENCES, WORDS = "minilm-l6", "smollm2-135m"
TITLES = {SENTENCES: "MiniLM-L6 (sentences)", WORDS: "SmolLM2-135M"}
SOURCES = {SENTENCES: "512 short", WORDS: "16"}  # windows that statistics are measured on
BITS = {SENTENCES: (8, 4, 3), WORDS: (8, 4)}
GROUPS = {SENTENCES: (0, 64, 32), WORDS: (32,)}
MOVED = 256  # sentences whose embeddings are compared with the original's
SEVERAL = 4  # windows that perplexity is measured on
GONE, FEW, TOGETHER = 1 / 3, 4, 32  # of the MLP neurons; bits and inputs of a scale then
WAYS = {
    "neurons": "without a third of the MLP neurons",
    "neurons, then bits": "the same, then 4 bits under statistics of the smaller model",
    "together": "the same and 4 bits in one rewrite, under statistics of the original",
    "together, refitted": "the same, with every weight refitted, and rounded as soon as it is",
    "neurons, no sensitivity": "without a third of the MLP neurons, `sensitivity=False`",
    "together, no sensitivity": "without a third, `sensitivity=False`, and 4 bits in one rewrite",
    "one run": "`size=` of the same bytes with `bits=[4]`: neurons, heads and bits in one run",
}


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    what = "Measure what bits are worth in models of text."
    top = network_parser("bits_text", what, list(TITLES), RESULTS, " --weights models/")
    top.add_argument("--points", nargs="+", metavar="POINT", help="default: all of a model")
    return top


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"bits-text": table}):
        return
    out, folder = Path(options.out), data_folder(options.data)
    check_out(out)
    results = json.loads(out.read_text()) if out.is_file() else {}
    for name in options.networks or TITLES:
        model, tokenizer = texts.loaded(name, Path(options.weights) if options.weights else folder)
        measure = _measure(name, model, tokenizer, folder / "text")
        entry = results.setdefault(name, {"points": {}})
        entry |= {"weights": fingerprint(model)[:16], "versions": versions("transformers")}
        if "base" not in entry:
            entry["base"] = measure(model)
            write_results(out, results)
        points = entry["points"]
        text = folder / "text" / "wikitext2-valid.txt"
        for key, made in _Models(name, model, tokenizer, text).figures():
            if key not in points and (not options.points or key in options.points):
                small, share = made()
                points[key] = {**measure(small), "size": round(share, 5)}
                print(name, key, points[key], flush=True)
                write_results(out, results)


def _measure(
    name: str, model: nn.Module, tokenizer: Any, folder: Path
) -> Callable[[nn.Module], dict[str, Any]]:
    """What measures a model: of sentences also how far they move, of language a few windows."""
    if name == WORDS:
        rows = texts.test_windows(tokenizer, folder / "wikitext2-test.txt")[:SEVERAL]
        return lambda small: {"losses": [round(loss, 5) for loss in texts.losses(small, rows)]}
    agree, (_, pairs) = measured_by(name, tokenizer, folder), texts.pairs(folder / "sts-test.csv")
    some = [pair[0] for pair in pairs[:MOVED]]
    before = texts.embedded(model, tokenizer, some)
    spread = float((before - before.mean(dim=0)).square().sum())

    def measured(small: nn.Module) -> dict[str, Any]:
        moved = float((texts.embedded(small, tokenizer, some) - before).square().sum())
        return {**agree(small), "moved": round(moved / spread, 6)}

    return measured


class _Models:
    """Rounded copies of one model; what several need is made once."""

    def __init__(self, name: str, model: nn.Module, tokenizer: Any, text: Path) -> None:
        self.name, self.model = name, model
        self.batches = partial(inputs, model, tokenizer, text)
        self.anatomy = hope.inspect(model, self.batches("16")[0])

    def figures(self) -> Iterator[tuple[str, Callable[[], tuple[nn.Module, float]]]]:
        """(name of a figure, what makes its model and the share of the bytes that it has)."""
        for bits, group in product(BITS[self.name], GROUPS[self.name]):
            yield key(bits, group), partial(self._nearest, bits, group)
            yield key(bits, group, SOURCES[self.name]), partial(self._feedback, bits, group)
        if self.name == SENTENCES:
            for way in WAYS:
                yield way, partial(self._smaller, way)

    def _steps(self, bits: int, group: int, rounding: str = "feedback") -> list[hope.Quantise]:
        """Every weight on a grid, with one scale per output where groups do not divide its inputs."""
        return [
            hope.Quantise(
                weight, bits, 0 if group and self.anatomy.shapes[weight][1] % group else group, rounding
            )
            for weight in readers(self.anatomy)
        ]

    def _share(self, steps: Sequence[Any]) -> float:
        sizes = Trajectory.of(self.anatomy, steps).counts("size")
        return float(sizes[-1] / sizes[0])

    def _nearest(self, bits: int, group: int) -> tuple[nn.Module, float]:
        steps = self._steps(bits, group, "nearest")
        return hope.cut(self.model, self.anatomy, steps), self._share(steps)

    def _feedback(self, bits: int, group: int) -> tuple[nn.Module, float]:
        steps = self._steps(bits, group)
        known = self._known.input_statistics
        return hope.cut(self.model, self.anatomy, steps, input_statistics=known), self._share(steps)

    @cached_property
    def _known(self) -> NetworkStatistics:
        return self._collected(self.model, self.anatomy)

    def _collected(self, model: nn.Module, anatomy: hope.Anatomy) -> NetworkStatistics:
        """What `hope.encode(model, x, bits=..., calibration=...)` knows of the inputs of all weights."""
        batches = self.batches(SOURCES[self.name])
        method = hope.Absorb(calibration=batches, refit=False)
        return with_readers(method.collect(model, batches[0], anatomy), readers(anatomy), model)

    def _absorbed(self, sensitivity: bool | None = None, refit: bool = False, **how: Any) -> hope.Encoding:
        batches = self.batches(SOURCES[self.name])
        method = hope.Absorb(calibration=batches, refit=refit, sensitivity=sensitivity)
        return hope.encode(self.model, batches[0], method=method, anatomy=self.anatomy, progress=False, **how)

    @cache  # noqa: B019
    def _removed(self, sensitivity: bool | None) -> hope.Encoding:
        """Widths are multiples of a group, so that groups divide what is left."""
        count = parameters(self.model)[1] - wanted(self.model, "mlp", GONE)
        how: dict[str, Any] = {"params": count, "multiple_of": TOGETHER, "exclude": self._heads}
        return self._absorbed(sensitivity, refit=True, **how)

    @property
    def _heads(self) -> list[str]:
        return [name for part in parts_of(self.model, "heads") for name in (*part.writers, part.reader)]

    def _smaller(self, way: str) -> tuple[nn.Module, float]:
        """A third of the MLP neurons gone, and 4 bits at the same time, after that, or not at all."""
        run = self._removed(False if "no sensitivity" in way else None)
        removals = run.trajectory.steps[: run.steps]
        together = [*removals, *self._steps(FEW, TOGETHER)]
        if way == "one run":
            one = self._absorbed(size=self._share(together), bits=[FEW], group=TOGETHER)
            return one.model, self._share(one.trajectory.steps[: one.steps])
        known = {**self._known.input_statistics, **run.input_statistics}
        how: dict[str, Any] = {"input_statistics": known, "rewrite": run.method.rewrite}
        if "refitted" in way:
            how["inputs"] = run.inputs
        steps = together if "together" in way else [*removals]
        small = compressed(self.model, self.anatomy, steps, **how)
        if "then" not in way:
            return small, self._share(steps)
        anatomy = hope.inspect(small, self.batches("16")[0])
        known = dict(self._collected(small, anatomy).input_statistics)
        small = hope.cut(small, anatomy, self._steps(FEW, TOGETHER), input_statistics=known)
        return small, self._share(together)


def key(bits: int, group: int, source: str = "") -> str:
    """Name of a figure.

    >>> key(4, 32, "16"), key(8, 0)
    ('feedback 4, group 32, 16 windows', 'nearest 8')
    """
    words = [f"{'feedback' if source else 'nearest'} {bits}", *([f"group {group}"] if group else [])]
    return ", ".join([*words, *([f"{source} windows"] if source else [])])


def table() -> str:
    """A table of rounding per model, and one of rounding a smaller model."""
    lines: list[str] = []
    for name, entry in json.loads(RESULTS.read_text()).items():
        points, base = entry["points"], entry["base"]
        if not points:
            continue
        length = texts.SHORT if "short" in SOURCES[name] else texts.WINDOW
        source = f"{SOURCES[name].split()[0]} windows of {length} tokens"
        lines.append(f"\n**{TITLES[name]}**: {_said(base)}; feedback measures inputs on {source}\n")
        titles = [
            f"{bits} bits, {f'group={g}' if g else 'per output'}" for bits, g in _settings(name, points)
        ]
        lines += [f"| every weight rounded | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
        some = [
            points.get(key(bits, g), points.get(key(bits, g, SOURCES[name])))
            for bits, g in _settings(name, points)
        ]
        lines.append(f"| share of the bytes | {' | '.join(map(_size, some))} |")
        for title, known in (("nearest, or no calibration", ""), ("feedback", SOURCES[name])):
            cells = [_cell(points.get(key(bits, g, known)), base) for bits, g in _settings(name, points)]
            lines.append(f"| {title} | {' | '.join(cells)} |")
        if any(way in points for way in WAYS):
            lines += [
                "",
                "| MLP neurons and 4 bits, `group=32` | Spearman | share of the bytes |",
                "|---|---|---|",
            ]
        for way in (way for way in WAYS if way in points):
            lines.append(f"| {WAYS[way]} | {_cell(points[way], base)} | {_size(points[way])} |")
    return "\n".join(lines).strip() + "\n"


def _settings(name: str, points: dict[str, Any]) -> list[tuple[int, int]]:
    """Bits and groups that were measured."""
    every = product(BITS[name], GROUPS[name])
    return [one for one in every if key(*one) in points or key(*one, SOURCES[name]) in points]


def _said(base: dict[str, Any]) -> str:
    if "spearman" in base:
        moved = "how far embeddings move, as a share of their variance"
        return f"Spearman, STS-B test (in brackets, {moved}); base {base['spearman']:.3f}"
    count, loss = len(base["losses"]), mean(base["losses"])
    return f"perplexity; base {math.exp(loss):.2f}, {count} windows of {texts.TEST} tokens"


def _cell(point: dict[str, Any] | None, base: dict[str, Any]) -> str:
    if point is None:
        return "–"
    if "spearman" in point:
        return f"{point['spearman']:.3f} ({100 * point['moved']:.2g}%)"
    excess = [a - b for a, b in zip(point["losses"], base["losses"], strict=True)]
    off = stdev(excess) / math.sqrt(len(excess))
    return f"{math.exp(mean(point['losses'])):.2f} ({mean(excess):+.3f} ± {off:.3f} nats)"


def _size(point: dict[str, Any] | None) -> str:
    return "–" if point is None else f"{point['size']:.3f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
