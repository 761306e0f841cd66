"""Inputs that are tokens: made up by chance, or said by the model itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hope
from hope._util.operators import declare_missing_operators

declare_missing_operators()
transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture
def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, bos_token_id=7, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_a_language_model_dreams_texts_from_its_start_token(llama: Any) -> None:
    example = {"input_ids": torch.zeros(1, 9, dtype=torch.long), "attention_mask": torch.ones(1, 9)}
    batches = hope.dream(llama, example, count=40)
    assert [len(batch["input_ids"]) for batch in batches] == [32, 8]
    texts = torch.cat([batch["input_ids"] for batch in batches])
    assert texts.shape == (40, 9)
    assert bool((texts[:, 0] == 7).all())
    assert len(texts[:, 1:].unique()) > 20
    assert bool((batches[0]["attention_mask"] == 1).all())
    again = hope.dream(llama, example, count=40)
    assert torch.equal(batches[1]["input_ids"], again[1]["input_ids"])


def test_what_is_likely_is_said_more_often(llama: Any) -> None:
    with torch.no_grad():
        llama.model.norm.weight.zero_()
        llama.lm_head.bias = nn.Parameter(torch.zeros(50).index_fill_(0, torch.tensor(5), 9.0))
    (batch,) = hope.dream(llama, {"input_ids": torch.zeros(1, 9, dtype=torch.long)}, count=32)
    assert float((batch["input_ids"][:, 1:] == 5).float().mean()) > 0.95


def test_tokens_by_chance_use_the_whole_vocabulary_and_masks_stay() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(30, 4), nn.Linear(4, 2)

        def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.out(self.table(tokens) * mask[..., None])

    example = {"tokens": torch.tensor([[1, 2, 1]]), "mask": torch.ones(1, 3, dtype=torch.long)}
    for given in (example, tuple(example.values())):
        (batch,) = hope.dream(Net(), given, count=32, steps=0)
        tokens, mask = (batch["tokens"], batch["mask"]) if isinstance(batch, dict) else batch
        assert int(tokens.max()) > 20
        assert bool((mask == 1).all())


def test_a_language_model_is_compressed_without_data(llama: Any) -> None:
    example = {"input_ids": torch.randint(0, 50, (1, 12))}
    encoding = hope.encode(llama, example, params=0.9, method=hope.Absorb(calibration="dream"), evict=False)
    assert encoding.size.parameters <= 0.9 * sum(p.numel() for p in llama.parameters())
    assert not any("noise" in note for note in encoding.notes)
    with pytest.raises(hope.InfeasibleBudget, match="calibration"):
        hope.encode(llama, example, params=0.9, evict=False)


def test_models_of_tokens_are_not_fitted_unless_asked(llama: Any) -> None:
    batches = [{"input_ids": torch.randint(0, 50, (8, 12))} for _ in range(4)]
    for refit in (None, True):
        method = hope.Absorb(calibration=batches, refit=refit)
        found = hope.encode(llama, batches[0], params=0.9, method=method, evict=False)
        assert found.method.rewrite.refit == bool(refit)
        assert len(found.inputs) == 4  # to heal on, and to measure ranges
