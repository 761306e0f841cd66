"""Models of transformers: cut with one width for all layers, saved, and loaded where there is no hope."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import hope
from hope.cli.main import main
from hope.reasons import Cause
from hope.rewrite import config
from hope.rewrite.config import groups_of, loadable

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
ENDS = {"bos_token_id": 0, "eos_token_id": 1}
GPT2: dict[str, Any] = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, **ENDS}
FALCON: dict[str, Any] = {
    "ffn_hidden_size": 48,
    "pad_token_id": 0,
    **{k: v for k, v in SIZES.items() if k != "intermediate_size"},
    **ENDS,
}
T5: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}


@dataclass(frozen=True)
class Case:
    """A model's class and configuration, and the field that tells how wide its MLPs are."""

    name: str
    config: str
    given: dict[str, Any]
    field: str
    auto: str = "AutoModelForCausalLM"

    def build(self, seed: int = 0, **more: Any) -> nn.Module:
        torch.manual_seed(seed)
        model: nn.Module = getattr(transformers, self.name)(
            getattr(transformers, self.config)(**{**self.given, **more})
        )
        return model.eval()


SHARED = {**SIZES, "num_key_value_heads": 2}
CASES = {
    "llama": Case("LlamaForCausalLM", "LlamaConfig", SHARED, "intermediate_size"),
    "mistral": Case("MistralForCausalLM", "MistralConfig", SHARED, "intermediate_size"),
    "qwen2": Case("Qwen2ForCausalLM", "Qwen2Config", SHARED, "intermediate_size"),
    "phi3": Case("Phi3ForCausalLM", "Phi3Config", {**SHARED, "pad_token_id": 0}, "intermediate_size"),
    "falcon": Case("FalconForCausalLM", "FalconConfig", FALCON, "ffn_hidden_size"),
    "gpt2": Case("GPT2LMHeadModel", "GPT2Config", GPT2, "n_inner"),
    "bert": Case("BertForMaskedLM", "BertConfig", SIZES, "intermediate_size", "AutoModelForMaskedLM"),
}
CAUSAL = [name for name in CASES if name != "bert"]
ids = pytest.mark.parametrize("name", CASES)

CHILD = """
import importlib.util, json, sys
hidden = ("hope", "torchvision")  # the second may not fit torch, and is not needed
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name.split(".")[0] in hidden else find(name, *more)
sys.modules.update(dict.fromkeys(hidden))  # an import of them fails
import torch
from safetensors.torch import load_file, save_file
import transformers

folder, found = sys.argv[1], {}
for name, auto in json.loads(sys.argv[2]).items():
    model = getattr(transformers, auto).from_pretrained(f"{folder}/{name}").eval()
    with torch.no_grad():
        found[name] = model(input_ids=load_file(f"{folder}/ids.safetensors")["ids"]).logits.contiguous()
save_file(found, f"{folder}/logits.safetensors")
"""


def tokens(count: int = 2, length: int = 12, seed: int = 0) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(2, 64, (count, length), generator=made)}


def absorb() -> hope.Absorb:
    return hope.Absorb(calibration=[tokens(8, seed=seed) for seed in range(1, 4)])


def encode(model: nn.Module, **options: Any) -> hope.Encoding:
    given: dict[str, Any] = {"method": absorb(), "uniform": True, "progress": False, **options}
    return hope.encode(model, given.pop("example", tokens()), **given)


def logits(model: nn.Module, x: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=tokens(seed=9)["input_ids"] if x is None else x).logits
    return found


@pytest.fixture(scope="module")
def made() -> Callable[[str], tuple[nn.Module, dict[str, Any], hope.Encoding]]:
    """Name -> a model, its configuration before, and a uniform run; made once."""
    known: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in known:
            model = CASES[name].build()
            before = copy.deepcopy(model.config.to_dict())  # type: ignore[operator, union-attr]
            known[name] = (model, before, encode(model, params=0.9))
        return known[name]

    return make


