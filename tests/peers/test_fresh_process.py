"""A saved network comes back in a process that knows only the architecture, and nothing is traced again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

import hope
from tests.support import assert_same, random_cut, randomise, run
from zoo.foreign import Entry, zoo
from zoo.silence import together

pytestmark = pytest.mark.zoo

ROOT = Path(__file__).resolve().parents[2]
KEYS = (
    "torchvision/resnet18",
    "torchvision/mobilenet_v3_small",
    "torchvision/densenet121",
    "torchvision/shufflenet_v2_x0_5",
    "torchvision/vit_b_16",
    "torchvision/swin_t",
    "timm/regnety_002",
    "timm/convnext_atto",
    "transformers/MobileNetV2ForImageClassification",
)
CHILD = """
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)


def refuse(*args, **kwargs):
    raise AssertionError("loading traced the model again")


torch.export.export = refuse

from zoo.foreign import find
from safetensors.torch import load_file, save_file
from torch.utils import _pytree as pytree

import hope

for key in sys.argv[2:]:
    place = Path(sys.argv[1]) / key
    small = hope.load(place / "run", find(key).build(seed=1)).eval()
    inputs = load_file(place / "given.safetensors")
    with torch.no_grad():
        out = small(**inputs) if "pixel_values" in inputs else small(inputs["x"])
    leaves = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    save_file({str(i): leaf.contiguous() for i, leaf in enumerate(leaves)}, place / "returned.safetensors")
"""


def saved(entry: Entry, place: Path) -> list[Tensor]:
    """Save a network that was cut at random, and an input; what the network returns for it."""
    model, example = randomise(entry.build()), entry.example()
    anatomy = hope.inspect(model, example)
    prunings = random_cut(anatomy)
    evictions = together(anatomy, [hope.Evict(block.name) for block in anatomy.blocks[::2]], prunings)
    actions = [*evictions, *prunings]
    folder = hope.save(place / "run", model, anatomy, actions)
    save_file({"x": example} if isinstance(example, Tensor) else dict(example), place / "given.safetensors")
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    return run(hope.cut(model, anatomy, actions), example)


def test_a_fresh_process_loads_what_was_saved_without_tracing(tmp_path: Path) -> None:
    entries = [entry for entry in zoo() if entry.key in KEYS]
    assert len(entries) == len(KEYS)
    wanted = {entry.key: saved(entry, tmp_path / entry.key) for entry in entries}
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), *KEYS], cwd=ROOT, check=True)
    for key, outputs in wanted.items():
        there = load_file(tmp_path / key / "returned.safetensors")
        assert_same([there[str(i)] for i in range(len(there))], outputs, tolerance=1e-6)
