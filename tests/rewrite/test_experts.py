"""Mixtures of experts: opened, compressed, closed again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.cli.main import main
from tests.support import assert_same, check_cut, run

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = {"input_ids": torch.randint(2, 64, (3, 9), generator=torch.Generator().manual_seed(1))}
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
KINDS: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 3},
    "Qwen2Moe": {"num_experts": 3, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20},
    "Qwen3Moe": {"num_experts": 3, "moe_intermediate_size": 12, "head_dim": 4},
    "DeepseekV3": {
        **dict.fromkeys(("num_key_value_heads", "n_routed_experts", "qk_rope_head_dim", "v_head_dim"), 4),
        **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim"), 8),
        **dict.fromkeys(("topk_group", "first_k_dense_replace", "n_shared_experts"), 1),
        "n_group": 2,
        "moe_intermediate_size": 12,
    },
}
FIELD = {"Mixtral": "intermediate_size"}


def made(kind: str, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **KINDS[kind], **more})
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [{"input_ids": torch.randint(2, 64, (12, 9), generator=generator)} for _ in range(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_opened_experts_answer_as_stacked_ones_and_their_neurons_can_go(kind: str) -> None:
    model = made(kind)
    before = copy.deepcopy(model.state_dict())
    opened = hope.unstack_experts(model)
    assert_same(run(opened, TOKENS), run(model, TOKENS), 1e-5)
    anatomy, _ = check_cut(opened, TOKENS, tolerance=1e-5)
    names = {layer.name for layer in anatomy.layers}
    experts = {name.removesuffix(".gate") for name, _ in opened.named_modules() if name.endswith("gate")}
    assert {f"{name}.gate" for name in experts if ".each." in name} <= names
    assert any(".each.2.gate" in name for name in names)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert_same(run(hope.stack_experts(opened), TOKENS), run(model, TOKENS), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_compressed_loads_without_this_package(kind: str, tmp_path: Path) -> None:
    model, method = made(kind), hope.Absorb(calibration=batches(), refit=kind == "Mixtral")
    opened = hope.unstack_experts(model)
    encoding = hope.encode(opened, TOKENS, params=0.8, uniform=True, multiple_of=4, method=method)
    small = hope.stack_experts(encoding.model)
    assert type(small) is type(model)
    assert_same(run(small, TOKENS)[:1], run(encoding.model, TOKENS)[:1], 1e-5)
    field = FIELD.get(kind, "moe_intermediate_size")
    assert getattr(small.config, field) < getattr(model.config, field)
    small.save_pretrained(tmp_path)  # type: ignore[operator]
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert {name: one.shape for name, one in again.named_parameters()} == {
        name: one.shape for name, one in small.named_parameters()
    }
    assert_same(run(again, TOKENS)[:1], run(small, TOKENS)[:1], 1e-6)
    again.generate(TOKENS["input_ids"][:1], max_new_tokens=3, do_sample=False, pad_token_id=0)


def test_an_expert_is_measured_on_what_it_is_sent() -> None:
    model = made("Mixtral")
    heard: list[tuple[Tensor, ...]] = []
    experts = model.model.layers[0].mlp.experts  # type: ignore[union-attr, union-attr, index]
    experts.register_forward_pre_hook(lambda _, given: heard.append(given))
    encoding = hope.encode(
        hope.unstack_experts(model), TOKENS, steps=1, method=hope.Absorb(calibration=batches(), refit=False)
    )
    for batch in batches():
        run(model, batch)
    both, total = experts.gate_up_proj.detach(), torch.zeros(24, 24, dtype=torch.float64)
    means, count = torch.zeros(24, dtype=torch.float64), 0
    for x, sent, shares in heard[-3:]:
        for token, expert, share in ((t, 1, shares[t, j]) for t, j in (sent == 1).nonzero().tolist()):
            gate, up = (both[expert] @ x[token]).chunk(2)
            said = (torch.nn.functional.silu(gate) * up * share).double()
            total, means = total + torch.outer(said, said), means + said
        count += len(x)
    name = "model.layers.0.mlp.experts.each.1.down.weight"
    statistics = encoding.input_statistics[name]
    wanted = total / count - torch.outer(means, means) / count**2
    # tokens count by one over the size of the stream, which differs little between them here
    found = statistics.covariance.double()
    assert float((found * wanted).sum() / (found.norm() * wanted.norm())) > 0.98


def test_an_expert_that_is_sent_nothing_is_reported() -> None:
    model = made("Mixtral")
    method = hope.Absorb(calibration=batches(), refit=False)

    def notes() -> list[str]:
        encoding = hope.encode(hope.unstack_experts(model), TOKENS, steps=1, method=method)
        return [note for note in encoding.notes if "no calibration input reaches" in note]

    assert not notes()
    nn.init.zeros_(model.model.layers[1].mlp.gate.weight)  # type: ignore[union-attr, union-attr, index]
    (reported,) = notes()  # of equal shares the first two are sent
    assert "layers.1.mlp.experts.each.2.down" in reported
    assert "each.1" not in reported


def test_experts_of_several_widths_are_not_stacked() -> None:
    opened = hope.unstack_experts(made("Mixtral"))
    method = hope.Absorb(calibration=batches(), refit=False)
    uneven = hope.encode(opened, TOKENS, params=0.8, evict=False, method=method).model
    with pytest.raises(hope.UnsupportedModel, match=r"layers\.0\.mlp\.experts.*uniform=True"):
        hope.stack_experts(uneven)


def test_widths_that_products_of_groups_do_not_take_are_reported() -> None:
    opened = hope.unstack_experts(made("Mixtral"))
    anatomy = hope.inspect(opened, TOKENS)
    actions = [hope.Prune(layer.name, [0]) for layer in anatomy.layers if ".each." in layer.name]
    odd = hope.cut(opened, anatomy, actions)
    with pytest.raises(hope.UnsupportedModel, match=r"a multiple of 4 .*got 23: .*multiple_of=4"):
        hope.stack_experts(odd)
    odd.set_experts_implementation("batched_mm")  # type: ignore[operator]
    assert_same(run(hope.stack_experts(odd), TOKENS), run(odd, TOKENS), 1e-5)


def test_experts_that_compute_something_else_are_refused() -> None:
    model = made("Mixtral")
    kind = type(model.model.layers[0].mlp.experts)  # type: ignore[union-attr, union-attr, index]
    clamped = type("Clamped", (kind,), {"_apply_gate": lambda self, both: both.chunk(2, -1)[0].clamp(-1, 1)})
    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.mlp.experts.__class__ = clamped
    with pytest.raises(hope.UnsupportedModel, match=r"mlp\.experts: stacked experts must compute act"):
        hope.unstack_experts(model)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_no_reason_to_refuse(kind: torch.dtype) -> None:
    model = made("Mixtral")
    for layer in model.model.layers:  # type: ignore[union-attr]
        torch.nn.init.normal_(layer.mlp.experts.gate_up_proj, std=1.0)  # large tokens overflow in float16
    opened = hope.unstack_experts(model.to(kind))
    assert {parameter.dtype for parameter in opened.parameters()} == {kind}


def test_limits_that_only_large_tokens_meet_are_seen() -> None:
    model = made("Mixtral")
    kind = type(model.model.layers[0].mlp.experts)  # type: ignore[union-attr, union-attr, index]

    def limited(self: Any, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        return torch.nn.functional.silu(gate.clamp(max=7)) * up.clamp(-7, 7)

    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.mlp.experts.__class__ = type("Limited", (kind,), {"_apply_gate": limited})
        torch.nn.init.normal_(layer.mlp.experts.gate_up_proj, std=0.1)
    with pytest.raises(hope.UnsupportedModel, match=r"mlp\.experts: stacked experts must compute act"):
        hope.unstack_experts(model)


def test_experts_that_two_layers_have_in_common_are_opened_once() -> None:
    model: Any = made("Mixtral")
    first, second = (layer.mlp for layer in model.model.layers)
    second.experts = first.experts
    opened: Any = hope.unstack_experts(model)
    assert opened.model.layers[0].mlp.experts is opened.model.layers[1].mlp.experts
    assert_same(run(opened, TOKENS), run(model, TOKENS), 1e-5)
    closed: Any = hope.stack_experts(opened)
    assert closed.model.layers[0].mlp.experts is closed.model.layers[1].mlp.experts
    assert closed.state_dict().keys() == model.state_dict().keys()
    alone = hope.unstack_experts(first.experts)
    assert len(alone.each) == 3  # type: ignore[arg-type]
    assert type(hope.stack_experts(alone)) is type(first.experts)


def test_experts_that_cannot_be_opened_for_their_weights() -> None:
    tied: Any = made("Mixtral")
    first, second = (layer.mlp.experts for layer in tied.model.layers)
    second.down_proj = first.down_proj
    with pytest.raises(hope.UnsupportedModel, match="must be its own, got one that another module has too"):
        hope.unstack_experts(tied)
    broken: Any = made("Mixtral")
    with torch.no_grad():
        broken.model.layers[1].mlp.experts.down_proj[0, 0, 0] = torch.nan
    with pytest.raises(
        hope.UnsupportedModel, match=r"layers\.1\.mlp\.experts\.down_proj must be finite, got NaN"
    ):
        hope.unstack_experts(broken)
    with pytest.raises(hope.UnsupportedModel, match="must be given data"):
        hope.unstack_experts(made("Mixtral").to("meta"))


def test_other_models_and_modes_stay_as_they_are() -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).train()
    same = hope.stack_experts(hope.unstack_experts(plain))
    assert same is not plain
    assert same.training
    assert torch.equal(same[0].weight, plain[0].weight)  # type: ignore[index]
    model = made("Mixtral").train()
    model.requires_grad_(False)
    opened = hope.unstack_experts(model)
    assert all(module.training for module in opened.modules())
    closed = hope.stack_experts(opened)
    assert not any(parameter.requires_grad for one in (opened, closed) for parameter in one.parameters())
    assert all(module.training for module in closed.modules())


def test_on_the_command_line_experts_are_opened_and_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = made("Mixtral")
    model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    run_folder, small = tmp_path / "run", tmp_path / "small"
    given = ["encode", f"hf:{tmp_path / 'model'}", "--input", "2x9", "--params", "0.8", "--uniform"]
    given += ["--calibration", "dream", "--out", str(run_folder)]
    assert main(given) == 0
    assert "widths are multiples of 4" in capsys.readouterr().err
    assert main(["extract", str(run_folder), "--save-pretrained", str(small)]) == 0
    again = transformers.AutoModelForCausalLM.from_pretrained(small)
    assert type(again) is type(model)
    assert again.config.intermediate_size < 24
