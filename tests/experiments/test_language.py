"""The harness for transformers: what peers take out, and what networks are measured by."""

from __future__ import annotations

import argparse
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from experiments.language import peers, texts
from experiments.language.parts import cut, layers_of, linear, parameters, parts_of, wanted
from hope._util.operators import declare_missing_operators

pytest.importorskip("transformers", reason="language models need the extra transformers")
declare_missing_operators()


def llama(layers: int = 3) -> Any:
    """A small one with two key/value heads for four query heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=1,
        use_cache=False,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def bert() -> Any:
    """A small one."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.2,
    )
    return BertModel(config).eval()


@pytest.fixture
def batches() -> list[dict[str, Tensor]]:
    return texts.batched(torch.randint(64, (16, 12), generator=torch.Generator().manual_seed(0)))


def said(model: Any, batches: list[dict[str, Tensor]]) -> Tensor:
    with torch.no_grad():
        result = model(**batches[0])
        found = result.logits if hasattr(result, "logits") else result.last_hidden_state
        assert isinstance(found, Tensor)
        return found


@pytest.mark.parametrize("make", [llama, bert])
def test_what_is_cut_says_what_the_original_says_without_it(make: Any, batches: list[Any]) -> None:
    model = make()
    gone = {part.reader: [0, part.units - 1][: 1 + (part.kind == "mlp")] for part in parts_of(model)}
    small = cut(model, gone)
    sizes = {part.reader: part.size for part in parts_of(model)}
    released = sum(len(units) * sizes[reader] for reader, units in gone.items())
    assert parameters(model)[1] - parameters(small)[1] == released
    with torch.no_grad():
        for part in parts_of(model):
            weight = linear(model, part.reader).weight
            for unit in gone[part.reader]:
                weight.view(len(weight), part.units, -1)[:, unit] = 0
    torch.testing.assert_close(said(small, batches), said(model, batches))


@pytest.mark.parametrize("method", ["wanda-sp", "flap", "magnitude", "random"])
@pytest.mark.parametrize("kind", ["mlp", "heads", "both"])
def test_a_peer_meets_its_budget(method: str, kind: str, batches: list[Any]) -> None:
    model = llama()
    small, (layers, whole) = peers.made(method, model, kind, 0.5, batches, lambda: peers.hear(model, batches))
    before = parameters(model)
    biases = sum(p.numel() for name, p in small.named_parameters() if name.endswith("proj.bias"))
    largest = max(part.size for part in parts_of(model, kind))
    assert abs(before[0] - layers + biases - wanted(model, kind, 0.5)) <= largest / 2
    assert before[1] - before[0] == whole - layers
    assert said(small, batches).isfinite().all()


def test_wanda_weighs_columns_by_what_they_read(batches: list[Any]) -> None:
    model = llama(layers=1)
    part = parts_of(model, "mlp")[0]
    seen: list[Tensor] = []
    handle = linear(model, part.reader).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    for batch in batches:
        model(**batch)
    handle.remove()
    norms = torch.cat(seen).flatten(0, 1).norm(dim=0)
    expected = (linear(model, part.reader).weight.abs() * norms).sum(dim=0)
    torch.testing.assert_close(
        peers.wanda(model, part, peers.hear(model, batches)).float(), expected.detach()
    )


def test_flap_replaces_a_unit_that_never_moves_by_its_value(batches: list[Any]) -> None:
    model = llama(layers=1)
    (part,) = parts_of(model, "mlp")
    gate, up = (linear(model, name) for name in part.writers)
    gate.bias, up.bias = nn.Parameter(torch.zeros(24)), nn.Parameter(torch.zeros(24))
    with torch.no_grad():
        for module in (gate, up):
            module.weight[5] = 0
            module.bias[5] = 3.0
    before = said(model, batches)
    small = peers.flap(model, "mlp", 1 / 24, peers.hear(model, batches))
    assert linear(small, part.reader).in_features == 23
    torch.testing.assert_close(said(small, batches), before)


def test_the_layer_that_does_nothing_is_dropped(batches: list[Any]) -> None:
    model = llama()
    with torch.no_grad():
        for part in parts_of(model)[2:4]:
            linear(model, part.reader).weight.zero_()
    small = peers.drop(model, 1 / 3, peers.hear(model, batches))
    assert len(layers_of(small)) == 2
    torch.testing.assert_close(said(small, batches), said(model, batches))


def test_slicing_keeps_leading_directions_of_the_stream(batches: list[Any]) -> None:
    model = llama()
    torch.testing.assert_close(said(peers.projected(model, 16, batches), batches), said(model, batches))
    small, width = peers.sliced(model, 0.3, batches)
    assert 0 < width < 16
    assert peers.sliced_parameters(model, width)[0] <= 0.7 * parameters(model)[0]
    assert peers.sliced_parameters(model, width + 1)[0] > 0.7 * parameters(model)[0]
    ranks = []
    for layer in layers_of(small):
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.register_forward_pre_hook(
                lambda _, args: ranks.append(int(torch.linalg.matrix_rank(args[0].flatten(0, 1), rtol=1e-4)))
            )
    said(small, batches)
    assert ranks == [width] * 6


def test_a_sliced_network_counts_its_adapters() -> None:
    model = llama(layers=2)  # stream 16, MLP 24, queries 16, keys and values 8
    reads, writes, k = 16 + 8 + 8 + 24 + 24, 16 + 24, 10
    first = reads * k + writes * k + 2 * k * k
    last = reads * k + 16 * k + 24 * 16 + k * k + k * 16
    assert peers.sliced_parameters(model, k) == (first + last, first + last + 64 * (k + 16))


def test_losses_are_those_of_the_next_token() -> None:
    model = llama()
    rows = torch.randint(64, (2, 12))
    with torch.no_grad():
        model.model.norm.weight.zero_()
    assert texts.losses(model, rows) == pytest.approx([math.log(64)] * 2)


def test_own_text_is_drawn_from_what_the_model_says() -> None:
    model = llama()
    rows = texts.own_text(model, 3, length=8)
    assert rows.shape == (3, 8)
    assert (rows[:, 0] == 1).all()
    chance = torch.Generator().manual_seed(texts.SEED)
    again = rows[:, :1]
    with torch.no_grad():
        for _ in range(7):  # without a cache
            again = torch.cat(
                [
                    again,
                    torch.multinomial(model(input_ids=again).logits[:, -1].softmax(-1), 1, generator=chance),
                ],
                1,
            )
    assert torch.equal(rows, again)


def test_points_that_are_there_are_not_measured_again(batches: list[Any]) -> None:
    from experiments.language.__main__ import points

    model = llama()
    options = argparse.Namespace(
        kinds=["mlp"],
        shares=[0.25, 0.5],
        methods=[
            "absorb",
            "absorb, refitted",
            "absorb, not looked",
            "absorb, equal widths",
            "random",
            "wanda-sp",
        ],
        sources=["16"],
    )
    found: dict[str, Any] = {}
    for (kind, share, method, source), point in points(
        model, lambda _: batches, lambda small: {"loss": float(said(small, batches).sum())}, options, found
    ):
        found.setdefault(kind, {}).setdefault(share, {}).setdefault(method, {})[source] = point
    assert {(s, m) for s in found["mlp"] for m in found["mlp"][s]} == {
        (s, m) for s in ("0.25", "0.5") for m in options.methods
    }
    sizes = {point["whole"] for some in found["mlp"]["0.5"].values() for point in some.values()}
    assert len(sizes) == 1
    again = points(model, lambda _: batches, lambda _: pytest.fail("measured again"), options, found)
    assert not list(again)
