"""Networks that nobody here wrote: one list for tests and for the coverage sweep.

All of torchvision's classification models, one small model of each of many timm families, and a few from
transformers. Weights are random, images as small as the architecture permits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.operators import declare_missing_operators
from hope.rewrite.experts import unstack_experts

declare_missing_operators()

import timm  # noqa: E402
import torchvision  # noqa: E402

WORDS = 64  # in the vocabularies of language models


@dataclass(frozen=True)
class Entry:
    """One network of the zoo.

    Attributes:
        source: "torchvision", "timm" or "transformers".
        name: what the source calls it.
        pixels: height and width of the images it is tried on.
        batch: how many images.
        options: further arguments for building it.
        double: compute in double precision, where random weights make single precision meaningless.
        reads: what a network of transformers takes: "pixel_values", or names of inputs joined by "+".
    """

    source: str
    name: str
    pixels: int = 64
    batch: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    double: bool = False
    reads: str = "pixel_values"

    @property
    def key(self) -> str:
        """A name that is unique in the zoo."""
        return f"{self.source}/{self.name}"

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and images."""
        return torch.float64 if self.double else torch.float32

    def build(self, seed: int = 0) -> nn.Module:
        """The network with random weights, in evaluation mode."""
        torch.manual_seed(seed)
        return _BUILDERS[self.source](self.name, dict(self.options)).to(self.dtype).eval()

    def example(self) -> Tensor | dict[str, Tensor]:
        """Random images, in the form that the network takes."""
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(self.batch, 3, self.pixels, self.pixels, generator=generator).to(self.dtype)
        tokens = torch.randint(2, WORDS, (self.batch, 12), generator=generator)
        sounds = torch.randn(self.batch, 16, 64, generator=generator).to(self.dtype)
        known = {"pixel_values": images, "input_features": sounds}
        names = self.reads.split("+")
        return {name: known.get(name, tokens) for name in names} if self.source == "transformers" else images


def _torchvision(name: str, options: dict[str, Any]) -> nn.Module:
    model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return model


def _timm(name: str, options: dict[str, Any]) -> nn.Module:
    return timm.create_model(name, pretrained=False, **options)


def _transformers(name: str, options: dict[str, Any]) -> nn.Module:
    import transformers

    model_class = getattr(transformers, name)
    model: nn.Module = model_class(model_class.config_class(**options))
    return unstack_experts(model) if "num_local_experts" in options else model


_BUILDERS = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}


_TORCHVISION: dict[str, dict[str, Any]] = {
    "googlenet": {"options": {"init_weights": False}},
    "inception_v3": {
        "pixels": 299,
        "options": {"init_weights": False},
    },  # less is not enough for its training-only head
    "maxvit_t": {"pixels": 224},  # its windows of 7 need multiples of 224
    "vit_b_16": {"options": {"image_size": 64}},
    "vit_b_32": {"options": {"image_size": 64}},
    "vit_h_14": {"pixels": 42, "batch": 1, "options": {"image_size": 42}},
    "vit_l_16": {"pixels": 48, "batch": 1, "options": {"image_size": 48}},
    "vit_l_32": {"batch": 1, "options": {"image_size": 64}},
}

