"""Models, texts, and what they are measured by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.language.parts import config_of
from hope._util.operators import declare_missing_operators
from hope.errors import HopeError

WINDOW = 128  # tokens of a calibration window
SHORT = 16  # of a short one: models of sentences read texts about as long
TEST = 512  # of a window that perplexity is measured on
WINDOWS = 16  # that it is measured on
BATCH = 8  # windows of a batch
SEED = 0


class MissingModel(HopeError):
    """There is no such checkpoint."""


def loaded(name: str, folder: Path) -> tuple[nn.Module, Any]:
    """A model of transformers and its tokenizer."""
    declare_missing_operators()
    import transformers

    where = folder / name
    if not (where / "config.json").is_file():
        raise MissingModel(f"{where} is no checkpoint: make it with transformers_zoo.py, then give --weights")
    kind = transformers.AutoModelForCausalLM if name != "minilm-l6" else transformers.AutoModel
    model = kind.from_pretrained(where, dtype=torch.float32).eval()
    model.config.use_cache = False
    return model, transformers.AutoTokenizer.from_pretrained(where)


def tokens(tokenizer: Any, file: Path) -> Tensor:
    """Of a whole text, without special ones."""
    found = tokenizer(file.read_text(encoding="utf-8"), add_special_tokens=False, verbose=False)
    return torch.tensor(found["input_ids"])


def windows(tokenizer: Any, file: Path, count: int, length: int = WINDOW) -> list[dict[str, Tensor]]:
    """The first windows of a text, in batches; with the special tokens around them that a model expects."""
    before, after = (
        torch.tensor([] if token is None else [token], dtype=torch.long)
        for token in (tokenizer.cls_token_id, tokenizer.sep_token_id)
    )
    inner = length - len(before) - len(after)
    rows = tokens(tokenizer, file)[: count * inner].view(count, inner)
    rows = torch.cat([before.expand(count, -1), rows, after.expand(count, -1)], dim=1)
    return batched(rows)


def batched(rows: Tensor) -> list[dict[str, Tensor]]:
    """Batches as the models take them."""
    return [{"input_ids": some} for some in torch.split(rows, BATCH)]


def random_tokens(model: nn.Module, count: int) -> Tensor:
    """Any tokens at all, (count, window)."""
    chance = torch.Generator().manual_seed(SEED)
    return torch.randint(config_of(model).vocab_size, (count, WINDOW), generator=chance)


@torch.no_grad()
def own_text(model: Any, count: int, length: int = WINDOW) -> Tensor:
    """What a language model says from its start token on, at temperature 1, (count, length)."""
    chance = torch.Generator().manual_seed(SEED)
    rows = torch.full((count, 1), model.config.bos_token_id)
    known = None
    while rows.shape[1] < length:
        said = model(input_ids=rows[:, -1:], past_key_values=known, use_cache=True)
        known = said.past_key_values
        drawn = torch.multinomial(said.logits[:, -1].softmax(dim=-1), 1, generator=chance)
        rows = torch.cat([rows, drawn], dim=1)
    return rows


@torch.no_grad()
def losses(model: Any, rows: Tensor) -> list[float]:
    """−log p of the next token, in nats, on average over each window."""
    found = []
    for row in rows:
        said = model(input_ids=row[None]).logits[0, :-1]
        found.append(float(functional.cross_entropy(said.double(), row[1:])))
    return found


def test_windows(tokenizer: Any, file: Path) -> Tensor:
    """What perplexity is measured on."""
    return tokens(tokenizer, file)[: WINDOWS * TEST].view(WINDOWS, TEST)


def pairs(file: Path) -> tuple[list[float], list[tuple[str, str]]]:
    """Scores and pairs of sentences."""
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line]
    return [float(row[4]) for row in rows], [(row[5], row[6]) for row in rows]


@torch.no_grad()
def embedded(model: Any, tokenizer: Any, sentences: list[str]) -> Tensor:
    """Means over a sentence's tokens."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    found: list[Tensor] = [torch.zeros(())] * len(sentences)
    for some in _chunks(order, 64):
        batch = tokenizer([sentences[i] for i in some], padding=True, return_tensors="pt")
        mask = batch["attention_mask"][..., None]
        means = (model(**batch).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
        for index, mean in zip(some, means, strict=True):
            found[index] = mean
    return torch.stack(found)


def spearman(model: Any, tokenizer: Any, scores: list[float], sentences: list[tuple[str, str]]) -> float:
    """Of cosines with people's scores."""
    from scipy.stats import spearmanr

    left, right = (embedded(model, tokenizer, [pair[side] for pair in sentences]) for side in (0, 1))
    return float(spearmanr(functional.cosine_similarity(left, right).numpy(), scores).statistic)


def _chunks(items: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
