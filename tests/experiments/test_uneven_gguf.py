"""What llama.cpp computes of layers that differ: the committed figures, and again where llama.cpp is."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments import uneven_gguf
from experiments.gguf import RESULTS
from hope.report.serving import CONVERTED
from hope.rewrite.gguf_layers import FAMILIES

PYTHON = os.environ.get("HOPE_XLLAMACPP", sys.executable)  # one that has xllamacpp
COMMITTED: dict[str, Any] = json.loads(RESULTS.read_text())


@pytest.mark.parametrize("family", COMMITTED["uneven"])
def test_llama_cpp_computed_what_we_do(family: str) -> None:
    found = COMMITTED["uneven"][family]
    assert [found[kind]["architecture"] for kind in uneven_gguf.KINDS] == ["llama", "deci", "deci", "deci"]
    assert max(found[kind]["apart"] for kind in uneven_gguf.KINDS) < uneven_gguf.CLOSE


@pytest.mark.parametrize("family", COMMITTED["families"])
def test_the_serving_table_says_of_llama_cpp_what_was_measured(family: str) -> None:
    """A family whose every model gave the same logits is loaded, one of which a model did not load is not."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    kind = getattr(transformers, f"{family}Config").model_type
    tried = COMMITTED["families"][family].values()
    if kind not in FAMILIES:
        assert CONVERTED[kind] == all("apart" in one or "stays" in one for one in tried)


def test_matrices_in_blocks_are_as_near_as_eight_bits_allow() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    found = uneven_gguf.rounded(model)
    assert list(found) == ["0.weight"]  # 8 inputs are no block of 32
    grid, weight = found["0.weight"], model[0].weight.detach()
    assert grid.scale.shape == (8, 2)
    spread = grid.scale.repeat_interleave(32, dim=1)
    assert bool(((grid.whole * spread - weight).abs() <= 0.51 * spread).all())
    assert int(grid.whole.abs().max()) == 127


@pytest.mark.skipif(
    "HOPE_XLLAMACPP" not in os.environ and find_spec("xllamacpp") is None, reason="xllamacpp is not installed"
)
@pytest.mark.parametrize("kind", uneven_gguf.KINDS[:3])
def test_llama_cpp_computes_what_we_do(kind: str, data_folder: Path) -> None:
    tokenizer = Path(os.environ.get("HOPE_TOKENIZER", data_folder / "smollm2-135m"))
    if not (tokenizer / "tokenizer.json").is_file():
        pytest.skip(f"there is no tokenizer in {tokenizer.name}: set HOPE_TOKENIZER to a model's folder")
    torch.manual_seed(0)
    found = uneven_gguf.tried("Llama with biases", kind, tokenizer, PYTHON)
    assert found["apart"] < uneven_gguf.CLOSE
