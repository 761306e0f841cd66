"""Channels of streams that are read through a LayerNorm or RMSNorm."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hope
from hope._util.tensors import get, owner
from hope.structure.anatomy import Anatomy
from hope.structure.sizes import sizes
from tests.support import assert_same, backward, masked, random_cut, run

timm = pytest.importorskip("timm", reason="timm is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = {"input_ids": torch.randint(2, 64, (2, 9), generator=torch.Generator().manual_seed(1))}
SEEN = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(2))
PICTURE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}


class Attention(nn.Module):
    """Two heads of four channels, whatever the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 24), nn.Linear(8, width), 2

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        said: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return said


class Written(nn.Module):
    """An RMSNorm that is written out in another way."""

    eps = 1e-6

    def __init__(self, width: int, divides: bool) -> None:
        super().__init__()
        self.weight, self.divides = nn.Parameter(torch.ones(width)), divides

    def forward(self, x: Tensor) -> Tensor:
        size = (x * x).mean(-1, keepdim=True) + self.eps
        return (x / size.sqrt() if self.divides else x * size.rsqrt()) * self.weight


class Block(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self, norm: Callable[[int], nn.Module], width: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = norm(width), norm(width), Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 20), nn.GELU(), nn.Linear(20, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Reading(nn.Module):
    """A linear embedding, learnt places, two blocks, a norm, and a head that reads the mean over places."""

    def __init__(self, norm: Callable[[int], nn.Module], width: int = 12) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(6, width), nn.Parameter(torch.randn(7, width))
        self.blocks = nn.Sequential(Block(norm, width), Block(norm, width))
        self.norm, self.head = norm(width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.blocks(self.embed(x) + self.place)).mean(1))
        return scores


