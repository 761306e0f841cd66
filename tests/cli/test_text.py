"""Language models on the command line."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hope._util.operators import declare_missing_operators
from hope.cli.main import main

declare_missing_operators()
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
WORDS = ("a", "cat", "sat", "on", "the", "mat", "and", "then", "it", "ran")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with its tokenizer, as transformers saves them."""
    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=12, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, bos_token_id=10, eos_token_id=11, pad_token_id=11,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    words = {**{word: place for place, word in enumerate(WORDS)}, "<s>": 10, "</s>": 11}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="a").save_pretrained(path)
    return path


def test_a_language_model_is_inspected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"hf:{folder}", "--input", "1x8"]) == 0
    assert "model.layers.1.mlp.gate_proj" in capsys.readouterr().out


@pytest.mark.parametrize("way", ["text", "nothing"])
def test_a_language_model_is_compressed_saved_and_loaded_by_others(
    folder: Path, tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(WORDS[k % 10] for k in range(400)))
    out, small = tmp_path / "run", tmp_path / "small"
    given = ["--calibration", str(text)] if way == "text" else []
    call = ["encode", f"hf:{folder}", "--params", "0.8", "--uniform", "--input", "1x8", "--out", str(out)]
    assert main([*call, *given]) == 0
    assert main(["extract", str(out), "--save-pretrained", str(small)]) == 0
    capsys.readouterr()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(small)
    original = transformers.AutoModelForCausalLM.from_pretrained(folder)
    count = [sum(p.numel() for p in one.parameters()) for one in (loaded, original)]
    assert count[0] <= 0.8 * count[1]
    assert loaded.config.intermediate_size < 24
    ids = [transformers.AutoTokenizer.from_pretrained(one)("the mat")["input_ids"] for one in (small, folder)]
    assert ids[0] == ids[1]


def test_a_model_is_looked_at_with_what_it_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts of its own length, images of its own size."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    short = transformers.LlamaConfig(vocab_size=12, max_position_embeddings=16, **sizes)
    transformers.LlamaForCausalLM(short).save_pretrained(tmp_path / "short")
    images = transformers.ViTConfig(image_size=8, patch_size=4, **sizes)
    transformers.ViTForImageClassification(images).save_pretrained(tmp_path / "images")
    for name in ("short", "images"):
        assert main(["inspect", f"hf:{tmp_path / name}"]) == 0
    assert main(["inspect", f"hf:{tmp_path / 'nothing'}"]) == 2
    assert f"there is no folder {tmp_path / 'nothing'}" in "".join(capsys.readouterr().err.split("\n"))


def test_a_model_of_two_texts_is_calibrated_on_one(folder: Path, tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=12, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "t5")
    text = tmp_path / "text.txt"
    text.write_text(" ".join(WORDS[k % 10] for k in range(400)))
    call = ["encode", f"hf:{tmp_path / 't5'}", "--params", "0.95", "--input", "1x8"]
    assert main([*call, "--calibration", str(text), "--out", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a cat", "must have at least 8 tokens, as one text of --input has, got 4: give more text"),
        (None, "cannot be read by the tokenizer"),
    ],
)
def test_texts_that_cannot_be_used(
    folder: Path, tmp_path: Path, text: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.txt"
    if text is not None:
        file.write_text(text)
    call = ["encode", f"hf:{folder}", "--params", "0.9", "--input", "1x8", "--out", str(tmp_path / "run")]
    assert main([*call, "--calibration", str(file)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_shape_that_is_none_of_texts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"hf:{folder}", "--input", "1x3x8x8"]) == 2
    assert "--input must be texts x tokens, got 1x3x8x8: write it like 1x128" in capsys.readouterr().err


def test_code_in_the_folder_of_a_model_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # transformers would ask, and this user agrees
    (tmp_path / "own.py").write_text(
        "from pathlib import Path\nfrom transformers import PretrainedConfig\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\nclass Own(PretrainedConfig):\n    model_type = 'own'\n"
    )
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}, "architectures": ["LlamaModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["inspect", f"hf:{tmp_path}", "--input", "1x8"]) != 0
    assert not (tmp_path / "ran").exists()


def changed(folder: Path, target: Path, name: str, **values: Any) -> Path:
    """The folder again, with other values in one of its JSON files."""
    shutil.copytree(folder, target)
    file = target / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    (target / "code.py").write_text("open('ran', 'w').close()\n")
    return target


def test_code_in_a_folder_is_neither_run_nor_asked_about(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda words="": asked.append(words) or "y")
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(WORDS) * 20)
    codes = {"AutoConfig": "code.C", "AutoModel": "code.M"}
    strange = changed(folder, tmp_path / "a", "config.json", model_type="strange", auto_map=codes)
    reads = changed(
        folder, tmp_path / "b", "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["code.T", None]}, tokenizer_class="T",
    )  # fmt: skip
    kernel = changed(folder, tmp_path / "c", "config.json", attn_implementation="someone/attention")
    assert main(["inspect", f"hf:{strange}", "--input", "1x8"]) == 2
    call = ["encode", f"hf:{reads}", "--params", "0.8", "--input", "1x8", "--out", "run"]
    main([*call, "--calibration", str(text)])
    capsys.readouterr()
    assert main(["inspect", f"hf:{kernel}", "--input", "1x8"]) == 2
    assert "must not bring code, got attn_implementation='someone/attention'" in capsys.readouterr().err
    assert asked == []
    assert not Path("ran").exists()


def test_a_folder_names_a_model_and_nothing_else_of_the_library(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = changed(folder, tmp_path / "a", "config.json", architectures=["AutoTokenizer"])
    assert main(["inspect", f"hf:{other}", "--input", "1x8"]) == 0
    assert "layers.1.mlp.gate_proj" in capsys.readouterr().out


class Bad:
    """What a pickle can do."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_pickled_weights_of_a_folder_run_no_code(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = changed(folder, tmp_path / "a", "config.json")
    (other / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Bad()}, other / "pytorch_model.bin")
    assert main(["inspect", f"hf:{other}", "--input", "1x8"]) == 2
    assert not Path("ran").exists()
