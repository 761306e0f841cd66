"""GGUF files: what llama.cpp computes of them is what the model computes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.cli.main import main
from hope.errors import CannotExport

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
gguf = pytest.importorskip("gguf", reason="gguf is not installed")

from tests.rewrite.llama_cpp import LlamaCpp  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "wide heads": ("Llama", {"head_dim": 8}),
    "llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "mistral": ("Mistral", {}),
    "qwen2": ("Qwen2", {}),
}
IDS = torch.randint(2, 64, (40, 16), generator=torch.Generator().manual_seed(0))


def build(kind: str = "llama", **more: Any) -> nn.Module:
    name, given = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **given, **more})
    model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():  # biases and norms that tell channels apart
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
        elif "layers" in name:
            parameter.data *= 8  # so that attention has a say
    return model


@lru_cache
def anatomy(kind: str) -> hope.Anatomy:
    return hope.inspect(build(kind), {"input_ids": IDS[:2]})


def cut(kind: str, steps: Sequence[Any]) -> nn.Module:
    return hope.cut(build(kind), anatomy(kind), steps)


def constant(seed: int) -> list[float]:
    return torch.randn(32, generator=torch.Generator().manual_seed(seed)).tolist()


def check(model: nn.Module, path: Path, tolerance: float = 1e-4) -> LlamaCpp:
    """The file computes what the model computes."""
    hope.export_gguf(model, path)
    file = LlamaCpp(path)
    with torch.no_grad():
        wanted: Tensor = model(input_ids=IDS[:1]).logits[0].float()
    assert (file(IDS[0]) - wanted).abs().max() < tolerance * wanted.abs().max()
    return file


UNEVEN = (
    hope.Prune("model.layers.0.self_attn.q_proj", [1]),
    hope.Prune("model.layers.1.mlp.gate_proj", range(5)),
    hope.Prune("model.layers.3.mlp.gate_proj", range(9)),
)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_any_width_compute_the_same(kind: str, tmp_path: Path) -> None:
    file = check(cut(kind, UNEVEN), tmp_path / "small.gguf")
    assert file.architecture == "deci"
    assert file.per_layer("feed_forward_length") == [48, 43, 48, 39]
    assert file.per_layer("attention.head_count") == [6, 8, 8, 8]
    assert file.per_layer("attention.head_count_kv") == [3, 4, 4, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_one_width_are_written_for_plain_llama(kind: str, tmp_path: Path) -> None:
    assert check(build(kind), tmp_path / "small.gguf").architecture == "llama"


@pytest.mark.parametrize(
    "evicted",
    [["0#1"], ["0#2"], ["0#1", "0#2"], ["2#1"], ["2#2"], ["2#1", "2#2"], ["3#1"], ["3#2"], ["3#1", "3#2"],
     ["0#1", "0#2", "1#1", "1#2"], ["0#2", "1#1", "2#1", "3#2"], ["1#1", "1#2", "2#1", "2#2", "3#1", "3#2"]],
)  # fmt: skip
@pytest.mark.parametrize("left", ["constants", "nothing"])
def test_evicted_branches_compute_the_same(evicted: list[str], left: str, tmp_path: Path) -> None:
    steps = [
        hope.Evict(f"model.layers.{name}", constant(seed) if left == "constants" else None)
        for seed, name in enumerate(evicted)
    ]
    check(cut("biases", steps), tmp_path / "small.gguf")


def test_layers_that_are_evicted_as_a_whole_are_not_in_the_file(tmp_path: Path) -> None:
    steps = [hope.Evict(f"model.layers.2#{branch}", constant(branch)) for branch in (1, 2)]
    file = check(cut("llama", steps), tmp_path / "small.gguf")
    assert file.number("block_count") == 3
    assert file.tensors["blk.1.ffn_down.bias"].allclose(sum(torch.tensor(constant(one)) for one in (1, 2)))


def test_attention_that_is_evicted_costs_nothing(tmp_path: Path) -> None:
    file = check(cut("llama", [hope.Evict("model.layers.2#1", constant(0))]), tmp_path / "small.gguf")
    assert file.per_layer("attention.head_count") == [8, 8, 0, 8]
    assert not [name for name in file.tensors if name.startswith("blk.2.attn")]


def test_an_encoding_computes_the_same(tmp_path: Path) -> None:
    model = build()
    method = hope.Absorb(calibration=[{"input_ids": IDS}], sensitivity=False)
    encoding = hope.encode(model, {"input_ids": IDS[:2]}, params=0.5, method=method, progress=False)
    hope.export_gguf(encoding, tmp_path / "small.gguf")
    check(encoding.model, tmp_path / "again.gguf")
    assert (tmp_path / "small.gguf").read_bytes() == (tmp_path / "again.gguf").read_bytes()


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float16, "F16"), (torch.bfloat16, "BF16")])
def test_weights_keep_their_type_and_norms_are_single(dtype: torch.dtype, kind: str, tmp_path: Path) -> None:
    file = check(build().to(dtype), tmp_path / "small.gguf", 0.1)
    assert file.kinds["blk.0.ffn_up.weight"] == file.kinds["token_embd.weight"] == kind
    assert file.kinds["blk.0.ffn_norm.weight"] == "F32"


def test_pruned_streams_compute_the_same(tmp_path: Path) -> None:
    model = build()
    anatomy = hope.inspect(model, {"input_ids": IDS[:2]}, streams=True)
    small = hope.cut(model, anatomy, [hope.Prune(anatomy.streams[0].name, [3, 4])])
    assert check(small, tmp_path / "small.gguf").number("embedding_length") == 30


@pytest.mark.parametrize(("bits", "group", "kind"), [(8, 0, "Q8_0"), (4, 0, "Q4_0"), (4, 32, "Q4_0")])
def test_rounded_weights_are_packed_to_the_bit(bits: int, group: int, kind: str, tmp_path: Path) -> None:
    model = build(intermediate_size=64)
    method = hope.Absorb(calibration=[{"input_ids": IDS}], sensitivity=False, refit=False)
    options: dict[str, Any] = {"group": group} if group else {}
    encoding = hope.encode(model, {"input_ids": IDS[:2]}, bits=bits, method=method, progress=False, **options)
    assert hope.export_gguf(encoding, tmp_path / "small.gguf").architecture == "llama"
    file = LlamaCpp(tmp_path / "small.gguf")
    kept = encoding.model.state_dict()
    for ours, theirs in (("mlp.down_proj", "ffn_down"), ("self_attn.v_proj", "attn_v")):
        assert file.kinds[f"blk.1.{theirs}.weight"] == kind
        assert torch.equal(file.tensors[f"blk.1.{theirs}.weight"], kept[f"model.layers.1.{ours}.weight"])
    with torch.no_grad():
        wanted = encoding.model(input_ids=IDS[:1]).logits[0]
    assert (file(IDS[0]) - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        (
            "Qwen3",
            {"head_dim": 8},
            r"llama, mistral, qwen2, got Qwen3ForCausalLM \(qwen3\): use uniform=True",
        ),
        ("Llama", {"hidden_act": "gelu"}, "must have silu, got gelu"),
        ("Qwen2", {"use_sliding_window": True}, "must see all tokens"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
    ],
)
def test_what_llama_cpp_cannot_express_is_refused(
    name: str, more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more})
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with pytest.raises(CannotExport, match=words):
        hope.export_gguf(model, tmp_path / "small.gguf")
    assert not [*tmp_path.iterdir()]


def test_other_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotExport, match="got Linear"):
        hope.export_gguf(nn.Linear(2, 2), tmp_path / "small.gguf")


def tokenizer(folder: Path, **more: Any) -> Path:
    """A byte-level BPE of 20 tokens."""
    folder.mkdir()
    letters = {letter: number for number, letter in enumerate("abcdefghijklmnop")}
    special = {"id": 18, "content": "<end>", "special": True, "single_word": False}
    made = {
        "added_tokens": [special, {**special, "id": 19, "content": "<mine>", "special": False}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "model": {"type": "BPE", "vocab": {**letters, "ab": 16, "abc": 17}, "merges": ["a b", "ab c"]},
    }
    (folder / "tokenizer.json").write_text(json.dumps({**made, **more}))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    return folder


def test_a_tokenizer_is_written_and_copied(tmp_path: Path) -> None:
    model, folder = build(), tokenizer(tmp_path / "model")
    hope.export_gguf(model, tmp_path / "one.gguf", tokenizer=folder)
    hope.export_gguf(model, tmp_path / "two.gguf", tokenizer=tmp_path / "one.gguf")
    one, two = (LlamaCpp(tmp_path / name).fields for name in ("one.gguf", "two.gguf"))
    found = {name: value for name, value in one.items() if name.startswith("tokenizer")}
    assert found == {name: value for name, value in two.items() if name.startswith("tokenizer")}
    assert (found["tokenizer.ggml.model"], found["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert found["tokenizer.ggml.tokens"][16:21] == ["ab", "abc", "<end>", "<mine>", "[PAD20]"]
    assert found["tokenizer.ggml.token_type"][16:21] == [1, 1, 3, 4, 5]
    assert found["tokenizer.ggml.merges"] == ["a b", "ab c"]
    assert found["tokenizer.ggml.eos_token_id"] == 18


def test_without_a_tokenizer_there_are_only_numbers_of_tokens(tmp_path: Path) -> None:
    written = hope.export_gguf(build(), tmp_path / "small.gguf")
    assert "it has no tokenizer" in str(written)
    file = LlamaCpp(written.path)
    assert (file.fields["tokenizer.ggml.model"], file.number("vocab_size")) == ("no_vocab", 64)


@pytest.mark.parametrize(
    "more", [{"pre_tokenizer": {"type": "Whitespace"}}, {"model": {"type": "Unigram", "vocab": {}}}]
)
def test_unknown_tokenizers_are_refused(more: dict[str, Any], tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "model", **more)
    with pytest.raises(CannotExport, match="give tokenizer= a GGUF file of the original"):
        hope.export_gguf(build(), tmp_path / "small.gguf", tokenizer=folder)
    assert not (tmp_path / "small.gguf").exists()


def test_commands_write_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(num_hidden_layers=2).save_pretrained(tmp_path / "model")  # type: ignore[operator]
    tokenizer(tmp_path / "other").joinpath("tokenizer.json").rename(tmp_path / "model" / "tokenizer.json")
    run, one, two = (str(tmp_path / name) for name in ("run", "one.gguf", "two.gguf"))
    given = ["--method", "l1-in", "--params", "0.8", "--input", "1x16", "--out", run, "--gguf", one]
    assert main(["encode", f"hf:{tmp_path / 'model'}", *given]) == 0
    assert f"{one}: for llama.cpp (deci, 2 layers)\n" in capsys.readouterr().out
    assert main(["extract", run, "--gguf", two]) == 0
    assert Path(one).read_bytes() == Path(two).read_bytes()
    assert not (tmp_path / "run" / "small.safetensors").exists()


def test_commands_refuse_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--params", "0.8", "--out", str(tmp_path / "run"), "--gguf", str(tmp_path / "small.gguf")]
    assert main(["encode", "torchvision:squeezenet1_1", *given]) == 2
    assert "the model must be a causal language model" in capsys.readouterr().err
    assert not (tmp_path / "run" / "trajectory.json").exists()
