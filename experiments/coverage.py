"""How much of the networks of three libraries is prunable: `python -m experiments.coverage`.

For every network of the zoo HOPE removes 30% of the neurons, then all blocks, then 30% of the neurons and of
the residual streams' channels. Each result is compared with the original in which the same parts are set to
zero. Each finished network is written to coverage.json at once, so an interrupted sweep resumes.
`--table` prints the results as Markdown, `--write-pages` writes them into docs/coverage.md and README.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

import hope
from experiments.command import RESULTS as FOLDER
from experiments.readme import add_arguments, shown
from hope.errors import first_line
from hope.structure.anatomy import Anatomy
from hope.structure.needs import Need, counts
from zoo.foreign import Entry, zoo
from zoo.silence import masked, random_cut, randomise, run, silenced, together

RESULTS = FOLDER / "coverage.json"
TOLERANCE = 1e-4


def versions() -> dict[str, str]:
    """What the results depend on."""
    import timm
    import torchvision
    import transformers

    modules = {"torch": torch, "torchvision": torchvision, "timm": timm, "transformers": transformers}
    found = {name: str(module.__version__).partition("+")[0] for name, module in modules.items()}
    return {"hope": hope.__version__, "python": platform.python_version(), **found}


def difference(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """The largest difference between outputs, relative to the largest entry."""
    if [a.shape for a in got] != [b.shape for b in want]:
        return float("inf")
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(got, want, strict=True))


def prune_difference(model: nn.Module, example: Any, anatomy: Anatomy) -> float | None:
    """How far a cut by 30 % is from the masked original; None if there is nothing to cut."""
    actions = random_cut(anatomy)
    if not actions:
        return None
    small = hope.cut(model, anatomy, actions)
    return difference(run(small, example), run(masked(model, anatomy, actions), example))


def evict_difference(model: nn.Module, example: Any, anatomy: Anatomy) -> float | None:
    """How far evicting the outermost blocks is from silencing them, as many as can go together; None if there
    are none.
    """
    outermost = [hope.Evict(block.name) for block in anatomy.blocks if block.inside is None]
    evictions = together(anatomy, outermost)
    if not evictions:
        return None
    small = hope.cut(model, anatomy, evictions)
    return difference(run(small, example), silenced(model, example, anatomy, evictions))


def measure(entry: Entry) -> dict[str, Any]:
    """Everything that is recorded about one network."""
    model, example = randomise(entry.build()), entry.example()
    record: dict[str, Any] = {
        "source": entry.source,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    try:
        anatomy = hope.inspect(model, example, progress=False)
        size, floor = anatomy.size(), anatomy.floor()
        reasons = Counter(one.reason.cause.short for one in anatomy.skipped)
        skips = Counter("residual" if block.residual else block.skip for block in anatomy.blocks)
        record |= {
            "layers": len(anatomy.layers),
            "neurons": size.neurons,
            "needs": {need.value: count for need, count in counts(anatomy).items()},
            "needs_by_the_paper": {need.value: count for need, count in counts(anatomy, "paper").items()},
            "reachable": round(1 - floor.parameters / size.parameters, 4),
            "blocks": skips["residual"],
            "blocks_not_evictable": sum(one.kind == "block" for one in anatomy.skipped),
            "parts_of_concatenations": skips["concatenation"],
            "segments_of_chains": skips["chain"],
            "streams": len(anatomy.streams),
            "left_alone": dict(reasons.most_common()),
            "prune_difference": prune_difference(model, example, anatomy),
            "evict_difference": evict_difference(model, example, anatomy),
        }
        record["with_streams"] = with_streams(model, example)
        record["verified"] = all(one <= TOLERANCE for one in differences(record))
    except Exception as error:  # a sweep tells what fails, it does not stop there
        record |= {"verified": False, "failure": f"{type(error).__name__}: {first_line(error)}"}
    return record


def with_streams(model: nn.Module, example: Any) -> dict[str, Any]:
    """What is recorded about a network whose residual streams may get narrower."""
    anatomy = hope.inspect(model, example, streams=True, progress=False)
    reasons = Counter(one.reason.cause.short for one in anatomy.skipped)
    return {
        "open": sum(unit.open for unit in anatomy.streams),
        "needs": {need.value: count for need, count in counts(anatomy).items()},
        "left_alone": dict(reasons.most_common()),
        "prune_difference": prune_difference(model, example, anatomy),
    }


def differences(record: Mapping[str, Any]) -> list[float]:
    """How far a network's cuts are from the silenced original."""
    found = [record.get("prune_difference"), record.get("evict_difference")]
    found.append(record.get("with_streams", {}).get("prune_difference"))
    return [one for one in found if one is not None]


