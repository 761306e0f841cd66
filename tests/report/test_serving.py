"""The answer to "where can I serve this?" fits what came out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hope
from hope._util.tables import text
from hope.report.serving import serving_table

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXAMPLE = {"input_ids": torch.randint(2, 64, (2, 8), generator=torch.Generator().manual_seed(0))}


def build(name: str, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more})
    model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    return model


def rows(model: nn.Module) -> dict[str, tuple[str, str]]:
    """Program -> whether it loads the network, and how."""
    (table,) = serving_table(model)
    cells = zip(*(column.cells for column in table.columns), strict=True)
    return {str(name): (str(loads), str(how)) for name, loads, how in cells}


WHISPER: dict[str, Any] = {
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
    "max_target_positions": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
T5: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
}


def whisper() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(**WHISPER)
    model: nn.Module = transformers.WhisperForConditionalGeneration(config).eval()
    return model


def uneven(model: nn.Module) -> nn.Module:
    return hope.cut(model, hope.inspect(model, EXAMPLE), [hope.Prune("model.layers.0.mlp.gate_proj", [1])])


def test_one_width_goes_everywhere() -> None:
    found = rows(build("Llama"))
    assert found["transformers"] == ("yes", "encoding.model.save_pretrained(folder), from_pretrained")
    assert found["llama.cpp"] == ("yes, as llama", "hope.export_gguf(encoding, file)")
    assert found["vLLM"][0] == "most (by its source)"


def test_rounded_weights_are_written_packed() -> None:
    encoding = hope.encode(build("Llama"), EXAMPLE, bits=8, calibration=[EXAMPLE])
    assert "hope.save_pretrained(encoding, folder), from_pretrained" in str(encoding)
    assert "encoding.model.save_pretrained(folder), from_pretrained" not in str(encoding)


def test_layers_that_differ_go_to_llama_cpp_if_the_family_does() -> None:
    found = rows(uneven(build("Llama")))
    assert found["llama.cpp"][0] == "yes, as deci"
    assert found["transformers"][0] == "with HOPE"
    assert found["vLLM"] == ("no (by its source)", "layers differ: encode with uniform=True")
    assert rows(uneven(build("Qwen3", head_dim=8)))["llama.cpp"][0] == "no"


def test_families_that_llama_cpp_was_not_tried_with_are_not_promised() -> None:
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    gpt2 = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, **ends)
    assert rows(transformers.GPT2LMHeadModel(gpt2))["llama.cpp"] == ("no", "why: docs/transformers.md")
    assert rows(build("Qwen3", head_dim=8))["llama.cpp"][0] == "yes"
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))
    config = transformers.BertConfig(**SIZES, is_decoder=True)
    for model in (t5, whisper(), transformers.BertLMHeadModel(config)):
        found = rows(model)
        assert found["transformers"][0] == "yes"
        assert found["llama.cpp"] == found["vLLM"] == ("not tried", "which are: docs/transformers.md")


def test_an_uneven_whisper_is_not_sent_to_llama_cpp_by_uniform() -> None:
    model = whisper()
    example = {"input_features": torch.randn(1, 8, 32), "decoder_input_ids": torch.tensor([[1, 5, 7]])}
    anatomy = hope.inspect(model, example)
    found = rows(hope.cut(model, anatomy, [hope.Prune("model.decoder.layers.0.fc1", [1])]))
    assert found["transformers"][0] == "with HOPE"
    assert found["llama.cpp"] == found["vLLM"] == ("not tried", "which are: docs/transformers.md")


def test_experts_are_stacked_first() -> None:
    opened = hope.unstack_experts(build("Mixtral", num_local_experts=4))
    assert rows(opened)["transformers"][1].startswith("hope.stack_experts(encoding.model).save_pretrained")


def test_other_networks_have_no_such_table() -> None:
    assert serving_table(nn.Linear(2, 2)) == []
    encoder = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    assert serving_table(encoder) == []


def test_a_printed_run_ends_with_it() -> None:
    encoding = hope.encode(build("Llama"), EXAMPLE, params=0.9, method="l1-in", progress=False)
    (table,) = serving_table(encoding.model)
    assert text(table) in str(encoding)
    assert "export_gguf" in encoding._repr_html_()


def test_transformers_takes_widths_per_layer_in_configurations_but_builds_no_llama_of_them() -> None:
    """If this fails, transformers has learnt it: `save_pretrained` can then write uneven widths."""
    config = transformers.LlamaConfig(**SIZES, per_layer_config={1: {"intermediate_size": 40}})
    assert config.to_dict()["per_layer_config"] == {"1": {"intermediate_size": 40}}
    with pytest.raises(RuntimeError, match="per-layer attribute"):
        transformers.LlamaForCausalLM(config)
    skipping = transformers.LlamaConfig(**SIZES, per_layer_config={1: {"skip": ["mlp"]}})
    mlp = transformers.LlamaForCausalLM(skipping).model.layers[1].mlp
    assert mlp.gate_proj.weight.shape == (48, 32)  # it is not skipped
