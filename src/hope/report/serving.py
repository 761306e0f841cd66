"""Where a compressed language model runs: which programs load it, and how."""

from __future__ import annotations

from torch import nn

from hope._util.tables import FlexibleTable, grid
from hope.errors import CannotExport
from hope.rewrite.config import configured, loadable
from hope.rewrite.experts import opened_in
from hope.rewrite.gguf_layers import FAMILIES, llama_shape

UNIFORM = "encode with uniform=True"
PAGE = "docs/transformers.md"
UNTRIED = ("not tried", f"which are: {PAGE}")
# `model_type`s of docs/transformers.md that llama.cpp's own script converts, and whether they then load
CONVERTED = {
    "mixtral": True,
    "olmo2": True,
    "phi3": True,
    "qwen3": True,
    "qwen3_moe": True,
    "gpt2": False,
    "gpt_neox": False,
}


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
    if _family(model) not in (*FAMILIES, *CONVERTED):
        table.add_row("vLLM", *UNTRIED)
    elif plain:
        table.add_row("vLLM", "most (by its source)", f"{saved}; which: {PAGE}")
    else:
        table.add_row("vLLM", "no (by its source)", f"layers differ: {UNIFORM}")
    table.add_row("onnxruntime", "one pass, no cache", "encoding.export_onnx(file)")
    return [table]


def _llama_cpp(model: nn.Module, saved: str, plain: bool) -> tuple[str, str]:
    try:
        found = llama_shape(model)
    except CannotExport:
        loads = CONVERTED.get(_family(model))
        if loads is None:
            return UNTRIED
        if not loads:
            return "no", f"why: {PAGE}"
        if not plain:
            return "no", f"layers differ: {UNIFORM}"
        return "yes", f"{saved}, convert_hf_to_gguf.py"
    return f"yes, as {found.architecture}", "hope.export_gguf(encoding, file)"


def _family(model: nn.Module) -> str:
    return str(getattr(model.config, "model_type", ""))