@ids
def test_the_configuration_tells_the_cut_and_the_originals_stays(made: Any, name: str) -> None:
    model, before, encoding = made(name)
    small, field = encoding.model, CASES[name].field
    (width,) = {len(part.weight[0]) for key, part in small.named_modules() if key.endswith("down_proj")} or {
        getattr(small.config, field)
    }
    assert getattr(small.config, field) == width < (before[field] or 4 * 32)
    assert model.config.to_dict() == before
    assert type(small) is type(model)
    assert loadable(small)
    assert not encoding.notes
    assert encoding.size.parameters <= 0.9 * encoding.trajectory.size(0).parameters
    changed = {key for key, value in small.config.to_dict().items() if before.get(key) != value}
    assert changed - {"architectures", "dtype"} <= {field, "num_attention_heads", "num_key_value_heads",
                                                   "head_dim"}  # fmt: skip


def test_what_is_saved_loads_without_hope(made: Any, tmp_path: Path) -> None:
    x = tokens(seed=9)["input_ids"]
    save_file({"ids": x}, tmp_path / "ids.safetensors")
    for name in CASES:
        made(name)[2].model.save_pretrained(tmp_path / name)
    autos = json.dumps({name: case.auto for name, case in CASES.items()})
    child = [sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path), autos]
    done = subprocess.run(child, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = load_file(tmp_path / "logits.safetensors")
    for name in CASES:
        model, _, encoding = made(name)
        assert torch.allclose(found[name], logits(encoding.model, x), atol=1e-6), name
        assert not torch.equal(found[name], logits(model, x))


@pytest.mark.parametrize("name", CAUSAL)
def test_a_cache_says_what_no_cache_says_after_the_cut(made: Any, name: str) -> None:
    small = made(name)[2].model
    assert small.config.use_cache
    how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    given = {**tokens(2, 5), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    with_it, without = (small.generate(**given, **how, use_cache=cache) for cache in (True, False))
    assert with_it.shape == (2, 17)
    assert torch.equal(with_it, without)


def test_a_saved_run_tells_its_configuration_at_every_budget(made: Any, tmp_path: Path) -> None:
    model, _, encoding = made("llama")
    folder = encoding.save(tmp_path / "run")
    again = hope.load(folder, CASES["llama"].build(seed=5))
    assert again.config.intermediate_size == encoding.model.config.intermediate_size  # type: ignore
    assert loadable(again)
    assert torch.equal(logits(again), logits(encoding.model))
    other = hope.load(folder, model, params=0.95, calibration=absorb().calibration)  # type: ignore[arg-type]
    assert loadable(other)
    assert torch.allclose(logits(other), logits(encoding.at(params=0.95)), atol=1e-5)


MODULE = """
import torch, transformers

def build():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{given!r})).eval()
"""


def test_extract_writes_what_transformers_loads(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODULE.format(given=SHARED))
    model, _, encoding = made("llama")
    encoding.save("run", source={"model": "net.py:build"})
    assert main(["extract", "run", "--trust-source", "--save-pretrained", "small"]) == 0
    assert main(["extract", "run", "net.py:build", "--params", "0.95", "--save-pretrained", "other"]) == 0
    assert "other: the model, for from_pretrained" in capsys.readouterr().out
    small, other = (transformers.AutoModelForCausalLM.from_pretrained(one) for one in ("small", "other"))
    assert torch.allclose(logits(small), logits(encoding.model), atol=1e-6)
    assert small.config.intermediate_size < other.config.intermediate_size < 48
    encode(model, params=0.9, uniform=False).save("several", source={"model": "net.py:build"})
    capsys.readouterr()
    assert main(["extract", "several", "net.py:build", "--save-pretrained", "none"]) == 2
    err = capsys.readouterr().err
    assert "would fail: encode with --uniform, or give --out FILE" in err
    assert err.count("\n") == 1
    assert not Path("none").exists()


def test_several_widths_leave_the_configuration_alone_and_say_so() -> None:
    model = CASES["llama"].build()
    encoding = encode(model, params=0.9, uniform=False)
    assert len({layer.mlp.down_proj.in_features for layer in encoding.model.model.layers}) > 1  # type: ignore
    assert encoding.model.config.to_dict() == model.config.to_dict()  # type: ignore[operator, union-attr]
    assert not loadable(encoding.model)
    (words,) = encoding.notes
    assert "from_pretrained" in words
    assert "uniform=True" in words
    assert "\n" not in words


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2"])
def test_fewer_heads_are_reported(name: str, tmp_path: Path) -> None:
    model = CASES[name].build()
    if not any(unit.name.endswith("q_proj") for unit in hope.inspect(model, tokens()).layers):
        pytest.skip("heads are no neurons yet")
    small: Any = encode(model, params=0.5).model
    config = small.config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (2, 1, 8)
    assert small.model.layers[0].self_attn.q_proj.out_features == 16
    small.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.allclose(logits(again), logits(small), atol=1e-6)
    how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    given = {**tokens(2, 5), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    assert torch.equal(small.generate(**given, **how), small.generate(**given, **how, use_cache=False))


def test_layers_that_have_no_field_stay() -> None:
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES)).eval()
    encoding = encode(bert, params=0.9)
    assert encoding.left_alone["bert.pooler.dense"].cause is Cause.NO_FIELD
    assert {one.cause for one in encoding.left_alone.values()} == {Cause.NO_FIELD}
    assert loadable(encoding.model)


def test_layers_that_share_a_field_keep_one_width() -> None:
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, decoder_start_token_id=0)).eval()
    example = {**tokens(), "decoder_input_ids": tokens(seed=1)["input_ids"]}
    (group,) = (one for one in groups_of(t5, hope.inspect(t5, example)) if "DenseReluDense" in one.names[0])
    assert {name.partition(".")[0] for name in group.names} == {"encoder", "decoder"}
    encoding = encode(t5, params=0.9, example=example, method=hope.Absorb(calibration=[example]))
    assert encoding.model.config.d_ff < 48  # type: ignore[union-attr]
    assert loadable(encoding.model)


