"""Where a compressed language model runs: which programs load it, and how."""

from __future__ import annotations

from torch import nn

from hope._util.tables import FlexibleTable, grid
from hope.errors import CannotExport
from hope.rewrite.config import configured, loadable
from hope.rewrite.experts import opened_in
from hope.rewrite.gguf_layers import llama_shape

UNIFORM = "encode with uniform=True"


def serving_table(model: nn.Module, *, rounded: bool = False) -> list[FlexibleTable]:
    """A row per program; nothing for a network that is no language model of transformers.

    Args:
        model: compressed.
        rounded: whether weights are, and can be packed.
    """
    if not configured(model) or not getattr(model, "can_generate", bool)():
        return []
    plain = loadable(model)
    table = grid("Where to serve it", " program", " loads it", " how")
    stacked = "hope.stack_experts(encoding.model)" if opened_in(model) else "encoding.model"
    saved = f"{stacked}.save_pretrained(folder)"
    if plain and rounded:
        table.add_row(
            "transformers", "yes, packed", "hope.save_pretrained(encoding, folder), from_pretrained"
        )
    elif plain:
        table.add_row("transformers", "yes", f"{saved}, from_pretrained")
    else:
        table.add_row("transformers", "with HOPE", f"encoding.save, hope.load; without HOPE: {UNIFORM}")
    table.add_row("llama.cpp", *_llama_cpp(model, saved, plain))
    if plain:
        table.add_row("vLLM", "most (by its source)", f"{saved}; which: docs/transformers.md")
    else:
        table.add_row("vLLM", "no (by its source)", f"layers differ: {UNIFORM}")
    table.add_row("onnxruntime", "one pass, no cache", "encoding.export_onnx(file)")
    return [table]


def _llama_cpp(model: nn.Module, saved: str, plain: bool) -> tuple[str, str]:
    try:
        found = llama_shape(model)
    except CannotExport:
        if plain:
            return "most", f"{saved}, convert_hf_to_gguf.py; which: docs/transformers.md"
        return "no", f"layers differ: {UNIFORM}"
    return f"yes, as {found.architecture}", "hope.export_gguf(encoding, file)"
