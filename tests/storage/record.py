"""Folders as they are written today, and what they must compute ever after.

    python -m tests.storage.record      write tests/storage/old/run-v3-* and the JSON Schemas in docs/schema

Recorded once per version of a format. A folder that a released version wrote is never written again: if a
format changes, its version goes up, a migration is added, and folders of the new version are recorded beside
the old ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import hope
from hope.deft.tuning import Tuning
from hope.storage.adapter import ADAPTER
from hope.storage.codec import _ENVELOPE, Format, Plain
from hope.storage.record import RUN
from tests.golden.record import digits
from tests.latency.fake import faked

OLD = Path(__file__).parent / "old"
SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"
FORMS: tuple[Format[Any], ...] = (RUN, ADAPTER)
EXAMPLE = torch.zeros(1, 1, 8, 8)


def json_schema(form: Format[Any]) -> Plain:
    """The JSON Schema of a kind of file."""
    packed = {"type": "array", "description": "[size, neurons, places, start, step, step], or [owners]"}
    schema = msgspec.json.schema(form.record, schema_hook=lambda _: packed)
    record = schema["$defs"][form.record.__name__]
    reported = {"format": {"const": form.name}, "version": {"const": form.version}}
    record["properties"].update(reported, schema={"const": form.schema}, sha256={"type": "string"})
    record["required"] = [*_ENVELOPE, *record["required"]]
    for entry in schema["$defs"].values():
        entry.pop("description", None)  # docstrings, which may be reworded
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": form.schema, **schema}
    return json.loads(json.dumps(whole))


@torch.no_grad()
def outputs(folder: Path, x: Tensor) -> dict[str, Tensor]:
    """What a saved folder computes: a run at its budget and at another, a tuning and its source task."""
    net, name = digits(), folder.name
    if name.startswith("run"):
        found = {name: hope.load(folder, net).eval()(x)}
        if "by-hand" not in name and "trained" not in name:
            found[f"{name} at 0.75"] = hope.load(folder, net, params=0.75).eval()(x)
        return found
    tuning = Tuning.from_pretrained(folder, net)
    found = {name: tuning.model.eval()(x)}
    with tuning.source() as model:
        found[f"{name} source"] = model.eval()(x)
    return found


def finetuned(encoding: hope.Encoding) -> nn.Module:
    """A small network that has learnt a little."""
    small = encoding.at(steps=encoding.steps).train()
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.05)
    for _ in range(3):
        x, y = torch.randn(16, 1, 8, 8, generator=generator), torch.randint(10, (16,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(small(x), y).backward()
        optimizer.step()
    return small


def tuned() -> Tuning:
    """A tuning that has learnt a little."""
    net = digits()
    tuning = hope.deft.prepare(net, hope.deft.partition(net, EXAMPLE), head=4)
    generator = torch.Generator().manual_seed(0)
    free = [parameter for parameter in tuning.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(free, lr=0.05)
    for _ in range(3):
        x, y = torch.randn(16, 1, 8, 8, generator=generator), torch.randint(4, (16,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(tuning.model.train()(x), y).backward()
        optimizer.step()
    return tuning


def main() -> None:
    torch.manual_seed(0)
    paper = hope.encode(digits(), EXAMPLE, params=0.6, method="paper")
    paper.fidelities(5)
    paper.save(OLD / "run-v3-hope", source={"model": "net.py:make"})
    absorbed = hope.encode(digits(), EXAMPLE, params=0.6, multiple_of=2)
    hope.save_finetuned(OLD / "run-v3-trained", absorbed, finetuned(absorbed))
    with faked():
        hope.encode(digits(), EXAMPLE, latency=0.6).save(OLD / "run-v3-latency")
    x = load_file(OLD / "expected.safetensors")["x"]
    folders = sorted(path for path in OLD.glob("*-v3-*") if path.is_dir())
    found = {"x": x, **{name: y for folder in folders for name, y in outputs(folder, x).items()}}
    save_file({name: y.contiguous() for name, y in found.items()}, OLD / "expected-v3.safetensors")
    SCHEMAS.mkdir(parents=True, exist_ok=True)
    for form in FORMS:
        (SCHEMAS / f"{form.schema}.json").write_text(json.dumps(json_schema(form), indent=1) + "\n")


if __name__ == "__main__":
    main()