def read(path: Path = RESULTS) -> dict[str, Any]:
    """Earlier results; none if there are none, or if they are of other versions."""
    if path.is_file():
        results: dict[str, Any] = json.loads(path.read_text())
        if results["versions"] == versions():
            return results
    return {"versions": versions(), "models": {}}


def write(results: Mapping[str, Any], path: Path = RESULTS) -> None:
    """All or nothing: a reader sees the old file or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    os.replace(partial, path)


def sweep(entries: Iterable[Entry], *, again: bool = False) -> dict[str, Any]:
    """Measure what has not been measured yet, writing each result at once."""
    results = read()
    left = [entry for entry in entries if again or entry.key not in results["models"]]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(left))
        for entry in left:
            progress.update(task, description=entry.key)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results["models"][entry.key] = measure(entry)
            write(results)
            progress.advance(task)
    order = {entry.key: position for position, entry in enumerate(zoo())}
    known = sorted((key for key in results["models"] if key in order), key=order.__getitem__)
    results["models"] = {key: results["models"][key] for key in known}
    write(results)
    return results


NEEDS = [need.value for need in Need]
KINDS = ("blocks", "parts_of_concatenations", "segments_of_chains")


def table(results: Mapping[str, Any]) -> str:
    """The results as Markdown: a summary, and one row per network folded away."""
    models = results["models"]
    lines = [
        "| source | networks | analysed | cut = masked | neurons prunable without data | with calibration "
        "| not prunable | not prunable, with `streams=True` | parameters prunable (median) |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    blocks = [
        "| evictable blocks | with a skip | parts of concatenations | segments of chains | not evictable |",
        "|---|---:|---:|---:|---:|",
    ]
    for source in [*dict.fromkeys(record["source"] for record in models.values()), "all"]:
        some = [record for record in models.values() if source in (record["source"], "all")]
        seen = [record for record in some if "layers" in record]
        share = median(record["reachable"] for record in seen) if seen else 0.0
        right = sum(record["verified"] for record in some)
        parts = [mean(shares(record)[k] for record in seen) if seen else 0.0 for k in range(len(NEEDS))]
        parts.append(mean(shares(record["with_streams"])[-1] for record in seen) if seen else 0.0)
        lines.append(
            f"| {source} | {len(some)} | {len(seen)} | {right} | "
            f"{' | '.join(f'{part:.0%}' for part in parts)} | {share:.1%} |"
        )
        found = [sum(record[kind] for record in seen) for kind in (*KINDS, "blocks_not_evictable")]
        blocks.append(f"| {source} | {' | '.join(f'{count:,}' for count in found)} |")
    lines += [
        "",
        "Shares of neurons are means over networks.",
        "",
        *blocks,
        "",
        f"Most frequent reasons why something is not prunable: {_reasons(models.values())}.",
        "",
        f"With `streams=True`: {_reasons(record.get('with_streams', {}) for record in models.values())}.",
        "",
        "<details>",
        f"<summary>All {len(models)} networks</summary>",
        "",
        "| network | parameters | layers | neurons | without data | with calibration | not prunable "
        "| with streams | prunable | blocks | difference | reasons |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [_row(key, record) for key, record in models.items()]
    used = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines += [
        "",
        "Columns:",
        "",
        "- *neurons*: neurons that are prunable one by one.",
        "- *without data*, *with calibration*, *not prunable*: shares of all neurons, including the model's "
        "outputs and streams, under the default method. In grouped convolutions each channel counts.",
        "- *with streams*: the share that is not prunable with `streams=True` either.",
        "- *prunable*: the share of parameters that pruning and evicting residual blocks can remove.",
        "- *blocks*: evictable blocks of all blocks found: with a skip + parts of concatenations + segments "
        "of chains.",
        "- *difference*: the cut network against the original with the same parts set to zero; the largest "
        "of three relative differences. The three cuts: 30% of all neurons at random; every outermost block "
        "that can be evicted together with those before it; 30% of all neurons and stream channels.",
        "- *reasons*: the two most frequent ones.",
        "",
        f"Random weights; {used}.",
        "",
        "</details>",
    ]
    return "\n".join(lines)


def _reasons(records: Iterable[Mapping[str, Any]]) -> str:
    found: Counter[str] = Counter()
    for record in records:
        found.update(record.get("left_alone", {}))
    return ", ".join(f"{reason} ({count:,})" for reason, count in found.most_common(8))


def shares(record: Mapping[str, Any]) -> list[float]:
    """What parts of a network's neurons can go without data, with calibration, not at all."""
    counted = [record["needs"][need] for need in NEEDS]
    return [count / max(sum(counted), 1) for count in counted]


