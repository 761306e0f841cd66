"""Compress a network of torchvision: `python examples/torchvision_model.py [NAME]`.

The weights here are random; for a network that can do something, load a checkpoint into `model` first.
"""

import sys

import torch

import hope

try:
    from torchvision.models import get_model
except RuntimeError:  # "operator torchvision::nms does not exist": its build does not fit this torch
    for operator in ("nms", "qnms"):  # its import wants these declared; no classifier uses them
        schema = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
        torch.library.define(f"torchvision::{operator}", schema)
    from torchvision.models import get_model


def main(name: str = "resnet18") -> None:
    """Read it, compress it once, and look at three sizes of the same run."""
    torch.manual_seed(0)
    model = get_model(name, weights=None).eval()
    example = torch.randn(1, 3, 64, 64)

    anatomy = hope.inspect(model, example)
    print(anatomy)  # what can go, and why the rest cannot

    encoding = hope.encode(model, example, params=0.4, anatomy=anatomy, evict=False)
    print(encoding)
    for share in (0.8, 0.6, 0.4):
        small = encoding.at(params=share)
        count = sum(parameter.numel() for parameter in small.parameters())
        assert type(small) is type(model)
        print(f"{share:.0%}: {count:,} parameters, answers of shape {tuple(small(example).shape)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
