"""Check texts for a language model before it runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hope._util.calls import Example, as_call, by_name, configs
from hope.errors import InvalidExample


def check_tokens(model: nn.Module, example: Example | None, what: str = "the example") -> None:
    """Refuse tokens outside the vocabulary of a transformers model, and texts that are too long: some models
    run on them and return meaningless numbers.
    """
    every = [one for one in configs(getattr(model, "config", None)) if one is not None]
    for ids in _tokens(example):
        known, longest = (_most(every, name) for name in ("vocab_size", "max_position_embeddings"))
        if longest and ids.shape[-1] > longest:
            raise InvalidExample(
                f"{what} must have at most {longest:,} tokens per text, got {ids.shape[-1]:,}: shorten the "
                "texts (truncation=True, max_length=… for a tokenizer)"
            )
        if known and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < known:
            raise InvalidExample(
                f"{what} must have tokens from 0 to {known - 1}, got {int(ids.min())} to {int(ids.max())}: "
                "use the model's own tokenizer"
            )


def unmasked(model: nn.Module, example: Example | None) -> str:
    """A note about padding without an attention mask; "" if there is none."""
    config = getattr(model, "config", None)
    padding, end = (getattr(config, name, None) for name in ("pad_token_id", "eos_token_id"))
    if not isinstance(padding, int) or padding == end or "attention_mask" in by_name(model, example):
        return ""
    count = sum(int((ids == padding).sum()) for ids in _tokens(example))
    words = f"{count:,} tokens are padding and there is no attention_mask: they are read like a text"
    return f"{words}; give all that the tokenizer returns" if count else ""


def _tokens(example: Example | None) -> list[Tensor]:
    """The token ids among the inputs."""
    args, kwargs = as_call(example)
    named = [value for name, value in kwargs.items() if name.endswith("input_ids")]
    return [one for one in (*args[:1], *named) if isinstance(one, Tensor) and _whole(one) and one.ndim == 2]


def _whole(ids: Tensor) -> bool:
    return not ids.is_floating_point() and not ids.is_complex()


def _most(every: list[Any], name: str) -> int:
    """The largest such value in a configuration, or in one inside it; 0 for none."""
    found = [getattr(config, name, None) for config in every]
    return max((value for value in found if isinstance(value, int) and value > 0), default=0)