def committed() -> str:
    """The committed results as Markdown."""
    return table(json.loads(RESULTS.read_text()))


def sentence() -> str:
    """The committed results in one sentence."""
    seen = [one for one in json.loads(RESULTS.read_text())["models"].values() if "needs" in one]
    free, more, never = (f"{mean(shares(record)[k] for record in seen):.0%}" for k in range(len(NEEDS)))
    return (
        f"Average over {len(seen)} networks of three libraries: {free} of neurons are prunable one by one "
        f"without data,\n{more} only with calibration. The other {never} cannot be removed one by one; some "
        "of them go with a whole branch: [coverage](docs/coverage.md)."
    )


def _row(key: str, record: Mapping[str, Any]) -> str:
    start = f"| {key} | {record['parameters'] / 1e6:.1f} M |"
    if "layers" not in record:
        return f"{start} | | | | | | | | | {record['failure']} |"
    blocks = [record[kind] for kind in KINDS]
    found = sum(blocks) + record["blocks_not_evictable"]
    can = " + ".join(map(str, blocks)) if any(blocks[1:]) else str(blocks[0])
    reported = differences(record)
    mostly = ", ".join(list(record["left_alone"])[:2])
    return (
        f"{start} {record['layers']} | {record['neurons']:,} | "
        f"{' | '.join(f'{share:.0%}' for share in shares(record))} | "
        f"{shares(record['with_streams'])[-1]:.0%} | {record['reachable']:.1%} | "
        f"{can} of {found} | "
        f"{f'{max(reported):.0e}' if reported else '–'} | {record.get('failure', mostly)} |"
    )


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.coverage", description=(__doc__ or "").partition(":")[0]
    )
    top.add_argument("networks", nargs="*", help="measure these only (torchvision/resnet18), again")
    add_arguments(top)
    return top


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, or show what there is."""
    chosen = parser().parse_args(arguments)
    if shown(chosen, {"coverage": committed, "reach": sentence}):
        return
    entries = zoo()
    unknown = set(chosen.networks) - {entry.key for entry in entries}
    if unknown:
        raise SystemExit(f"not in the zoo: {', '.join(sorted(unknown))}")
    sweep(
        [e for e in entries if not chosen.networks or e.key in chosen.networks], again=bool(chosen.networks)
    )


if __name__ == "__main__":
    main()
