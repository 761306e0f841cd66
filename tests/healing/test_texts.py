"""Healing of language models: on the texts they were encoded with, never below the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.encoding import Encoding
from hope.errors import HopeError
from hope.healing import loop as loops
from hope.healing.distillation import Distillation
from hope.healing.inputs import Inputs
from hope.healing.texts import windows
from hope.storage.run import read_run
from tests.healing.test_heal import one_thread, same

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

__all__ = ["one_thread"]

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def llama() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(4 if one.ndim > 1 else 1)  # else its answers hardly depend on its MLPs
    return model


def texts(count: int = 24, length: int = 12) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(64, (count, length), generator=torch.Generator().manual_seed(1))}


def encoded(calibration: Any, **budget: Any) -> tuple[nn.Module, Encoding]:
    model = llama()
    how = {"calibration": calibration, "evict": False, "progress": False, **(budget or {"density": 0.5})}
    return model, hope.encode(model, texts(1), **how)


def test_an_encoding_heals_on_the_texts_it_was_calibrated_on() -> None:
    _, encoding = encoded([texts()])
    healed = encoding.heal(steps=20).healed
    assert healed is not None
    assert (healed.inputs, healed.held) == (16, 8)
    given = hope.heal(encoding.original, encoding.model, [texts()], steps=20)
    assert same(healed.model, given.model)
    assert healed.after > healed.before


def test_inputs_without_a_refit_change_neither_the_network_nor_its_folder(tmp_path: Path) -> None:
    model, encoding = encoded([texts()])
    assert not encoding.method.rewrite.refit
    steps = encoding.trajectory.steps
    cuts: dict[str, Any] = {
        "input_statistics": encoding.input_statistics,
        "rewrite": encoding.method.rewrite,
    }
    assert same(encoding.model, hope.cut(model, encoding.anatomy, steps[: encoding.steps], **cuts))
    assert same(encoding.at(steps=3), hope.cut(model, encoding.anatomy, steps[:3], **cuts))
    folder = encoding.save(tmp_path / "run")
    assert read_run(folder).record.inputs is None
    assert same(hope.load(folder, model, steps=3), encoding.at(steps=3))


def test_synthetic_texts_are_saved_for_a_refit_only(tmp_path: Path) -> None:
    for refit in (False, True):
        method = hope.Absorb(calibration="dream", refit=refit)
        encoding = hope.encode(llama(), texts(1), method=method, evict=False, density=0.5, progress=False)
        folder = encoding.save(tmp_path / f"{refit}")
        assert encoding.inputs
        assert (read_run(folder).record.inputs is not None) is refit


def test_integer_ranges_of_a_language_model_come_from_its_texts() -> None:
    _, encoding = encoded([texts()], bits=8)
    integers = encoding._integers()
    assert integers is not None
    assert torch.equal(integers.inputs[0]["input_ids"], texts()["input_ids"])


LETTERS = "abcdefghijklmnopqrstuvwxyz "


def letters(text: str) -> dict[str, list[int]]:
    return {"input_ids": [LETTERS.index(letter) for letter in text]}


def test_texts_are_read_as_windows_of_the_examples_length() -> None:
    _, encoding = encoded([texts()])
    words = ["the cat sat on the mat "] * 5 + ["and then it ran over the hills and far away " * 4]
    every = torch.tensor([LETTERS.index(letter) for letter in "".join(words)])
    rows = every[: len(every) // 12 * 12].reshape(-1, 12)
    found = encoding.heal(words, tokenizer=letters, steps=3).healed
    given = encoding.heal([{"input_ids": rows}], steps=3).healed
    assert found is not None
    assert given is not None
    assert found.inputs + found.held == len(rows)
    assert same(found.model, given.model)


def test_the_tokenizers_of_transformers_read_texts() -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "cat": 1}, unk_token="a"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="a")
    some = ["a cat", "cat a cat"] * 200
    every = torch.cat([torch.tensor(tokenizer(text)["input_ids"]) for text in some])
    (batch,) = windows(llama(), some, tokenizer)
    assert batch["input_ids"].shape[1] == 64  # its longest text
    assert torch.equal(batch["input_ids"].flatten(), every[: len(every) // 64 * 64])


@pytest.mark.parametrize(
    ("given", "tokenizer", "words"),
    [
        (["a text"], None, "batches must be token ids, got texts: pass tokenizer="),
        ("a text", None, "batches must be token ids, got texts: pass tokenizer="),
        (["a text"], "gpt2", "tokenizer must be a function of a text, got str"),
        (["a text"], letters, "texts must have at least 16 x 64 tokens, got 6"),
    ],
)
def test_texts_that_cannot_be_read_are_refused(given: Any, tokenizer: Any, words: str) -> None:
    model = llama()
    with pytest.raises(HopeError, match=words):
        hope.heal(model, model, given, tokenizer=tokenizer, steps=3)


@pytest.mark.parametrize("rate", [0.02, 1e9])
def test_a_language_model_is_never_below_its_start(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    _, encoding = encoded([texts()])
    monkeypatch.setattr(loops, "RATE", rate)
    healed = encoding.heal(steps=6).healed
    assert healed is not None
    _, held = Inputs.of(encoding.original, [texts()]).split()
    distillation = Distillation(encoding.original, healed.model, held.on(torch.device("cpu")))
    fidelity, _ = distillation.evaluation(held, len(held), torch.device("cpu"))()
    assert fidelity == pytest.approx(healed.after, abs=1e-6)
    assert healed.after > healed.before if rate < 1 else same(healed.model, encoding.model)
