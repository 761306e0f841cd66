"""How large a run of the transfer experiment is, and what it tries.

`SCALES["full"]` is the paper's protocol; the others have the same shape on a narrower network, with fewer
epochs and images and a sparser grid. "small" pre-trains in a tenth of the paper's steps with ten times its L2
penalty, "medium" in a fifth with five times: the penalty is there to empty the slack, and what it takes from
a weight is rate × penalty × steps. (With the paper's penalty and so few steps there is no slack: severing a
fifth of the neurons costs most of the source.) Fine-tuning has the same penalty as pre-training, as in the
paper. "medium" is what one core does in an hour: it trains with convolutions in bfloat16, all else float32.
"vit" is a vision transformer and AdamW, on as many superclasses as the part of CIFAR-100 at hand has; EWC,
which the paper's strengths hardly hold back, is offered larger ones, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any


@dataclass(frozen=True)
class Scale:
    """How large a run is.

    Attributes:
        width: of the network.
        trials, tasks: how many, tasks within each trial.
        pretraining, tuning, sweep: epochs.
        batch: images a step.
        penalty: λ of λ‖w‖², in pre-training and fine-tuning.
        capped: target images in the sweep.
        source, target: training images at most; None for all.
        partial: files with part of the data sets will do.
        percentiles, rates, strengths: the grids; rates by method.
        half: convolutions and products of training and validation in bfloat16; tests never.
        network: "vgg-8", or "vit", which is trained with AdamW.
        superclasses: of a source task.
    """

    width: float
    trials: int
    tasks: int
    pretraining: int
    tuning: int
    sweep: int
    batch: int
    penalty: float
    capped: int
    source: int | None
    target: int | None
    partial: bool
    percentiles: tuple[float, ...]
    strengths: tuple[float, ...]
    rates: dict[str, tuple[float, ...]]
    half: bool = False
    network: str = "vgg-8"
    superclasses: int = 4


_DEFT = (0.04, 0.02, 0.01, 0.005, 0.001)
_SOME = (0.02, 0.005)
_ADAM = (0.003, 0.001, 0.0002)
_FULL = (0.02, 0.01, 0.005, 0.001, 0.0005, 0.0001)
SCALES = {
    "full": Scale(
        1.0, 4, 5, 100, 30, 30, 16, 5e-4, 1000, None, None, False,
        (60, 40, 30, 20), (0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 50.0),
        {
            "deft": _DEFT, "deft by capacity": _DEFT, "deft, statistics frozen": _DEFT,
            "deft, sum merges": _DEFT, "deft, absorbed": _DEFT, "deft, sum merges, absorbed": _DEFT,
            "head-only": (0.04, 0.02, 0.01, 0.005, 0.001, 0.0005), "full": _FULL,
            "bn-tuning": (0.01, 0.005, 0.0025, 0.001, 0.0005, 0.0001),
            "ewc": (0.01, 0.005, 0.001, 0.0005, 0.0001), "l2-sp": _FULL,
        },
    ),
    "medium": Scale(
        0.25, 3, 1, 20, 5, 4, 16, 2.5e-3, 1000, None, None, True,
        (40, 30, 20), (1.0, 50.0),
        {
            "deft": _SOME, "deft, absorbed": _SOME, "head-only": (0.04, 0.01), "full": (0.02, 0.001),
            "bn-tuning": (0.01, 0.001), "ewc": (0.01, 0.001), "l2-sp": (0.01, 0.001),
        },
        half=True,
    ),
    "small": Scale(
        0.125, 4, 1, 20, 8, 8, 32, 5e-3, 1000, None, None, True,
        (40, 30, 20), (1.0, 50.0),
        {
            "deft": _SOME, "deft by capacity": _SOME, "deft, statistics frozen": _SOME,
            "deft, sum merges": _SOME, "deft, absorbed": _SOME, "deft, sum merges, absorbed": _SOME,
            "head-only": (0.04, 0.01, 0.001), "full": (0.02, 0.001, 0.0001),
            "bn-tuning": (0.01, 0.001, 0.0001), "ewc": (0.01, 0.001, 0.0001), "l2-sp": (0.01, 0.001, 0.0001),
        },
    ),
    "vit": Scale(
        1.0, 2, 1, 10, 4, 3, 64, 0.025, 1000, None, None, True,
        (60, 40), (50.0, 500.0, 2000.0),
        {
            "deft": _ADAM[:2], "deft, absorbed": _ADAM[:2], "head-only": (0.03, 0.01, 0.001),
            "full": _ADAM, "ewc": _ADAM,
        },
        network="vit",
        superclasses=6,
    ),
}  # fmt: skip


def ablations(scale: Scale, source: int, target: int) -> dict[str, Scale]:
    """The scale with one thing changed, cheaper ones first; one task each.

    Args:
        scale: what is changed.
        source, target: how many images it trains on.
    """
    changes: dict[str, dict[str, Any]] = {
        "half the width": {"width": scale.width / 2},
        "half the target images": {"target": target // 2},
        "half the fine-tuning": {"tuning": scale.tuning // 2},
        "half the pre-training": {"pretraining": scale.pretraining // 2},
        "half the source images": {"source": source // 2},
        "three times the fine-tuning": {"tuning": 3 * scale.tuning},
        "the paper's penalty": {"penalty": SCALES["full"].penalty},
    }
    return {name: replace(scale, trials=1, tasks=1, **change) for name, change in changes.items()}


@dataclass(frozen=True)
class Point:
    """One way to fine-tune.

    Attributes:
        method: a key of `Scale.rates`.
        rate: learning rate.
        percentile: of DEFT.
        strength: of EWC and L2-SP.
    """

    method: str
    rate: float
    percentile: float = 40.0
    strength: float = 0.0

    @property
    def name(self) -> str:
        """For files."""
        method = self.method.replace(", ", "-").replace(" ", "-")
        return f"{method}-{self.rate:g}-{self.percentile:g}-{self.strength:g}"


def grid_points(scale: Scale, method: str) -> list[Point]:
    """A method's grid."""
    rates = scale.rates[method]
    if method.startswith("deft"):
        return [Point(method, rate, percentile=p) for p, rate in product(scale.percentiles, rates)]
    if method in ("ewc", "l2-sp"):
        return [Point(method, rate, strength=s) for s, rate in product(scale.strengths, rates)]
    return [Point(method, rate) for rate in rates]
