"""Transformers made smaller by absorption and by its peers: `python -m experiments.language [MODEL ...]`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import nn

import hope
from experiments import readme
from experiments.command import call
from experiments.data import data_folder
from experiments.language import page, peers, texts
from experiments.language.parts import KINDS, parameters, parts_of, wanted
from hope.bench.results import check_out, versions, write_results
from hope.rewrite.refit import compressed
from hope.storage.run import fingerprint

MODELS = page.MODELS
SHARES = (0.1, 0.2, 0.3, 0.5)
SOURCES = ("16", "64", "256", "512 short", "random tokens", "own text")
RUNS: dict[str, dict[str, Any]] = {
    "absorb": {},
    "absorb, not looked": {"sensitivity": False},
    "absorb, equal widths": {"uniform": True},
}
FITTED = ", refitted"
OWN = tuple(f"{run}{end}" for run in RUNS for end in ("", FITTED))


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.language",
        description="Make transformers smaller with absorption and its peers, and measure perplexity or the "
        "agreement of sentences. Every point is saved at once; started again, it goes on where it stopped.",
        epilog="example: python -m experiments.language smollm2-135m --weights models/ --kinds mlp",
    )
    top.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)} (default: all)")
    top.add_argument("--data", metavar="FOLDER", help="with the texts in text/ (default: $HOPE_DATA)")
    top.add_argument(
        "--weights",
        metavar="FOLDER",
        help="with the checkpoints, made by transformers_zoo.py of the data folder",
    )
    top.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what may go (default: all)")
    top.add_argument("--shares", nargs="+", type=float, default=SHARES, help="that go (default: %(default)s)")
    every = (*OWN, *peers.PEERS)
    top.add_argument("--methods", nargs="+", choices=every, default=every, help="default: all")
    top.add_argument(
        "--sources",
        nargs="+",
        choices=SOURCES,
        default=("256",),
        help="what to learn from (default: 256 windows)",
    )
    top.add_argument(
        "--out", metavar="FILE", default=str(page.RESULTS), help="default: the committed results"
    )
    readme.add_arguments(top)
    return top


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"language": page.table}):
        return
    out = Path(options.out)
    check_out(out)
    results = json.loads(out.read_text()) if out.is_file() else {}
    folder = data_folder(options.data)
    for name in options.models or MODELS:
        model, tokenizer = texts.loaded(name, Path(options.weights) if options.weights else folder)
        measure = measured_by(name, tokenizer, folder / "text")
        entry = results.setdefault(name, {"points": {}})
        entry |= {"weights": fingerprint(model)[:16], "versions": versions("transformers")}
        entry |= {"parameters": dict(zip(("layers", "whole"), parameters(model), strict=True))}
        if "base" not in entry:
            entry["base"] = measure(model)
            write_results(out, results)

        @cache
        def known(source: str, model: nn.Module = model, tokenizer: Any = tokenizer) -> peers.Batches:
            return inputs(model, tokenizer, folder / "text" / "wikitext2-valid.txt", source)

        for keys, point in points(model, known, measure, options, entry["points"]):
            place = entry["points"]
            for key in keys[:-1]:
                place = place.setdefault(key, {})
            place[keys[-1]] = point
            reported = {k: v for k, v in point.items() if k != "losses"}
            print(name, *keys, reported, flush=True)
            write_results(out, results)


def measured_by(name: str, tokenizer: Any, folder: Path) -> Callable[[nn.Module], dict[str, Any]]:
    """What measures a model."""
    if name == "minilm-l6":
        scores, sentences = texts.pairs(folder / "sts-test.csv")
        return lambda model: {"spearman": texts.spearman(model, tokenizer, scores, sentences)}
    rows = texts.test_windows(tokenizer, folder / "wikitext2-test.txt")

    def perplexity(model: nn.Module) -> dict[str, Any]:
        found = texts.losses(model, rows)
        return {"loss": sum(found) / len(found), "losses": [round(loss, 5) for loss in found]}

    return perplexity


def inputs(model: nn.Module, tokenizer: Any, file: Path, source: str) -> peers.Batches:
    """Batches to learn from: so many windows of a text, or made up."""
    if source == "random tokens":
        return texts.batched(texts.random_tokens(model, 256))
    if source == "own text":
        return texts.batched(texts.own_text(model, 256))
    count, short = int(source.split()[0]), source.endswith("short")
    return texts.windows(tokenizer, file, count, texts.SHORT if short else texts.WINDOW)


def points(
    model: nn.Module,
    known: Callable[[str], peers.Batches],
    measure: Callable[[nn.Module], dict[str, Any]],
    options: argparse.Namespace,
    done: dict[str, Any],
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """(kind, share, method, source) and what was measured there, for all that is missing."""
    heard = cache(lambda source: peers.hear(model, known(source)))
    for kind in options.kinds:
        for method in (m for m in options.methods if m in peers.PEERS):
            for source in ["nothing"] if method in peers.WITHOUT else options.sources:
                if method in peers.WHOLE and (kind != "both" or not hasattr(model, "lm_head")):
                    continue
                for share in options.shares:
                    keys = (kind, f"{share:g}", method, source)
                    if has(done, keys):
                        continue
                    start = time.perf_counter()
                    batches = () if source == "nothing" else known(source)
                    small, size = peers.made(method, model, kind, share, batches, partial(heard, source))
                    seconds = time.perf_counter() - start
                    yield keys, reported(measure(small), size, seconds)
        for source in options.sources:
            missing = {
                share: [
                    m for m in options.methods if m in OWN and not has(done, (kind, f"{share:g}", m, source))
                ]
                for share in options.shares
            }
            for run, how in RUNS.items():
                some = {
                    s: [m for m in names if m.removesuffix(FITTED) == run] for s, names in missing.items()
                }
                some = {s: names for s, names in some.items() if names}
                for share, method, small, seconds in absorbed(model, known(source), kind, some, **how):
                    size = parameters(small)
                    yield (kind, f"{share:g}", method, source), reported(measure(small), size, seconds)


def absorbed(
    model: nn.Module,
    batches: peers.Batches,
    kind: str,
    shares: dict[float, list[str]],
    *,
    sensitivity: bool | None = None,
    uniform: bool = False,
) -> Iterator[tuple[float, str, nn.Module, float]]:
    """(share, method, network, seconds): one run answers all shares, with and without the loop closed."""
    if not shares:
        return
    start = time.perf_counter()
    whole = parameters(model)[1]
    others = {part for part in parts_of(model) if part not in parts_of(model, kind)}
    fixed = sorted({name for part in others for name in (*part.writers, part.reader)})
    encoding = hope.encode(
        model,
        {"input_ids": batches[0]["input_ids"][:1]},
        params=whole - wanted(model, kind, max(shares)),
        method=hope.Absorb(calibration=list(batches), refit=True, sensitivity=sensitivity),
        evict=False,
        exclude=fixed,
        uniform=uniform,
        progress=False,
    )
    shared = time.perf_counter() - start
    for share, methods in shares.items():
        steps = encoding.trajectory.steps_to("params", whole - wanted(model, kind, share))
        for method in methods:
            start = time.perf_counter()
            small = compressed(
                encoding.original,
                encoding.anatomy,
                encoding.trajectory.steps[:steps],
                input_statistics=encoding.input_statistics,
                rewrite=encoding.method.rewrite,
                inputs=encoding.inputs if method.endswith(FITTED) else (),
                fixed=fixed,
            )
            yield share, method, small, shared + time.perf_counter() - start


def has(done: dict[str, Any], keys: Sequence[str]) -> bool:
    """Whether a point was measured."""
    for key in keys:
        done = done.get(key, {})
    return bool(done)


def reported(found: dict[str, Any], size: tuple[int, int], seconds: float) -> dict[str, Any]:
    """A point as it is written down."""
    return {**found, "layers": size[0], "whole": size[1], "seconds": round(seconds, 1)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