class Merging(Reading):
    """Pairs of places are read as one, so that each channel stands twice in the last norm."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.embed(x) + self.place)
        scores: Tensor = self.head(self.norm(torch.cat([y[:, :-1:2], y[:, 1::2]], dim=-1)))
        return scores


def causal(name: str, **more: Any) -> nn.Module:
    sizes = {**SIZES, **more}
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes))


def llama(**more: Any) -> nn.Module:
    return causal("Llama", **more)


def gpt2() -> nn.Module:
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 3, "eos_token_id": 1}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, tie_word_embeddings=False)
    )


def vit(**more: Any) -> nn.Module:
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    return timm.models.VisionTransformer(**{**sizes, **more})


def bert() -> nn.Module:
    sizes = {name: SIZES[name] for name in SIZES if not name.startswith(("tie", "num_key"))}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))


def convnext() -> nn.Module:
    return timm.models.ConvNeXt(depths=(1, 1, 1, 1), dims=(12, 16, 16, 20), num_classes=5, patch_size=2)


NETS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "llama": (llama, TOKENS),
    "qwen3": (lambda: causal("Qwen3", head_dim=8), TOKENS),
    "olmo2": (lambda: causal("Olmo2"), TOKENS),
    "phi": (lambda: causal("Phi"), TOKENS),
    "neox": (lambda: causal("GPTNeoX"), TOKENS),
    "opt": (lambda: causal("OPT", ffn_dim=48, word_embed_proj_dim=32), TOKENS),
    "gpt2": (gpt2, TOKENS),
    "bert": (bert, TOKENS),
    "layer norm": (lambda: Reading(nn.LayerNorm), SEEN),
    "rms norm": (lambda: Reading(nn.RMSNorm), SEEN),
    "products": (lambda: Reading(lambda width: Written(width, False)), SEEN),
    "quotients": (lambda: Reading(lambda width: Written(width, True)), SEEN),
    "merging": (Merging, SEEN),
    "vit": (vit, PICTURE),
    "convnext": (convnext, PICTURE.repeat(1, 1, 2, 2)),
}


TOLERANCE = dict.fromkeys(("llama", "qwen3", "olmo2"), 1e-6)  # their norms compute in float32


def doubled(example: Any) -> Any:
    return example.double() if isinstance(example, Tensor) else example


def made(kind: str, double: bool = True) -> tuple[nn.Module, Any, Anatomy]:
    """A network with weights that tell channels apart, its example, and its anatomy."""
    build, example = NETS[kind]
    torch.manual_seed(0)
    net = build().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.1))
    net, example = (net.double(), doubled(example)) if double else (net, example)
    return net, example, hope.inspect(net, example, streams=True)


def streams_of(anatomy: Anatomy) -> list[Any]:
    return [unit for unit in anatomy.streams if unit.open]


@pytest.mark.parametrize("kind", NETS)
def test_channels_that_go_are_silent_and_norms_run_over_what_is_left(kind: str) -> None:
    net, example, anatomy = made(kind)
    names = [unit.name for unit in streams_of(anatomy)]
    assert names
    before = copy.deepcopy(net.state_dict())
    for seed in range(2):
        cut = random_cut(anatomy, 0.4, seed)
        for actions in (cut, [one for one in cut if one.name in names]):
            small = hope.cut(net, anatomy, actions)
            assert_same(
                run(small, example), run(masked(net, anatomy, actions), example), TOLERANCE.get(kind, 1e-9)
            )
            assert sizes(anatomy, actions)[-1, 1] == sum(p.numel() for p in small.parameters())
            backward(copy.deepcopy(small), example)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def batches_of(kind: str) -> list[Any]:
    torch.manual_seed(5)
    _, example = NETS[kind]
    if isinstance(example, Tensor):
        return [torch.randn(24, *example.shape[1:]) for _ in range(2)]
    return [{"input_ids": torch.randint(2, 64, (16, 9))} for _ in range(2)]


@pytest.mark.parametrize("refit", [False, True])
@pytest.mark.parametrize("kind", ["llama", "layer norm", "vit"])
def test_a_run_removes_channels_and_can_be_had_back(kind: str, refit: bool, tmp_path: Path) -> None:
    net, example, anatomy = made(kind, double=False)
    method = hope.Absorb(calibration=batches_of(kind), refit=refit)
    given: dict[str, Any] = {"method": method, "streams": True, "evict": False, "anatomy": anatomy}
    encoding = hope.encode(net, example, density=0.15, **given)
    (name,) = [unit.name for unit in streams_of(anatomy)]
    assert sum(step.name == name for step in encoding.trajectory.steps[: encoding.steps]) > 1
    assert encoding.size.parameters == sum(p.numel() for p in encoding.model.parameters())
    encoding.save(tmp_path / "run")
    fresh = NETS[kind][0]()
    assert_same(run(hope.load(tmp_path / "run", fresh).eval(), example), run(encoding.model, example), 1e-5)
    if not refit:
        again = hope.load(tmp_path / "run", net, params=0.6).eval()
        assert_same(run(again, example), run(encoding.at(params=0.6), example), 1e-5)


@pytest.mark.parametrize("method", ["l1-joint", "random"])
def test_scores_remove_channels_as_silence_does(method: str) -> None:
    net, example, anatomy = made("layer norm")
    encoding = hope.encode(net, example, params=0.5, method=method, streams=True, anatomy=anatomy)
    steps = encoding.trajectory.steps[: encoding.steps]
    gone: dict[str, list[int]] = {}
    for step in steps:
        gone.setdefault(step.name, []).extend(step.removed)
    assert {unit.name for unit in streams_of(anatomy)} <= gone.keys()
    actions = [hope.Prune(name, some) for name, some in gone.items()]
    assert_same(run(encoding.model, example), run(masked(net, anatomy, actions), example), 1e-9)


@pytest.mark.parametrize("kind", ["layer norm", "rms norm", "llama"])
def test_norms_keep_what_is_left_as_loud_as_it_was(kind: str) -> None:
    net, example, anatomy = made(kind)
    batches = [doubled(batch) for batch in batches_of(kind)]
    (unit,) = streams_of(anatomy)
    method = hope.Absorb(calibration=batches, refit=False)
    encoding = hope.encode(net, example, density=0.3, method=method, streams=True, anatomy=anatomy)
    steps = [step for step in encoding.trajectory if step.name == unit.name][: unit.neurons // 3]
    small = hope.cut(
        net, anatomy, steps, input_statistics=encoding.input_statistics, rewrite=encoding.method.rewrite
    )
    gone = {neuron for step in steps for neuron in step.removed}
    kept = [neuron for neuron in range(unit.neurons) if neuron not in gone]
    heard: dict[str, list[Tensor]] = {}
    watched, norms = copy.deepcopy(net), [part.tensor for part in unit.places if part.role == "norm"]
    for name in norms:
        module, _ = owner(watched, name)
        module.register_forward_hook(
            lambda _, args, out, name=name: heard.setdefault(name, []).append(args[0])
        )  # type: ignore[misc]
    for batch in batches:
        run(watched, batch)
    read = norms if kind == "llama" else norms[:-1]  # a mean stands between the last one and the head
    for name in read:
        x = torch.cat(heard[name]).flatten(0, -2)
        x = x - x.mean(-1, keepdim=True) if kind == "layer norm" else x
        part = (x[:, kept].square().sum(-1) / x.square().sum(-1)).mean()
        wanted = get(net, name)[kept] * (part * unit.neurons / len(kept)).sqrt()
        torch.testing.assert_close(get(small, name), wanted, rtol=1e-3, atol=0)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_what_a_channel_says_is_taken_over_behind_the_norm(norm: Callable[[int], nn.Module]) -> None:
    net, example = Reading(norm, 24).double().eval(), SEEN.double()
    anatomy = hope.inspect(net, example, streams=True)
    (unit,) = streams_of(anatomy)
    tensors = dict(net.named_parameters())
    with torch.no_grad():
        for part in unit.places:
            if part.role != "in":
                tensor = tensors[part.tensor].movedim(part.dim, 0)
                tensor[int(part.index[5, 0])] = tensor[int(part.index[2, 0])]
    batches = [doubled(batch) for batch in batches_of("layer norm")]
    method = hope.Absorb(calibration=batches, refit=False)
    encoding = hope.encode(net, example, density=0.3, method=method, streams=True, evict=False)
    first = next(step for step in encoding.trajectory if step.name == unit.name)
    assert first.removed[0] in (2, 5)
    small = hope.cut(
        net, anatomy, [first], input_statistics=encoding.input_statistics, rewrite=encoding.method.rewrite
    )
    pruned = hope.cut(net, anatomy, [hope.Prune(unit.name, first.removed)])
    seen = torch.cat(batches)
    with torch.no_grad():
        errors = [float((one(seen) - net(seen)).square().mean()) for one in (small, pruned)]
    assert errors[0] < 0.2 * errors[1]


def test_what_stands_in_the_way_is_reported() -> None:
    tied = hope.inspect(llama(tie_word_embeddings=True).eval(), TOKENS, streams=True)
    assert not streams_of(tied)
    words = {str(one.reason) for one in tied.skipped if one.name.endswith("o_proj")}
    assert words == {"its weight is shared by model.embed_tokens.weight and lm_head.weight"}
    bare = hope.inspect(
        Reading(lambda width: nn.LayerNorm(width, elementwise_affine=False)).eval(), SEEN, streams=True
    )
    assert not streams_of(bare)
    assert {one.reason.cause for one in bare.skipped if one.name == "embed"} == {hope.Cause.NORMALISED}
    chain = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    (first, _) = hope.inspect(chain, SEEN, streams=True).skipped
    assert (first.name, first.reason.cause) == ("0", hope.Cause.NORMALISED)
    numbered = hope.inspect(Numbered(nn.LayerNorm).eval(), SEEN, streams=True)
    assert not streams_of(numbered)
    assert [one.reason.cause for one in numbered.skipped if one.name == "embed"] == [hope.Cause.FIXED_WIDTH]


class Numbered(Reading):
    """Its width is written down in its code."""

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm(self.blocks(self.embed(x) + self.place))
        scores: Tensor = self.head(read.reshape(-1, 7, 12).mean(1))
        return scores


def test_norms_that_convert_are_followed() -> None:
    assert streams_of(hope.inspect(llama().bfloat16().eval(), TOKENS, streams=True))


def test_without_streams_norms_hold_them_fast() -> None:
    net, example, anatomy = made("rms norm", double=False)
    closed = hope.inspect(net, example)
    assert not streams_of(closed)
    assert {one.reason.cause for one in closed.skipped if one.name == "embed"} == {hope.Cause.NORMALISED}
    assert not any(part.role == "norm" for unit in closed.units for part in unit.places)
    (stream,) = streams_of(anatomy)
    assert stream.mixed is not None  # core and slack of such a stream cannot be distinguished
    assert stream.mixed.cause is hope.Cause.NORMALISED
