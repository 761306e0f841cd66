"""Language models on the command line: an example of tokens, and texts to calibrate on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hope.errors import InvalidExample, first_line

if TYPE_CHECKING:
    from torch import Tensor, nn

TOKENS = "1x128"
AS_DATA: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}  # no code, no question
WINDOWS = 256  # texts that are taken from a file, at most


def from_pretrained(kind: Any, name: str, **how: Any) -> Any:
    """What a class of transformers loads from a folder; "org/name" also from the local cache or the hub."""
    try:
        return kind.from_pretrained(name, **AS_DATA, **how)
    except OSError:
        if Path(name).is_dir() or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            raise
        return kind.from_pretrained(name, **{**AS_DATA, "local_files_only": False}, **how)


def reads_tokens(model: nn.Module) -> bool:
    """Whether a model of transformers takes tokens."""
    return getattr(model, "main_input_name", "") == "input_ids"


def usual(model: Any, shape: str) -> str:
    """The default input of a transformers model: texts no longer than it can read, images of
    its own size, and otherwise this shape.
    """
    config = getattr(model, "config", None)
    if reads_tokens(model):
        longest = getattr(config, "max_position_embeddings", None)
        texts, _, length = TOKENS.partition("x")
        return f"{texts}x{min(int(length), longest)}" if isinstance(longest, int) and longest > 0 else TOKENS
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
    sides = size if isinstance(size, (list, tuple)) else (size, size)
    known = isinstance(channels, int) and len(sides) == 2 and all(isinstance(side, int) for side in sides)
    return "x".join(map(str, (1, channels, *sides))) if known else shape


def tokens(model: Any, sizes: list[int], shape: str) -> dict[str, Tensor]:
    """An example of tokens by chance."""
    import torch

    if len(sizes) != 2:
        raise InvalidExample(f"--input must be texts x tokens, got {shape}: write it like {TOKENS}")
    words = int(model.config.vocab_size)
    ids = torch.randint(0, words, sizes, generator=torch.Generator().manual_seed(0))
    found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return {**found, "decoder_input_ids": ids} if model.config.is_encoder_decoder else found


def windows(file: str, folder: str, example: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """A text file as batches of as many tokens in a row as the example has, by the tokenizer of
    the model. One that reads two texts is given the same twice.
    """
    import torch
    from transformers import AutoTokenizer

    try:
        text = Path(file).read_text(encoding="utf-8")
        tokenizer = from_pretrained(AutoTokenizer, folder)
    except (OSError, ValueError) as error:
        raise InvalidExample(
            f"--calibration {file} cannot be read by the tokenizer of {folder} ({first_line(error)}): give a "
            'text file and a folder with a tokenizer, or "dream"'
        ) from error
    length = int(example["input_ids"].shape[1])
    ids = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    count = min(WINDOWS, len(ids) // length)
    if count < 1:
        raise InvalidExample(
            f"--calibration {file} must have at least {length} tokens, as one text of --input has, got "
            f"{len(ids)}: give more text"
        )
    rows = ids[: count * length].reshape(count, length)
    parts = torch.split(rows, 8)
    return [
        {name: torch.ones_like(some) if name.endswith("mask") else some for name in example} for some in parts
    ]
