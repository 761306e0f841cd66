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
import torch

key, folder, given, returned = sys.argv[1:]
torch.set_num_threads(1)


def refuse(*args, **kwargs):
    raise AssertionError("loading traced the model again")


torch.export.export = refuse

from zoo.foreign import find
from safetensors.torch import load_file, save_file
from torch.utils import _pytree as pytree

import hope

entry = find(key)
small = hope.load(folder, entry.build(seed=1)).eval()
inputs = load_file(given)
with torch.no_grad():
    out = small(**inputs) if "pixel_values" in inputs else small(inputs["x"])
leaves = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
save_file({str(i): leaf.contiguous() for i, leaf in enumerate(leaves)}, returned)
"""


@pytest.mark.parametrize(
    "entry", [entry for entry in zoo() if entry.key in KEYS], ids=lambda entry: entry.key
)
def test_a_fresh_process_loads_what_was_saved_without_tracing(entry: Entry, tmp_path: Path) -> None:
    model, example = randomise(entry.build()), entry.example()
    anatomy = hope.inspect(model, example)
    prunings = random_cut(anatomy)
    evictions = together(anatomy, [hope.Evict(block.name) for block in anatomy.blocks[::2]], prunings)
    actions = [*evictions, *prunings]
    folder = hope.save(tmp_path / "run", model, anatomy, actions)
    given, returned = tmp_path / "given.safetensors", tmp_path / "returned.safetensors"
    save_file({"x": example} if isinstance(example, Tensor) else dict(example), given)
    subprocess.run(
        [sys.executable, "-c", CHILD, entry.key, str(folder), str(given), str(returned)], cwd=ROOT, check=True
    )
    small = hope.cut(model, anatomy, actions)
    there = load_file(returned)
    assert_same([there[str(i)] for i in range(len(there))], run(small, example), tolerance=1e-6)
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
