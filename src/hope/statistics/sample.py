"""Texts sampled from a language model itself: synthetic inputs where inputs are tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.progress import bar

BATCH = 32


def token_input(model: nn.Module, values: Mapping[str, Any]) -> str | None:
    """The name of the input that a model can write itself: tokens, of a model that generates them."""
    generates = getattr(model, "can_generate", None)
    ids = values.get("input_ids")
    if not callable(generates) or not generates() or not isinstance(ids, Tensor) or ids.ndim != 2:
        return None
    decoder = not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return "input_ids" if decoder and not ids.is_floating_point() else None


@torch.no_grad()
def sampled(
    model: nn.Module, count: int, length: int, seed: int = 0, *, progress: bool | None = False
) -> Tensor:
    """So many texts of so many tokens, each drawn as the model itself would go on, from its start token.

    Where it has no start token, every text starts with a token by chance.
    """
    config: Any = model.config
    words, start = int(config.vocab_size), config.bos_token_id
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, words, (count, 1), generator=generator)
    if start is not None and start < words:
        first = torch.full_like(first, int(start))
    device = next(model.parameters()).device
    was, parts = model.training, []
    generate: Any = model.generate
    how: dict[str, Any] = dict.fromkeys(("min_new_tokens", "max_new_tokens"), length - 1)
    how |= {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}
    model.eval()
    with torch.random.fork_rng(devices=[]), bar("sampling text", count, progress) as show:
        torch.manual_seed(seed)
        for some in torch.split(first.to(device), BATCH):
            text = (
                some if length < 2 else generate(input_ids=some, attention_mask=torch.ones_like(some), **how)
            )
            parts.append(text)
            show(sum(map(len, parts)))
    model.train(was)
    return torch.cat(parts)