def test_every_configuration_that_is_tried_is_built_once() -> None:
    class Counted(transformers.LlamaForCausalLM):  # type: ignore[misc, name-defined]
        built: ClassVar[list[tuple[int, int]]] = []

        def __init__(self, config: Any) -> None:
            self.built.append((config.num_attention_heads, config.intermediate_size))
            super().__init__(config)

    given = {**SIZES, "num_hidden_layers": 2, "num_key_value_heads": 4}
    model = Counted(transformers.LlamaConfig(**given)).eval()
    Counted.built.clear()
    encoding = encode(model, params=0.9)
    result = encoding.model.config
    assert loadable(encoding.model)
    tried = [(heads, 48) for heads in (2, 1)] + [(4, 47)]  # three heads are refused before anything is built
    assert Counted.built == [*tried, (result.num_attention_heads, result.intermediate_size)]  # type: ignore


def test_cuts_by_hand_are_told_as_well() -> None:
    model = CASES["llama"].build()
    anatomy = hope.inspect(model, tokens())
    mlps = [unit.name for unit in anatomy.layers if unit.name.endswith("gate_proj")]
    small = hope.cut(model, anatomy, [hope.Prune(name, range(8)) for name in mlps])
    assert (small.config.intermediate_size, model.config.intermediate_size) == (40, 48)  # type: ignore
    some = hope.cut(model, anatomy, [hope.Prune(name, range(8)) for name in mlps[:2]])
    assert some.config.intermediate_size == 48  # type: ignore[union-attr]


