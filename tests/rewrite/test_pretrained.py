"""Folders for transformers hold rounded weights packed as compressed-tensors does, to the bit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import hope
from hope.cli.main import main
from hope.errors import CannotExport, CannotWrite
from hope.rewrite.packed_onnx import Grid
from hope.rewrite.pretrained import write_pretrained
from hope.rewrite.rounded import grids_of, read_grids

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
IDS = torch.randint(2, 64, (12, 16), generator=torch.Generator().manual_seed(0))
EXAMPLE = {"input_ids": IDS}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], torch.dtype]] = {
    "4 bits in groups": ({"bits": 4, "group": 32}, {"intermediate_size": 96}, torch.float32),
    "8 bits": ({"bits": 8}, {}, torch.float32),
    "3 bits": ({"bits": 3}, {}, torch.float32),
    "6 bits, tied": ({"bits": 6}, {"tie_word_embeddings": True}, torch.float32),
    "4 bits, bfloat16": ({"bits": 4, "group": 32}, {}, torch.bfloat16),
    "fewer neurons": ({"size": 0.26, "bits": [8, 4], "uniform": True}, {}, torch.float32),
    "mixed": ({}, {}, torch.float32),
}


def build(dtype: torch.dtype = torch.float32, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **more}))
    return model.to(dtype).eval()


@dataclass(frozen=True)
class Rounded:
    """A model with rounded weights."""

    model: nn.Module
    grids: dict[str, Grid]


@lru_cache
def encoded(case: str) -> Rounded | hope.Encoding:
    given, more, dtype = CASES[case]
    if case == "mixed":
        model = build()
        names = [f"model.layers.{k}.self_attn.{one}_proj.weight" for k in range(2) for one in "qkv"]
        steps = [
            hope.Quantise(name, *grid)
            for name, grid in zip(names, [(8, 0), (4, 32), (4, 0), (2, 32), (8, 32), (4, 32)], strict=True)
        ]
        small = hope.cut(model, hope.inspect(model, EXAMPLE), steps)
        return Rounded(small, read_grids(small, grids_of(steps)))
    return hope.encode(build(dtype, **more), EXAMPLE, calibration=[EXAMPLE], **given)


def unpacked(words: Tensor, scale: Tensor, shape: Tensor, bits: int) -> Tensor:
    """The weight of a file, from the words' bits as text."""
    rows, columns = shape.tolist()
    whole = torch.zeros(rows, columns)
    for row in range(rows):
        text = "".join(f"{word % 2**32:032b}"[::-1] for word in words[row].tolist())
        whole[row] = torch.tensor(
            [int(text[k * bits : (k + 1) * bits][::-1], 2) - 2 ** (bits - 1) for k in range(columns)]
        )
    return whole.to(scale.dtype) * scale.repeat_interleave(columns // scale.shape[1], dim=1)


def schemes(folder: Path) -> dict[str, dict[str, Any]]:
    """Layer -> how config.json says that it is packed."""
    groups = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"]
    return {name: group["weights"] for group in groups.values() for name in group["targets"]}


@pytest.mark.parametrize("case", CASES)
def test_packed_weights_are_ours_to_the_bit(case: str, tmp_path: Path) -> None:
    encoding = encoded(case)
    written = hope.save_pretrained(encoding, tmp_path / "small")
    stored, found = load_file(tmp_path / "small" / "model.safetensors"), schemes(tmp_path / "small")
    state = encoding.model.state_dict()
    assert written.packed
    assert {f"{name}.weight" for name in found} == set(written.packed)
    for name, scheme in found.items():
        words, scale, shape = (stored.pop(f"{name}.weight_{one}") for one in ("packed", "scale", "shape"))
        weight, bits = state[f"{name}.weight"], scheme["num_bits"]
        assert words.dtype == torch.int32
        assert words.shape[1] == -(-weight.shape[1] * bits // 32)
        assert torch.equal(unpacked(words, scale, shape, bits), weight)
        groups = weight.shape[1] // (scheme["group_size"] or weight.shape[1])
        assert scale.shape == (weight.shape[0], groups)
        assert scheme["strategy"] == ("group" if groups > 1 else "channel")
    assert all(torch.equal(tensor, state[name]) for name, tensor in stored.items())
    rest = set(state) - set(stored) - set(written.packed)
    assert rest == ({"lm_head.weight"} if "tied" in case else set())


@pytest.mark.parametrize(("case", "bits"), [("3 bits", {4}), ("6 bits, tied", {8}), ("mixed", {4, 8})])
def test_files_have_the_numbers_of_bits_that_all_readers_have(
    case: str, bits: set[int], tmp_path: Path
) -> None:
    written = hope.save_pretrained(encoded(case), tmp_path)
    assert set(written.packed.values()) == bits == {one["num_bits"] for one in schemes(tmp_path).values()}
    assert str(written).endswith("bits, which needs the package compressed-tensors")


def test_what_is_not_packed_is_ignored_by_name(tmp_path: Path) -> None:
    hope.save_pretrained(encoded("6 bits, tied"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert config["ignore"] == ["lm_head"]
    assert (config["quant_method"], config["format"]) == ("compressed-tensors", "pack-quantized")
    assert config["quantization_status"] == "compressed"


def test_a_group_that_does_not_divide_the_inputs_is_not_packed(tmp_path: Path) -> None:
    """100 inputs in groups of 32: the last has 4."""
    model = build()
    name = "model.layers.0.mlp.down_proj.weight"
    scale = torch.full((64, 4), 0.5)
    whole = torch.randint(-7, 8, (64, 100), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    model.get_parameter(name).data = whole * 0.5
    assert write_pretrained(model, {name: Grid(whole, scale)}, tmp_path).packed == {}
    assert torch.equal(load_file(tmp_path / "model.safetensors")[name], whole * 0.5)


def test_a_scale_that_half_precision_rounds_is_not_packed(tmp_path: Path) -> None:
    """Products of it are numbers of half precision, the scale itself is none."""
    model, name = build(torch.float16), "model.layers.0.mlp.down_proj.weight"
    whole = torch.full((64, 100), 4, dtype=torch.int8)
    scale = torch.full((64, 1), 2.0**-26)
    model.get_parameter(name).data = (whole * scale).half()
    assert model.get_parameter(name).data.all()
    assert write_pretrained(model, {name: Grid(whole, scale)}, tmp_path).packed == {}


def test_the_model_and_its_configuration_stay_as_they_are(tmp_path: Path) -> None:
    encoding = encoded("8 bits")
    before = encoding.model.config.to_dict()  # type: ignore[operator, union-attr]
    hope.save_pretrained(encoding, tmp_path)
    assert encoding.model.config.to_dict() == before  # type: ignore[operator, union-attr]
    assert "quantization_config" not in before


def test_a_model_without_rounded_weights_is_written_as_transformers_does(tmp_path: Path) -> None:
    model = build()
    written = hope.save_pretrained(model, tmp_path)
    assert str(written) == f"{tmp_path}: the model, for from_pretrained"
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_what_from_pretrained_would_not_load_is_refused(tmp_path: Path) -> None:
    model = build()
    uneven = hope.cut(model, hope.inspect(model, EXAMPLE), [hope.Prune("model.layers.0.mlp.gate_proj", [1])])
    with pytest.raises(CannotExport, match="cannot express these widths"):
        hope.save_pretrained(uneven, tmp_path / "uneven")
    with pytest.raises(CannotExport, match="must get a transformers model, got Linear"):
        hope.save_pretrained(nn.Linear(2, 2), tmp_path / "linear")
    assert not list(tmp_path.iterdir())


def test_the_original_is_not_written_over(tmp_path: Path) -> None:
    build().save_pretrained(tmp_path)  # type: ignore[operator]
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(CannotWrite, match="the original is there: give another folder"):
        hope.save_pretrained(model, tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_the_command_line_packs_rounded_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original, run = tmp_path / "model", tmp_path / "run"
    build().save_pretrained(original)  # type: ignore[operator]
    (original / "tokenizer.json").write_text("{}")
    given = ["encode", f"hf:{original}", "--input", "2x9", "--out", str(run)]
    for target in (original, run):
        assert main([*given, "--bits", "4", "--save-pretrained", str(target)]) == 2
        assert "must not be replaced" in capsys.readouterr().err
    uneven = [*given, "--params", "0.9", "--save-pretrained", str(tmp_path / "uneven")]
    assert main(uneven) == 2
    assert "--save-pretrained must go with --uniform" in capsys.readouterr().err
    assert not run.exists()
    assert main([*given, "--bits", "4", "--save-pretrained", str(tmp_path / "small")]) == 0
    assert "small: the model, for from_pretrained; 15 weights in 4 bits" in capsys.readouterr().out
    assert main(["extract", str(run), "--save-pretrained", str(tmp_path / "again")]) == 0
    small, again = (load_file(tmp_path / one / "model.safetensors") for one in ("small", "again"))
    assert small.keys() == again.keys()
    assert all(torch.equal(small[name], again[name]) for name in small)
    assert (tmp_path / "again" / "tokenizer.json").read_text() == "{}"


@pytest.mark.filterwarnings("default")  # of the package
@pytest.mark.parametrize("case", CASES)
def test_transformers_loads_the_folder_with_the_same_weights_and_logits(case: str, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    encoding = encoded(case)
    hope.save_pretrained(encoding, tmp_path)
    loaded, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values())
    exact = CASES[case][2] == torch.float32  # in half precision from_pretrained keeps some buffers in single
    with torch.no_grad():
        ours, theirs = encoding.model(IDS).logits, loaded.eval()(IDS).logits  # unpacks the weights
    assert torch.allclose(ours, theirs, atol=1e-5 if exact else 1e-2)
    held = loaded.state_dict()
    assert all(torch.equal(held[name], one) for name, one in encoding.model.state_dict().items())
