"""Texts as the inputs of healing: their tokens in a row, cut into windows of one length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hope._util.calls import Example, as_call, configs
from hope.errors import InvalidExample, UnknownMethod
from hope.healing.inputs import LEAST

Tokenizer: TypeAlias = "Callable[[str], Any]"

LENGTH = 128  # tokens of a window, without an example


def are_texts(batches: object) -> bool:
    """Whether batches are strings.

    >>> are_texts(["a text"]), are_texts([]), are_texts([[1, 2]])
    (True, False, False)
    """
    if isinstance(batches, str):
        return True
    return isinstance(batches, Sequence) and len(batches) > 0 and all(isinstance(one, str) for one in batches)


def windows(
    model: nn.Module, texts: Iterable[str], tokenizer: Tokenizer | None, example: Example | None = None
) -> list[dict[str, Tensor]]:
    """Texts as one batch of token ids, as many in a row as the example has.

    Args:
        tokenizer: text -> its token ids, or a mapping with `input_ids`, as the tokenizers of transformers.

    Raises:
        InvalidExample: there is no tokenizer, or the texts are too short.
    """
    if tokenizer is None:
        raise InvalidExample(
            "heal: batches must be token ids, got texts: pass tokenizer=, the model's AutoTokenizer, or "
            "tokenised batches"
        )
    if not callable(tokenizer):
        raise UnknownMethod(
            f"tokenizer must be a function of a text, got {type(tokenizer).__name__}: pass the model's "
            "AutoTokenizer"
        )
    given = [texts] if isinstance(texts, str) else texts
    every = torch.cat([torch.as_tensor(_ids(tokenizer(text))).flatten() for text in given]).long()
    names, length = _form(model, example)
    count = len(every) // length
    if count < 2 * LEAST:
        raise InvalidExample(
            f"heal: texts must have at least {2 * LEAST} x {length} tokens, got {len(every):,}: give more"
        )
    rows = every[: count * length].reshape(count, length)
    return [{name: torch.ones_like(rows) if name.endswith("mask") else rows for name in names}]


def _ids(found: Any) -> Any:
    return found["input_ids"] if isinstance(found, Mapping) else found


def _form(model: nn.Module, example: Example | None) -> tuple[list[str], int]:
    """What the model is called with, and the tokens of a text."""
    known = as_call(example)[1] if example is not None else {}
    if "input_ids" in known:
        return [*known], int(known["input_ids"].shape[-1])
    every = [getattr(one, "max_position_embeddings", None) for one in configs(getattr(model, "config", None))]
    return ["input_ids"], min([LENGTH, *(one for one in every if isinstance(one, int) and one > 0)])