# ---- what cannot be done, in one line ----------------------------------------------------------------------


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(hope.HopeError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_tokenizers_output_needs_no_mask_but_padding_does(capsys: pytest.CaptureFixture[str]) -> None:
    model = CASES["llama"].build(pad_token_id=0)
    plain = transformers.BatchEncoding(tokens())
    assert encode(model, steps=3, example=plain, method=hope.Absorb(calibration=[plain])).steps == 3
    assert capsys.readouterr().err == ""
    padded = {"input_ids": torch.tensor([[5, 6, 7, 8, 9], [5, 6, 0, 0, 0]])}
    encode(model, steps=3, method=hope.Absorb(calibration=[padded]))
    assert "3 tokens are padding and there is no attention_mask" in capsys.readouterr().err
    padded["attention_mask"] = (padded["input_ids"] > 0).long()
    encode(model, steps=3, method=hope.Absorb(calibration=[padded]))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_texts_that_are_too_long_are_refused(name: str) -> None:
    model = CASES[name].build()
    words = "must have at most 64 tokens per text, got 65"
    assert words in refused(lambda: hope.inspect(model, tokens(1, 65)))
    given = hope.Absorb(calibration=[tokens(), tokens(1, 65)])
    assert f"calibration: batch 1 {words}" in refused(lambda: encode(model, steps=3, method=given))


def test_tokens_of_another_tokenizer_are_refused() -> None:
    alien = {"input_ids": torch.tensor([[3, 64]])}
    assert "from 0 to 63, got 3 to 64" in refused(lambda: hope.inspect(CASES["llama"].build(), alien))


def test_one_token_is_no_calibration() -> None:
    one = hope.Absorb(calibration=[tokens(1, 1)])
    assert "at least two tokens or inputs, got one" in refused(
        lambda: encode(CASES["llama"].build(), steps=3, method=one)
    )


class Linear8bitLt(nn.Linear):
    """Goes by the name of bitsandbytes'."""


class Adapted(nn.Module):
    """Looks like peft's."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.base_layer = inner
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inner.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, inner.out_features, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        low: Tensor = self.lora_B["default"](self.lora_A["default"](x))
        return self.base_layer(x) + low


def test_quantised_modules_and_adapters_are_refused() -> None:
    model: Any = CASES["llama"].build()
    mlp = model.model.layers[1].mlp
    plain, way = mlp.up_proj, "compress the float model first"
    mlp.up_proj = Linear8bitLt(32, 48, bias=False)
    assert f"mlp.up_proj must be a float module, got a quantised one (Linear8bitLt): {way}" in refused(
        lambda: hope.inspect(model, tokens())
    )
    mlp.up_proj = copy.deepcopy(plain)
    mlp.up_proj.weight = nn.Parameter(torch.zeros(48, 32, dtype=torch.int8), requires_grad=False)
    assert f"mlp.up_proj.weight must be floating point, got torch.int8: {way}" in refused(
        lambda: encode(model, steps=3)
    )
    mlp.up_proj = Adapted(plain)
    words = refused(lambda: hope.inspect(model, tokens()))
    assert "model.layers.1.mlp.up_proj must be a plain layer, got one with an adapter (LoRA)" in words
    assert "merge_and_unload()" in words


def test_a_tied_head_cannot_be_cut() -> None:
    model = CASES["llama"].build(tie_word_embeddings=True)
    anatomy = hope.inspect(model, tokens())
    assert "got 'lm_head'" in refused(lambda: hope.cut(model, anatomy, [hope.Prune("lm_head", [1])]))


def test_a_uniform_run_exports_once_and_builds_one_model_per_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exported, built = [], list[Any]()
    export, build = torch.export.export, config._built.__wrapped__
    monkeypatch.setattr(torch.export, "export", lambda *a, **k: [exported.append(a[0]), export(*a, **k)][1])
    counted = lru_cache(config.BUILDS)(lambda recipe: [built.append(recipe), build(recipe)][1])
    monkeypatch.setattr(config, "_built", counted)
    model = CASES["llama"].build(num_hidden_layers=2)
    encode(model, params=0.9, method=hope.Absorb(calibration=[tokens(seed=1)]))
    assert (len(exported), len(built)) == (1, 3)


def test_a_budget_between_two_widths_takes_the_next_and_one_below_all_is_refused() -> None:
    model = CASES["llama"].build()
    encoding = encode(model, steps=4)
    assert encoding.steps == 3
    assert encoding.notes == ("steps=4 is no stop of this run, whose layers go together: 3 are taken",)
    assert "density=0.001 cannot be met: the smallest reachable is" in refused(
        lambda: encode(model, density=0.001)
    )
    words = refused(lambda: encode(model, density=0.4, multiple_of=32))
    assert "cannot be met with multiple_of=32 with uniform=True" in words


def test_heads_stop_at_numbers_that_the_configuration_passes(tmp_path: Path) -> None:
    given = {**SIZES, "hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**given)).eval()
    groups = groups_of(model, hope.inspect(model, tokens()))
    (heads,) = (group for group in groups if group.names[0].endswith("q_proj"))
    assert heads.counts == {2, 3, 4, 5}  # 24 is no multiple of 5
    method = hope.Absorb(calibration=[tokens(24, 9)])
    encoding = hope.encode(model, tokens(), steps=4, uniform=True, exclude=["*mlp*"], method=method)
    stops = {
        6 - sum(s.name == heads.names[0] for s in encoding.trajectory.steps[:k]) for k in (0, encoding.steps)
    }
    assert stops == {6, 4}
    small: Any = encoding.model
    small.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.num_attention_heads == 4
    assert torch.allclose(logits(again), logits(small), atol=1e-6)


def test_labels_beside_the_tokens_are_no_answer() -> None:
    model = CASES["llama"].build()
    texts = tokens()
    labelled = {**texts, "labels": texts["input_ids"]}
    plain, other = (
        hope.encode(model, given, params=0.8, method=hope.Absorb(calibration=[given], refit=False))
        for given in (texts, labelled)
    )
    assert [step.name for step in plain.trajectory] == [step.name for step in other.trajectory]


def test_the_example_may_have_a_mask_and_the_texts_none_or_the_reverse() -> None:
    model, texts = CASES["gpt2"].build(), tokens(8)
    masked = {**texts, "attention_mask": torch.ones_like(texts["input_ids"])}
    said = []
    for example, batch in (
        (texts, texts),
        (masked, texts),
        (texts, masked),
        ({**texts, "use_cache": True}, texts),
    ):
        method = hope.Absorb(calibration=[batch], sensitivity=False)
        said.append(logits(encode(model, params=0.9, example=example, method=method).model))
    assert all(torch.equal(one, said[0]) for one in said)


def test_a_second_text_is_asked_for() -> None:
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, decoder_start_token_id=0)).eval()
    with pytest.raises(hope.InvalidExample, match="two texts, got one: give both by name, decoder_input_ids"):
        hope.inspect(t5, tokens())


def test_tied_weights_are_saved_after_training(tmp_path: Path) -> None:
    model = CASES["gpt2"].build()
    encoding = encode(model, params=0.9)
    small = encoding.model
    with torch.no_grad():
        small.transformer.wte.weight += 0.1  # type: ignore[union-attr, operator]
    hope.save_finetuned(tmp_path / "tuned", encoding, small)
    again = hope.load(tmp_path / "tuned", model)
    assert torch.equal(logits(again), logits(small))
    assert again.lm_head.weight is again.transformer.wte.weight  # type: ignore[union-attr]


BART: dict[str, Any] = {
    "vocab_size": 64, "d_model": 32, "max_position_embeddings": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "decoder_start_token_id": 2, "forced_eos_token_id": None, "pad_token_id": 0, **ENDS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "block", "cache"),
    [
        ("llama", "model.layers.0#1", "static"),
        ("gpt2", "transformer.h.0#1", "static"),
        ("bart", "model.decoder.layers.0#1", None),
    ],
)
def test_a_cache_counts_tokens_without_the_first_attention(name: str, block: str, cache: str | None) -> None:
    if name == "bart":
        torch.manual_seed(0)
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(**BART)).eval()
    else:
        model = CASES[name].build()
    for parameter in model.parameters():
        if parameter.ndim > 1:  # so that places matter
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    x = tokens()
    example = {**x, "decoder_input_ids": x["input_ids"]} if name == "bart" else x
    small = hope.cut(model, hope.inspect(model, example), [hope.Evict(block)])
    how: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    wanted = small.generate(x["input_ids"], use_cache=False, **how)  # type: ignore[operator]
    found = small.generate(x["input_ids"], cache_implementation=cache, **how)  # type: ignore[operator]
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("share", [0.9, 0.85, 0.8, 0.7])
def test_uniform_widths_are_nearly_those_that_cost_least(share: float) -> None:
    """Against all numbers of heads and neurons; a group of heads is a third of a layer."""
    model = CASES["llama"].build(num_hidden_layers=2, head_dim=16)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    every = hope.encode(model, tokens(), params=0.5, evict=False, method=absorb(), progress=False)
    price: dict[str, list[float]] = {layer.name: [0.0] for layer in every.anatomy.layers}
    for step in every.trajectory:
        price[step.name].append(price[step.name][-1] + step.cost)
    found = encode(model, params=share)
    paid = sum(step.cost for step in found.trajectory.steps[: found.steps])
    heads, neurons = ([p for n, p in price.items() if part in n] for part in ("attn", "mlp"))
    sizes = [every.anatomy.unit(next(n for n in price if part in n)).release for part in ("attn", "mlp")]
    whole = every.trajectory.size(0).parameters
    least = min(
        sum(p[a] for p in heads) + sum(p[b] for p in neurons)
        for a in range(min(map(len, heads)))
        for b in range(min(map(len, neurons)))
        if whole - 2 * (a * sizes[0] + b * sizes[1]) <= share * whole
    )
    assert found.size.parameters <= share * whole
    assert paid <= 1.05 * least + 1e-9


@pytest.mark.parametrize("kind", [torch.long, torch.float32, torch.bool])
def test_masks_of_any_kind_tell_the_same(kind: torch.dtype) -> None:
    model, ids = CASES["llama"].build(), tokens(24, 9)["input_ids"]
    mask = torch.ones_like(ids)
    mask[:, 7:] = 0
    plain, other = (
        hope.encode(
            model,
            tokens(),
            params=0.8,
            method=hope.Absorb(calibration=[{"input_ids": ids, "attention_mask": mask.to(one)}]),
            progress=False,
        )
        for one in (torch.long, kind)
    )
    assert other.method == replace(plain.method, calibration=other.method.calibration)
    assert torch.equal(logits(other.model), logits(plain.model))


@pytest.mark.parametrize(
    ("how", "refit"), [("by name", False), ("by name", True), ("by place", False), ("beside labels", False)]
)
def test_padding_that_is_masked_counts_nothing(how: str, refit: bool) -> None:
    model = CASES["llama"].build()
    ids = tokens(24, 9)["input_ids"]
    padding = torch.zeros(24, 30, dtype=torch.long)
    mask = torch.cat([torch.ones_like(ids), padding], 1)
    named = {"input_ids": torch.cat([ids, padding], 1), "attention_mask": mask}
    labels = named["input_ids"].masked_fill(mask == 0, -100)
    padded: Any = {
        "by name": named,
        "by place": (*named.values(),),
        "beside labels": {**named, "labels": labels},
    }[how]
    plain, other = (
        hope.encode(
            model,
            tokens(),
            params=0.8,
            evict=False,
            method=hope.Absorb(calibration=[given], refit=refit, sensitivity=False),
        )
        for given in ({"input_ids": ids}, padded)
    )
    for weight, statistics in plain.input_statistics.items():
        torch.testing.assert_close(other.input_statistics[weight].mean, statistics.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            other.input_statistics[weight].covariance, statistics.covariance, rtol=1e-4, atol=1e-5
        )
    assert [step.removed for step in plain.trajectory] == [step.removed for step in other.trajectory]
    far = (logits(other.model) - logits(plain.model)).norm() / logits(plain.model).norm()
    assert far < (0.02 if refit else 1e-4)
