"""Whisper after a cut: it writes texts as before, with its cache and without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from tests.support import masked, random_cut

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_mel_bins": 8,
    "max_source_positions": 16,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "begin_suppress_tokens": None,
    "tie_word_embeddings": False,  # else it repeats what it said
}


def whisper() -> nn.Module:
    torch.manual_seed(0)
    model: Any = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SIZES)).eval()
    for name, parameter in model.named_parameters():  # so that the sound has a say
        if parameter.ndim == 2 and "embed" not in name:
            parameter.data *= 100 if "encoder_attn" in name else 8
    made: nn.Module = model
    return made


def spoken(count: int = 2, seed: int = 0) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return {
        "input_features": torch.randn(count, 8, 32, generator=chance),
        "decoder_input_ids": torch.randint(3, 64, (count, 6), generator=chance),
    }


def written(model: Any, *, use_cache: bool) -> list[list[int]]:
    given = {"max_new_tokens": 12, "do_sample": False, "num_beams": 1}
    found: Tensor = model.generate(spoken(4, 9)["input_features"], **given, use_cache=use_cache)
    return found.tolist()


def encode(uniform: bool) -> tuple[nn.Module, hope.Encoding]:
    model = whisper()
    method = hope.Absorb(calibration=[spoken(8, seed) for seed in range(1, 5)])
    return model, hope.encode(model, spoken(), params=0.85, uniform=uniform, method=method, progress=False)


@pytest.mark.parametrize("uniform", [False, True])
def test_the_smaller_one_generates_the_same_with_and_without_a_cache(uniform: bool) -> None:
    _, encoding = encode(uniform)
    texts = written(encoding.model, use_cache=True)
    assert texts == written(encoding.model, use_cache=False)
    assert len({tuple(text) for text in texts}) > 1  # they depend on the sound


def test_without_neurons_and_heads_it_says_what_the_silenced_original_says() -> None:
    model = whisper()
    anatomy = hope.inspect(model, spoken())
    assert {name.split(".")[1] for name in (layer.name for layer in anatomy.layers)} == {"encoder", "decoder"}
    actions = random_cut(anatomy)
    texts = written(hope.cut(model, anatomy, actions), use_cache=True)
    assert texts == written(masked(model, anatomy, actions), use_cache=True)
    assert texts != written(model, use_cache=True)
