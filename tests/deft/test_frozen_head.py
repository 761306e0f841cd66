"""A head that both tasks share, also if it is tied to an embedding: only slack is trainable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hope
from hope.deft import NotSeparable, Tuning
from tests.deft.nets import assert_core_kept, chain, core_entries, images, made, slack_entries, train

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
TOKENS = 48


def _llama(tied: bool) -> nn.Module:
    torch.manual_seed(1)
    found: nn.Module = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=TOKENS,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
            tie_word_embeddings=tied,
            initializer_range=0.4,
        )
    )
    return found.eval()


def _text(seed: int, count: int = 8) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(TOKENS, (count, 10), generator=generator)}


def _loss(model: nn.Module, text: dict[str, Tensor]) -> Tensor:
    scores = model(**text).logits[:, :-1]
    return functional.cross_entropy(scores.reshape(-1, TOKENS), text["input_ids"][:, 1:].reshape(-1))


def _tuning(net: nn.Module, **how: Any) -> Tuning:
    how = how or {"free": 0.4}
    part = hope.deft.partition(net, _text(2, 2), head="frozen", calibration=[_text(3)], **how)
    return hope.deft.prepare(net, part)


def _train(tuning: Tuning, steps: int = 30) -> list[float]:
    optimizer = torch.optim.AdamW(tuning.model.parameters(), lr=0.02, weight_decay=0.1)
    tuning.model.train()
    losses = []
    for _ in range(steps):
        loss = _loss(tuning.model, _text(5))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    tuning.model.eval()
    return losses


def _scores(tuning: Tuning, masked: bool) -> Tensor:
    with tuning.source(masked=masked) as model, torch.no_grad():
        scores: Tensor = model(**_text(4)).logits
        return scores


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_learns_in_its_slack_and_keeps_its_head(tied: bool) -> None:
    net = _llama(tied)
    tuning = _tuning(net)
    core, slack = core_entries(tuning), slack_entries(tuning)
    masked, start = _scores(tuning, True), _scores(tuning, False)
    assert torch.equal(masked, start)  # fresh slack writes nothing
    losses = _train(tuning)
    assert losses[-1] < 0.9 * losses[0]
    assert_core_kept(core, core_entries(tuning))
    assert tuning.moved() == []
    assert any(not torch.equal(slack[name], value) for name, value in slack_entries(tuning).items())
    assert torch.equal(tuning.model.lm_head.weight, net.lm_head.weight)
    assert (tuning.model.lm_head.weight is tuning.model.model.embed_tokens.weight) == tied
    assert torch.equal(_scores(tuning, True), masked)
    assert not torch.equal(_scores(tuning, False), start)
    assert torch.equal(_scores(tuning, False), tuning.model(**_text(4)).logits)


def test_both_paths_of_a_shared_head_are_measured() -> None:
    tuning = _tuning(_llama(True))
    ids = [_text(seed)["input_ids"] for seed in (5, 6)]
    batches = [(text[:, :-1], text[:, 1:]) for text in ids]
    before = tuning.measure(batches)
    assert before.after == before.after_as_is
    _train(tuning)
    after = tuning.measure(batches)
    assert after.after == before.after
    with torch.no_grad():
        right = [(tuning.model(x).logits.argmax(dim=-1) == y).float().mean() for x, y in batches]
    assert after.after_as_is == pytest.approx(float(sum(right) / len(right)))
    assert after.after_as_is != after.after


def test_only_slack_is_trainable() -> None:
    tuning = _tuning(_llama(True))
    free, _ = tuning.trainable()
    assert free == sum(value.numel() for value in slack_entries(tuning).values()) > 0
    assert "head: frozen, shared by both tasks" in str(tuning)


def test_a_tuning_with_a_frozen_head_is_saved_and_loaded_to_the_bit(tmp_path: Path) -> None:
    net = _llama(True)
    tuning = _tuning(net)
    _train(tuning, 3)
    again = hope.deft.load(tuning.save_pretrained(tmp_path), net)
    for masked in (True, False):
        assert torch.equal(_scores(again, masked), _scores(tuning, masked))
    assert again.trainable() == tuning.trainable()
    other = _tuning(net)
    other.add_adapter("text", again)
    other.set_adapter("text")
    assert torch.equal(_scores(other, False), _scores(tuning, False))


@pytest.mark.parametrize("how", [{"free": 0.3}, {"percentile": 50.0, "sever": "absorb"}, {"grow": 0.25}])
def test_slack_before_a_frozen_head_reaches_the_outputs_and_not_the_source(how: dict[str, Any]) -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), head="frozen", **how)
    tuning = hope.deft.prepare(net, part)
    core = core_entries(tuning)
    x = images()
    with tuning.source() as model:
        source = model(x)
    train(tuning.model, torch.optim.AdamW(tuning.model.parameters(), lr=0.01, weight_decay=0.1))
    assert_core_kept(core, core_entries(tuning))
    with tuning.source() as model:
        assert torch.equal(model(x), source)
    head = tuning.model.get_submodule("12")
    reads = ~tuning.frozen["12.weight"].expand(head.weight.shape)
    assert reads.any()
    assert not reads.all()
    assert (head.weight[reads] != 0).all()
    if "grow" in how:
        assert torch.equal(source, net(x))


def test_a_tied_head_says_how_it_is_shared_and_a_frozen_one_has_no_other() -> None:
    net = _llama(True)
    with pytest.raises(NotSeparable, match=r"shares the weight .*: share it with head='frozen'"):
        hope.deft.partition(net, _text(2, 2), calibration=[_text(3)], free=0.4)
    part = hope.deft.partition(net, _text(2, 2), head="frozen", calibration=[_text(3)], free=0.4)
    with pytest.raises(hope.deft.InvalidHead, match=r"head must be None, .* frozen head, got 3: omit it"):
        hope.deft.prepare(net, part, head=3)
