"""Small networks that look trained, and what is asked of every one of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import hope
from hope.deft import Partition, Tuning
from tests.support import randomise


def chain(width: int = 12) -> nn.Module:
    """A plain chain with max-pooling, a bottleneck behind the pooling, and a head."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, 5),
    )  # fmt: skip


class Residual(nn.Module):
    """Two blocks with an identity skip, one with a projection and more channels."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.first = _Block(width, width)
        self.second = _Block(width, 2 * width)
        self.third = _Block(2 * width, 2 * width)
        self.head = nn.Linear(2 * width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = self.third(self.second(self.first(x)))
        return self.head(x.mean((2, 3)))


class _Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, 10, 3, padding=1), nn.BatchNorm2d(10)
        self.conv2, self.bn2 = nn.Conv2d(10, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)
        self.skip = nn.Identity() if before == after else nn.Sequential(
            nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + self.skip(x))


def made(net: nn.Module, seed: int = 0) -> nn.Module:
    """Numbers that look trained: BN statistics, and capacities of all sizes."""
    generator = torch.Generator().manual_seed(seed)
    randomise(net, seed)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
                module.weight.mul_(torch.empty(module.weight.shape).uniform_(0.05, 2, generator=generator))
    return net.eval()


def images(count: int = 8, seed: int = 1, size: int = 8) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def prepared(
    net: nn.Module, *, percentile: float = 50, freeze_statistics: bool = False, merge: bool = False
) -> tuple[Partition, Tuning]:
    part = hope.deft.partition(net, images(2), percentile=percentile, merge=merge)
    return part, hope.deft.prepare(net, part, head=4, freeze_statistics=freeze_statistics)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int = 4,
    accumulate: int = 1,
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
) -> None:
    """A few steps on a target task of four classes."""
    model.train()
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        for _ in range(accumulate):
            x = torch.randn(8, 3, 8, 8, generator=generator)
            y = torch.randint(4, (8,), generator=generator)
            loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def core_entries(tuning: Tuning) -> dict[str, Tensor]:
    """All frozen entries, by parameter."""
    return {
        name: p.detach()[tuning.frozen[name].expand(p.shape)].clone()
        for name, p in tuning.model.named_parameters()
        if name in tuning.frozen
    }


def slack_entries(tuning: Tuning) -> dict[str, Tensor]:
    """All entries that may move, by parameter; the head left out."""
    return {
        name: p.detach()[~tuning.frozen[name].expand(p.shape)].clone()
        for name, p in tuning.model.named_parameters()
        if name in tuning.frozen
    }


def core_signals(tuning: Tuning, part: Partition, x: Tensor, *, source: bool = True) -> dict[str, Tensor]:
    """What every core unit computes on some inputs (BN outputs, core channels only), and the logits."""
    found: dict[str, Tensor] = {}
    model = tuning.model

    def run() -> None:
        hooks = []
        for name, module in model.named_modules():
            mask = part.frozen.get(f"{name}.running_mean")
            if mask is not None:
                keep = mask.expand(module.running_mean.shape)

                def note(
                    _: nn.Module, __: object, out: Tensor, name: str = name, keep: Tensor = keep
                ) -> None:
                    found[name] = out[:, keep].clone()

                hooks.append(module.register_forward_hook(note))
        with torch.no_grad():
            out = model(x)
        if source:
            found["logits"] = out
        for hook in hooks:
            hook.remove()

    if source:
        with tuning.source():
            run()
    else:
        model.eval()
        run()
    return found


def assert_core_kept(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    assert before.keys() == after.keys()
    assert sum(value.numel() for value in before.values()) > 0
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


def assert_slack_moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    moved = [name for name, value in before.items() if value.numel() and not torch.equal(value, after[name])]
    assert any(name.endswith("weight") for name in moved)
    assert len(moved) > 2
