"""Memory and time for a large language model: `python -m experiments.scale FOLDER`, resumable.

A Llama with random weights in bfloat16 is written to FOLDER, loaded again (its weights stay in the mapped
files), compressed with one width for all layers, written in shards, and loaded by transformers alone. Weights
are random, so the figures are of time and memory only. Resident memory counts pages of mapped files, which
the system takes back when it needs them; anonymous memory is what it cannot take back.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

import hope
from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call
from hope._util.memory import GB
from hope._util.operators import declare_missing_operators
from hope.bench.results import check_out, versions, write_results

RESULTS = FOLDER / "scale.json"
SIZES: dict[str, dict[str, int]] = {
    "42M": {"vocab_size": 8000, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 10,
            "num_attention_heads": 8, "num_key_value_heads": 2},
    "1B": {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
           "num_attention_heads": 32, "num_key_value_heads": 4},
}  # fmt: skip
WINDOWS, TOKENS, BATCHES = 4, 64, 2  # what moments are measured on
PHASES = ("load", "inspect", "encode", "cut", "save", "load again")
KINDS = {"VmRSS": "resident", "RssAnon": "anonymous"}


class Watch:
    """Peaks of memory and seconds, by what was being done."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note what is used from here to the end."""
        done, peaks, start = Event(), dict.fromkeys(KINDS, 0.0), time.perf_counter()

        def look() -> None:
            while True:
                for kind, used in _used().items():
                    peaks[kind] = max(peaks[kind], used)
                if done.wait(0.02):
                    return

        looking = Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            done.set()
            looking.join()
            self.found[name] = {"seconds": round(time.perf_counter() - start, 1)}
            self.found[name] |= {title: round(peaks[kind], 3) for kind, title in KINDS.items()}
            print(name, self.found[name], flush=True)


def _used() -> dict[str, float]:
    """Memory of this process in GB, as Linux has it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = dict(line.split(":", 1) for line in lines)
    return {kind: int(pairs[kind].split()[0]) * 1024 / GB for kind in KINDS}


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    prog = "python -m experiments.scale"
    top = argparse.ArgumentParser(prog=prog, description=__doc__.partition("\n")[0] if __doc__ else None)
    top.add_argument("folder", nargs="?", metavar="FOLDER", help="where models are written")
    top.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES), help="default: all")
    top.add_argument("--memory", nargs="+", type=float, metavar="GB", help="HOPE_MEMORY (default: by size)")
    top.add_argument("--params", type=float, default=0.9, help="share of parameters to keep (default: 0.9)")
    top.add_argument("--out", metavar="FILE", default=str(RESULTS), help="default: the committed results")
    readme.add_arguments(top)
    return top


def transformers() -> Any:
    """The library, which other experiments do without."""
    declare_missing_operators()
    return import_module("transformers")


def written(folder: Path, size: str) -> Path:
    """The random model, as transformers saves it."""
    library = transformers()
    path = folder / f"llama-{size}"
    if not path.is_dir():
        torch.manual_seed(0)
        config = library.LlamaConfig(**SIZES[size], tie_word_embeddings=True, dtype="bfloat16")
        model = library.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(path, max_shard_size="500MB")
    return path


def measured(path: Path, params: float) -> dict[str, Any]:
    """One model from its folder to a smaller one in a folder, step by step."""
    library = transformers()
    watch, draw = Watch(), torch.Generator().manual_seed(0)
    with watch.phase("load"):
        model = library.AutoModelForCausalLM.from_pretrained(path).eval()
    shape = (WINDOWS, TOKENS)
    vocabulary = model.config.vocab_size
    batches = [{"input_ids": torch.randint(2, vocabulary, shape, generator=draw)} for _ in range(BATCHES)]
    with watch.phase("inspect"):
        anatomy = hope.inspect(model, batches[0])
    method = hope.Absorb(calibration=batches, sensitivity=False)
    with watch.phase("encode"):
        how: dict[str, Any] = {"uniform": True, "anatomy": anatomy, "progress": None}
        encoding = hope.encode(model, batches[0], params=params, method=method, **how)
    with watch.phase("cut"):
        small: Any = encoding.model
    with watch.phase("save"):
        small.save_pretrained(path.with_name(f"{path.name}-small"), max_shard_size="500MB")
    with watch.phase("load again"), torch.no_grad():
        again = library.AutoModelForCausalLM.from_pretrained(path.with_name(f"{path.name}-small")).eval()
        same = torch.equal(again(**batches[0]).logits, small(**batches[0]).logits)
    return {
        "parameters": [anatomy.size().parameters, encoding.size.parameters],
        "weights": round(sum(one.nbytes for one in model.parameters()) / GB, 3),
        "width": [model.config.intermediate_size, small.config.intermediate_size],
        "moments": round(sum(8 * len(one.mean) ** 2 for one in encoding.input_statistics.values()) / GB, 3),
        "tokens": WINDOWS * TOKENS * BATCHES,
        "same logits": same,
        "phases": watch.found,
    }


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"scale": table}):
        return
    out = Path(options.out)
    check_out(out)
    results = json.loads(out.read_text()) if out.is_file() else {}
    for size in options.sizes:
        path = written(Path(options.folder or "."), size)
        for memory in options.memory or [6.0]:
            key = f"{size}, {memory:g} GB"
            if key not in results:
                os.environ["HOPE_MEMORY"] = str(memory)
                results[key] = {**measured(path, options.params), "versions": versions()}
                write_results(out, results)


def table() -> str:
    """Seconds and peaks by what is done."""
    lines: list[str] = []
    for key, entry in json.loads(RESULTS.read_text()).items():
        before, after = entry["parameters"]
        lines += [
            f"\n**{key.partition(',')[0]}**, `HOPE_MEMORY={key.partition(', ')[2].split()[0]}`: "
            f"{before:,} → {after:,} parameters, weights {entry['weights']:.2f} GB, all layers' moments "
            f"{entry['moments']:.2f} GB, {entry['tokens']} tokens\n",
            "| | seconds | peak resident, GB | of it anonymous, GB |",
            "|---|---|---|---|",
        ]
        for name in PHASES:
            one = entry["phases"][name]
            lines.append(
                f"| {name} | {one['seconds']:.0f} | {one['resident']:.2f} | {one['anonymous']:.2f} |"
            )
    return "\n".join(lines).strip() + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
