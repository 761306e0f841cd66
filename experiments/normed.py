"""Streams behind norms over channels: `python -m experiments.normed [NETWORK ...]`, resumable by network.

Two small language models of characters, one with RMSNorms (Llama) and one with LayerNorms (GPT-2), are
trained here, in some minutes each, on the first part of a text. The rest is what perplexity is measured on.
First channels of the stream alone go, and what the norms' weights are multiplied by varies; then all that may
go, at budgets, without and with streams.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from math import exp, sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hope
from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser
from experiments.data import data_folder
from hope._util.operators import declare_missing_operators
from hope._util.tensors import get
from hope.actions import Action
from hope.bench.results import check_out, versions, write_results
from hope.structure.anatomy import Anatomy

RESULTS = FOLDER / "normed.json"
TITLES = {
    "llama": "Llama, 4 layers of width 128, RMSNorms",
    "gpt2": "GPT-2, 4 layers of width 128, LayerNorms",
}
TEXT = "text/wikitext2-valid.txt"
CHARACTERS, WINDOW, STEPS, BATCH, RATE = 95, 64, 600, 32, 3e-3
APART = 60_000  # characters at the end, of which the first windows are measured on
WINDOWS, CALIBRATION = 200, 8  # windows that are measured on; batches that signals are measured on
CHANNELS = (4, 8, 16, 32)
BUDGETS = (0.9, 0.8, 0.7, 0.5)
GAINS: dict[str, Callable[[float], float] | None] = {
    "measured": None,
    "√(C/C′)": sqrt,
    "1": lambda ratio: 1.0,
}  # C/C′ -> what weights of norms are multiplied by


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    what = "Measure streams behind norms over channels, on two small language models that are trained first."
    return network_parser("normed", what, list(TITLES), RESULTS)


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"normed": table}):
        return
    out = Path(options.out)
    check_out(out)
    results = json.loads(out.read_text()) if out.is_file() else {}
    text = read(data_folder(options.data) / TEXT)
    for name in options.networks or TITLES:
        if name not in results:
            results[name] = {**measured(trained(name, text[:-APART]), text), "versions": versions()}
            write_results(out, results)


def read(file: Path) -> Tensor:
    """A text as numbers of its commonest characters; the others are left out."""
    text = file.read_text(encoding="utf-8")
    place = {c: k for k, (c, _) in enumerate(Counter(text).most_common(CHARACTERS))}
    return torch.tensor([place[c] for c in text if c in place])


def built(name: str) -> nn.Module:
    """A network whose embedding and head are not tied."""
    declare_missing_operators()
    import transformers

    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False}
    kind: Any = transformers.LlamaForCausalLM
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256}
    sizes |= {"num_hidden_layers": 4, "num_attention_heads": 4}
    if name == "gpt2":
        kind, sizes = transformers.GPT2LMHeadModel, {"n_embd": 128, "n_layer": 4, "n_head": 4}
        sizes |= {"n_positions": WINDOW, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model: nn.Module = kind(kind.config_class(vocab_size=CHARACTERS, **sizes, **ends))
    return model


def windows(text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count, WINDOW) from anywhere in a text."""
    starts = torch.randint(len(text) - WINDOW, (count,), generator=generator)
    return torch.stack([text[start : start + WINDOW] for start in starts.tolist()])


def trained(name: str, text: Tensor) -> nn.Module:
    """The network after some steps on a text."""
    torch.manual_seed(0)
    model, generator = built(name).train(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for step in range(STEPS):
        rows = windows(text, BATCH, generator)
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(name, "step", step, "loss", round(loss.item(), 3), flush=True)
    return model.eval()


@torch.no_grad()
def perplexity(model: nn.Module, rows: Tensor) -> float:
    """Of the next character."""
    return exp(model(input_ids=rows, labels=rows).loss.item())


def measured(model: nn.Module, text: Tensor) -> dict[str, Any]:
    """All that is measured of a network."""
    test, apart = text[-APART:][: WINDOWS * WINDOW].view(WINDOWS, WINDOW), text[:-APART]
    generator = torch.Generator().manual_seed(1)
    batches = [{"input_ids": windows(apart, BATCH, generator)} for _ in range(CALIBRATION)]
    how: dict[str, Any] = {"method": hope.Absorb(calibration=batches), "evict": False, "progress": False}
    runs = {
        streams: hope.encode(model, batches[0], params=0.3, streams=streams, **how)
        for streams in (False, True)
    }
    found: dict[str, Any] = {"base": perplexity(model, test), "gains": {}, "budgets": {}}
    encoding = runs[True]
    (stream,) = [unit for unit in encoding.anatomy.streams if unit.open]
    path = [step for step in encoding.trajectory if step.name == stream.name]
    for count in CHANNELS:
        point = found["gains"].setdefault(str(count), {})
        for kind in ("absorbed", "pruned"):
            steps: list[Action] = list(path[:count])
            if kind == "pruned":
                steps = [hope.Prune(stream.name, [k for step in steps for k in step.removed])]
            for gain, factor in GAINS.items():
                if kind == "absorbed" or factor is not None:
                    small = hope.cut(
                        model,
                        encoding.anatomy,
                        steps,
                        input_statistics=encoding.input_statistics,
                        rewrite=encoding.method.rewrite,
                    )
                    scale(small, model, encoding.anatomy, steps, factor)
                    point[f"{kind}, {gain}"] = perplexity(small, test)
        print(count, point, flush=True)
    for share in BUDGETS:
        point = found["budgets"].setdefault(str(share), {})
        for streams, one in runs.items():
            steps = list(one.trajectory.steps[: one.trajectory.steps_to("params", share)])
            point["on" if streams else "off"] = perplexity(one.at(params=share), test)
            point["channels"] = sum(step.name == stream.name for step in steps)
        print(share, point, flush=True)
    return found


@torch.no_grad()
def scale(
    small: nn.Module,
    model: nn.Module,
    anatomy: Anatomy,
    steps: Sequence[Action],
    factor: Callable[[float], float] | None,
) -> None:
    """Give the norms of a small network other weights: the original's times a factor."""
    if factor is None:
        return
    unit, gone = anatomy.unit(steps[0].name), {k for step in steps for k in step.removed}
    for part in (part for part in unit.places if part.role == "norm"):
        kept = [place for place, owner in enumerate(part.owner.tolist()) if owner not in gone]
        whole = get(model, part.tensor)
        get(small, part.tensor).copy_(whole[kept] * factor(len(whole) / len(kept)))


def table() -> str:
    """Two tables per network."""
    lines: list[str] = []
    for name, entry in json.loads(RESULTS.read_text()).items():
        gains = [(str(count), entry["gains"][str(count)]) for count in CHANNELS]
        budgets = [(str(share), entry["budgets"][str(share)]) for share in BUDGETS]
        lines += [
            f"\n**{TITLES[name]}**, base {entry['base']:.3f}: perplexity by stream channels removed\n",
            f"| removed channels; norm weights times | {' | '.join(count for count, _ in gains)} |",
            "|---" * (len(gains) + 1) + "|",
            *(f"| {row} | {' | '.join(f'{one[row]:.3f}' for _, one in gains)} |" for row in gains[0][1]),
            "\nPerplexity by parameters kept, without → with streams (channels removed)\n",
            f"| {' | '.join(share for share, _ in budgets)} |",
            "|---" * len(budgets) + "|",
            f"| {' | '.join(_cell(one) for _, one in budgets)} |",
        ]
    return "\n".join(lines).strip() + "\n"


def _cell(one: dict[str, Any]) -> str:
    return f"{one['off']:.3f} → {one['on']:.3f} ({one['channels']})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
