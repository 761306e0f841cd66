"""Models that read texts and images: read as a whole, or refused with the part that can be compressed."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

IMAGE = 63  # a token
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TEXT: dict[str, Any] = {"vocab_size": 64, "num_key_value_heads": 2, "pad_token_id": 0, **SIZES}


def inputs(*before: int) -> dict[str, Tensor]:
    """A text with an image of four places in it."""
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(2, IMAGE, (1, 10), generator=chance)
    ids[0, 1:5] = IMAGE
    return {"input_ids": ids, "pixel_values": torch.randn(*before, 3, 16, 16, generator=chance)}


def llava() -> nn.Module:
    seen = transformers.CLIPVisionConfig(**SIZES, image_size=16, patch_size=8, projection_dim=32)
    text = transformers.LlamaConfig(**TEXT)
    config = transformers.LlavaConfig(vision_config=seen, text_config=text, image_token_index=IMAGE)
    model: nn.Module = transformers.LlavaForConditionalGeneration(config).eval()
    return model


def smolvlm() -> nn.Module:
    """It takes as many images as are not empty."""
    config = transformers.SmolVLMConfig(
        vision_config={**SIZES, "image_size": 16, "patch_size": 4},
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        scale_factor=2,
        pad_token_id=0,
    )
    model: nn.Module = transformers.SmolVLMForConditionalGeneration(config).eval()
    return model


def test_a_llava_is_compressed_as_a_whole() -> None:
    model, x = llava(), inputs(1)
    encoding = hope.encode(model, x, params=0.9, method="l1-in", progress=False)
    parts = {layer.name.split(".")[1] for layer in encoding.anatomy.layers}
    assert parts == {"vision_tower", "multi_modal_projector", "language_model"}
    assert encoding.model(**x).logits.shape == (1, 10, 64)


def test_a_model_that_picks_images_by_their_values_is_refused_with_its_language_model() -> None:
    model, x = smolvlm(), inputs(1, 1)
    with pytest.raises(hope.UnsupportedModel, match="got index, the size of whose result") as caught:
        hope.inspect(model, x)
    assert "model.model.text_model = hope.encode(model.model.text_model, x, ...).model" in str(caught.value)
    assert "experts" not in str(caught.value)
    part = attrgetter("model.text_model")(model)
    call = {"inputs_embeds": torch.randn(1, 10, 32), "use_cache": False}
    model.model.text_model = hope.encode(part, call, params=0.9, method="l1-in").model  # type: ignore[union-attr]
    assert model(**x).logits.shape == (1, 10, 64)


def test_only_mixtures_of_experts_are_told_to_be_unstacked() -> None:
    torch.manual_seed(0)
    mixture = transformers.MixtralForCausalLM(transformers.MixtralConfig(**TEXT, num_local_experts=4)).eval()
    mixture.set_experts_implementation("eager")  # a loop over the experts that were chosen
    with pytest.raises(hope.UnsupportedModel, match=r"hope\.unstack_experts\(model\)"):
        hope.inspect(mixture, {"input_ids": inputs(1)["input_ids"] % 60})


def test_the_sum_of_a_number_is_read() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.down(torch.relu(self.up(x)))
            return y * y.sum().amax(0) * x.sum().sum(-1)

    assert [layer.name for layer in hope.inspect(Net(), torch.randn(2, 4)).layers] == ["up"]