_TIMM: dict[str, dict[str, Any]] = {
    # residual networks
    "resnet26d": {},
    "resnet50_gn": {},
    "resnetv2_18": {},
    "resnetv2_50x1_bit": {},
    "resnext50_32x4d": {},
    "seresnet18": {},
    "legacy_seresnet18": {},
    "ecaresnet26t": {},
    "skresnet18": {},
    "resnest14d": {},
    "res2net50_26w_4s": {},
    "resnetblur18": {},
    "resnet50_clip": {"pixels": 224},
    "gcresnext26ts": {},
    "tresnet_m": {},
    "nf_resnet26": {},
    "eca_nfnet_l0": {},
    "wide_resnet50_2": {},
    # regular, searched and mobile networks
    "regnetx_002": {},
    "regnety_002": {},
    "regnetz_005": {},
    "efficientnet_b0": {},
    "efficientnet_es": {},
    "efficientnet_cc_b0_4e": {},
    "efficientnetv2_rw_t": {"double": True},
    "tf_efficientnet_lite0": {},
    "mobilenetv1_100": {},
    "mobilenetv2_050": {},
    "mobilenetv3_small_050": {},
    "mobilenetv4_conv_small_050": {},
    "mobilenetv4_hybrid_medium": {},
    "mnasnet_small": {},
    "semnasnet_075": {},
    "fbnetc_100": {},
    "fbnetv3_b": {},
    "spnasnet_100": {},
    "ghostnet_050": {},
    "ghostnetv2_100": {},
    "ghostnetv3_050": {},
    "repghostnet_050": {},
    "tinynet_e": {},
    "lcnet_035": {},
    "lcnetv2_small": {},
    "hardcorenas_a": {},
    "mixnet_s": {},
    "rexnet_100": {},
    "gernet_s": {},
    "repvgg_a0": {},
    "mobileone_s0": {},
    "starnet_s050": {},
    "fasternet_t0": {},
    # dense, split and parallel networks
    "densenet121": {},
    "densenetblur121d": {},
    "rdnet_tiny": {},
    "dla34": {},
    "dla60_res2net": {},
    "dpn48b": {},
    "hrnet_w18_small": {},
    "inception_v3": {"pixels": 96},
    "inception_v4": {"pixels": 96},
    "inception_resnet_v2": {"pixels": 96},
    "inception_next_atto": {},
    "legacy_xception": {},
    "xception41": {},
    "nasnetalarge": {"pixels": 96},
    "pnasnet5large": {"pixels": 96},
    "vgg11_bn": {},
    "cspresnet50": {},
    "cspdarknet53": {},
    "cs3darknet_s": {},
    "darknet17": {},
    "selecsls42b": {},
    "vovnet39a": {},
    "ese_vovnet19b_slim": {},
    "hgnet_tiny": {},
    "hgnetv2_b0": {},
    # convolutions laid out like a transformer
    "convnext_atto": {},
    "convnextv2_atto": {},
    "convmixer_768_32": {},
    "poolformer_s12": {},
    "poolformerv2_s12": {},
    "convformer_s18": {},
    "mambaout_femto": {},
    "focalnet_tiny_srf": {},
    "repvit_m0_9": {},
    # perceptrons over patches
    "mixer_s32_224": {"options": {"img_size": 64}},
    "resmlp_12_224": {"options": {"img_size": 64}},
    "gmlp_ti16_224": {"options": {"img_size": 64}},
    "sequencer2d_s": {"options": {"img_size": 64}},
    # transformers
    "vit_tiny_patch16_224": {"options": {"img_size": 64}},
    "vit_small_r26_s32_224": {"options": {"img_size": 64}},
    "vit_relpos_small_patch16_224": {"options": {"img_size": 64}},
    "deit_tiny_distilled_patch16_224": {"options": {"img_size": 64}},
    "deit3_small_patch16_224": {"options": {"img_size": 64}},
    "beit_base_patch16_224": {"options": {"img_size": 64}},
    "eva02_tiny_patch14_224": {"pixels": 56, "options": {"img_size": 56}},
    "samvit_base_patch16_224": {"options": {"img_size": 64}},
    "cait_xxs24_224": {"options": {"img_size": 64}},
    "xcit_nano_12_p16_224": {},
    "volo_d1_224": {"options": {"img_size": 64}},
    "crossvit_tiny_240": {"pixels": 240},
    "tnt_s_patch16_224": {"options": {"img_size": 64}},
    "pit_ti_224": {"options": {"img_size": 64}},
    "convit_tiny": {"options": {"img_size": 64}},
    "swin_tiny_patch4_window7_224": {"pixels": 224},
    "swinv2_tiny_window8_256": {"pixels": 64, "options": {"img_size": 64}},
    "swinv2_cr_tiny_224": {"pixels": 64, "options": {"img_size": 64}},
    "twins_pcpvt_small": {"options": {"img_size": 64}},
    "twins_svt_small": {"options": {"img_size": 64}},
    "pvt_v2_b0": {},
    "hiera_tiny_224": {"pixels": 224},
    "mvitv2_tiny": {"options": {"img_size": 64}},
    "nest_tiny": {"pixels": 224},
    "gcvit_xxtiny": {"pixels": 224},
    "davit_tiny": {},
    "caformer_s18": {},
    "vitamin_small_224": {"options": {"img_size": 64}},
    # convolutions and attention
    "edgenext_xx_small": {},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "coatnet_pico_rw_224": {"pixels": 224},
    "coatnext_nano_rw_224": {"pixels": 224},
    "maxvit_pico_rw_256": {"pixels": 256},
    "coat_lite_tiny": {"options": {"img_size": 64}},
    "levit_128s": {"options": {"img_size": 64}},
    "levit_conv_128s": {"options": {"img_size": 64}},
    "efficientformer_l1": {"pixels": 224},
    "efficientformerv2_s0": {"pixels": 224},
    "efficientvit_b0": {},
    "efficientvit_m0": {"options": {"img_size": 64}},
    "fastvit_t8": {},
    "visformer_tiny": {"double": True, "options": {"img_size": 64}},
    "nextvit_small": {},
    "shvit_s1": {},
    "swiftformer_xs": {},
    "tiny_vit_5m_224": {"pixels": 224},
    "botnet26t_256": {"pixels": 256},
    "halonet26t": {"pixels": 256},
    "lambda_resnet26t": {},
}

