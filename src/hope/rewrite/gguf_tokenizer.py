"""The tokenizer in a GGUF file: read from a folder of transformers, or copied from another GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hope.errors import CannotExport, first_line

FILE = "tokenizer.json"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SPLITS = {  # how a text is split before pairs are merged -> llama.cpp's name of it
    ("ByteLevel",): "gpt-2",
    ("Digits", "ByteLevel"): "smollm",
    (LLAMA3, "ByteLevel"): "llama-bpe",
    (LLAMA3.replace("{1,3}", ""), "ByteLevel"): "qwen2",
}
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # types of tokens
COPY = "give tokenizer= a GGUF file of the original (--tokenizer), whose tokenizer is copied"


def add_tokenizer(writer: Any, source: Path | None, rows: int) -> None:
    """Write the tokenizer.

    Args:
        writer: of the gguf package.
        source: a folder with `tokenizer.json`, or a GGUF file; None for no tokenizer.
        rows: of the embedding: as many tokens are written.
    """
    if source is None:
        writer.add_tokenizer_model("no_vocab")
    elif source.is_file():
        _copy(writer, source)
    else:
        _from_folder(writer, source, rows)


def _from_folder(writer: Any, folder: Path, rows: int) -> None:
    from gguf import SpecialVocab

    try:
        read = json.loads((folder / FILE).read_text(encoding="utf-8"))
        model, added = read["model"], {one["id"]: one for one in read.get("added_tokens", [])}
        tokens = {number: text for text, number in model["vocab"].items()}
        kind, fallback = model.get("type"), model.get("byte_fallback", False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotExport(f"{folder / FILE} cannot be read ({first_line(error)}): {COPY}") from error
    split = SPLITS.get(_split(read.get("pre_tokenizer") or {}))
    if kind != "BPE" or fallback or split is None or read.get("normalizer") not in (None, {"type": "NFC"}):
        raise CannotExport(
            f"the tokenizer must be a byte-level BPE of the kind of GPT-2, SmolLM, Llama 3 or Qwen2, got "
            f"{kind} of another kind in {folder / FILE}: {COPY}"
        )
    tokens |= {number: one["content"] for number, one in added.items()}
    if tokens and max(tokens) >= rows:
        raise CannotExport(
            f"the tokenizer must have at most {rows} tokens, as the embedding has, got {max(tokens) + 1} in "
            f"{folder / FILE}: give the model's own"
        )
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list([tokens.get(number, f"[PAD{number}]") for number in range(rows)])
    writer.add_token_types([_type(number, tokens, added) for number in range(rows)])
    SpecialVocab(folder, load_merges=True, n_vocab=rows).add_to_gguf(writer, quiet=True)


def _type(number: int, tokens: dict[int, str], added: dict[int, Any]) -> int:
    if number in added:
        return CONTROL if added[number].get("special") else USER_DEFINED
    return NORMAL if number in tokens else UNUSED


def _split(found: dict[str, Any]) -> tuple[str, ...]:
    """What splits a text: names, or the pattern."""
    parts = found.get("pretokenizers", [found])
    return tuple(
        str(one.get("pattern", {}).get("Regex", "")) if one.get("type") == "Split" else str(one.get("type"))
        for one in parts
    )


def _copy(writer: Any, file: Path) -> None:
    """All that another file says of its tokenizer."""
    from gguf import GGUFReader, GGUFValueType

    try:
        fields = GGUFReader(file).fields
    except Exception as error:  # whatever the reader says of other files
        raise CannotExport(
            f"{file} must be a GGUF file, or a folder with {FILE}, got something else: give the "
            f"original's GGUF file ({first_line(error)})"
        ) from error
    for name, one in fields.items():
        if name.startswith("tokenizer."):
            array = one.types[0] == GGUFValueType.ARRAY
            writer.add_key_value(name, one.contents(), one.types[0], one.types[-1] if array else None)
