"""Tell the package about an operator of your own: `python examples/register_operator.py`."""

from typing import Any

import torch

import hope


@torch.library.custom_op("example::soft", mutates_args=())
def soft(x: torch.Tensor) -> torch.Tensor:
    """An activation that nobody else has."""
    return torch.nn.functional.softshrink(x, 0.1)


def _keep(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(output)


def _back(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * (ctx.saved_tensors[0] != 0)


soft.register_fake(torch.empty_like)
soft.register_autograd(_back, setup_context=_keep)  # the predicted fidelity takes gradients


class Net(torch.nn.Module):
    """Two convolutions with the operator between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16)
        self.second, self.after = torch.nn.Conv2d(16, 8, 3, padding=1), torch.nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With the operator behind the first BN."""
        return self.after(self.second(soft(self.norm(self.first(x)))))


def main() -> None:
    """Before, the operator holds fast what it reads; then it is known, and its moments are followed."""
    torch.manual_seed(0)
    model, example = Net().eval(), torch.randn(1, 3, 8, 8)
    before = hope.inspect(model, example)
    print(*(f"{one.name}: {one.reason}" for one in before.skipped), sep="\n")
    assert not before.layers

    entry = hope.ops.Activation(lambda x: torch.nn.functional.softshrink(x, 0.1))
    with hope.ops.register("example::soft", operator=entry):  # without `with` it stays registered
        encoding = hope.encode(model, example, density=0.5)
    print(encoding)
    assert encoding.model.first.out_channels == 8


if __name__ == "__main__":
    main()