_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "ResNetForImageClassification": {"options": {"num_labels": 10}},
    "RegNetForImageClassification": {
        "options": {"hidden_sizes": [32, 64, 96, 128], "depths": [1, 2, 3, 1], "groups_width": 16}
    },
    "MobileNetV2ForImageClassification": {"options": {}},
    "ConvNextForImageClassification": {
        "options": {"hidden_sizes": [32, 64, 96, 128], "depths": [2, 2, 3, 2], "num_labels": 10}
    },
}

_DECODER: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 1,
}  # fmt: skip
_GROUPED: dict[str, Any] = {**_DECODER, "num_key_value_heads": 2}
_WIDE: dict[str, Any] = {**_GROUPED, "head_dim": 16}
_T5: dict[str, Any] = {
    "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 64, "patch_size": 16,
}  # fmt: skip
_CLIP: dict[str, Any] = {
    "text_config": _DECODER, "vision_config": _VISION, "projection_dim": 16,
}  # fmt: skip
_WHISPER: dict[str, Any] = {
    "vocab_size": WORDS, "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_source_positions": 32, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 1, "decoder_start_token_id": 1,
}  # fmt: skip
_SWIN: dict[str, Any] = {
    "image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
    "window_size": 4, "num_labels": 10,
}  # fmt: skip

_TRANSFORMERS |= {
    name: {"options": options, "reads": "input_ids"}
    for name, options in {
        "LlamaForCausalLM": _GROUPED,
        "MistralForCausalLM": _GROUPED,
        "Qwen2ForCausalLM": _GROUPED,
        "Qwen3ForCausalLM": _WIDE,
        "Gemma3ForCausalLM": _WIDE,
        "Phi3ForCausalLM": _GROUPED,
        "MixtralForCausalLM": {**_GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2},
        "GPT2LMHeadModel": {
            "vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
            "bos_token_id": 1, "eos_token_id": 1,
        },
        "GPTNeoXForCausalLM": _DECODER,
        "OPTForCausalLM": {**_DECODER, "ffn_dim": 48, "word_embed_proj_dim": 32},
        "BertModel": _DECODER,
        "RobertaModel": _DECODER,
        "T5EncoderModel": _T5,
    }.items()
}  # fmt: skip
_TRANSFORMERS |= {
    "T5ForConditionalGeneration": {"options": _T5, "reads": "input_ids+decoder_input_ids"},
    "ViTForImageClassification": {"options": {**_VISION, "num_labels": 10}},
    "DeiTForImageClassification": {"options": {**_VISION, "num_labels": 10}},
    "SwinForImageClassification": {"options": _SWIN},
    "CLIPModel": {"options": _CLIP, "reads": "input_ids+pixel_values"},
    "WhisperForConditionalGeneration": {
        "options": _WHISPER, "reads": "input_features+decoder_input_ids",
    },
}  # fmt: skip


def zoo() -> list[Entry]:
    """Every network, in a fixed order."""
    names = torchvision.models.list_models(module=torchvision.models)
    return [
        *(Entry("torchvision", name, **_TORCHVISION.get(name, {})) for name in names),
        *(Entry("timm", name, **known) for name, known in _TIMM.items()),
        *(Entry("transformers", name, **known) for name, known in _TRANSFORMERS.items()),
    ]


def find(key: str) -> Entry:
    """The network of that key."""
    return next(entry for entry in zoo() if entry.key == key)
