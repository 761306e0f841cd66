"""A machine whose times are known: no test looks at a clock."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil, prod
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from hope.latency.stopwatch import Point, Stopwatch, batched

MACHINE = {"cpu": "Abacus", "cores": 1, "system": "Wood", "torch": "2"}
EACH = 100.0  # nanoseconds of any operator


class Fake:
    """What was measured, and how long it took.

    Args:
        block: widths count up to a multiple of this.
    """

    def __init__(self, block: int = 1) -> None:
        self.block = block
        self.points: list[Point] = []
        self.networks = 0
        self.integers = 1.0  # of the time with floats, that integer kernels take

    def up(self, width: int) -> int:
        return ceil(width / self.block) * self.block

    def operator(self, point: Point) -> float:
        operator, width = point
        reads, writes, groups = operator.channels(width)
        self.points.append(point)
        return EACH + prod(operator.over) * prod(operator.kernel) * reads * self.up(writes) / groups

    def network(self, model: nn.Module, example: Any, batch: int) -> float:
        total = [0.0]

        def add(module: Any, _: Any, out: Tensor) -> None:
            weight = module.weight
            each = prod(weight.shape[1:]) * out.numel() / out.shape[1]
            total[0] += EACH + each * self.up(out.shape[1])

        hooks = [
            one.register_forward_hook(add)
            for one in model.modules()
            if isinstance(one, (nn.Conv2d, nn.Linear))
        ]
        with torch.no_grad():
            model.eval()(batched(example, batch))
        for hook in hooks:
            hook.remove()
        self.networks += 1
        return total[0]


@contextmanager
def faked(block: int = 1, machine: dict[str, Any] | None = None, folder: str = "") -> Iterator[Fake]:
    """Measure with a fake, and keep what it says in a folder of its own."""
    fake = Fake(block)

    def operators(_: Stopwatch, points: Sequence[Point]) -> list[float]:
        return [fake.operator(point) for point in points]

    def networks(
        self: Stopwatch, models: Sequence[nn.Module], example: Any, integers: Sequence[Any] = ()
    ) -> list[float]:
        every = zip(models, integers or [None] * len(models), strict=True)
        return [
            fake.network(model, example, self.batch) * (1 if some is None else fake.integers)
            for model, some in every
        ]

    with ExitStack() as stack:
        cache = folder or stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(patch.dict("os.environ", {"HOPE_CACHE": cache}))
        stack.enter_context(patch.object(Stopwatch, "operators", operators))
        stack.enter_context(patch.object(Stopwatch, "networks", networks))
        for where in ("hope.latency.cache.machine", "hope.pipeline.machine"):
            stack.enter_context(patch(where, lambda _: machine or MACHINE))
        yield fake
