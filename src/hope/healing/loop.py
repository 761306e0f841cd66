"""The loop of healing: Adam on the small network's weights; the best state by held-out fidelity is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hope._util.tensors import get
from hope.geometry.rounding import nearest
from hope.healing.distillation import Distillation
from hope.healing.inputs import Inputs, batch_size
from hope.healing.processes import Processes
from hope.rewrite.refit_checkpoint import Fitted

RATE = 0.02  # of a weight's root mean square, that a step changes it by at most
SMALLEST = 0.1  # root mean square that biases and scales count as, at least
WARMUP = 0.05  # of the budget
CHECKS = 40  # evaluations on the held-out inputs
PATIENCE = 20  # evaluations without a gain
DIVERGED = 1.25  # times the start's distance from the original: back to the best state, at half the rate


@dataclass(frozen=True)
class Duration:
    """How long to heal: steps, or seconds."""

    steps: int = 0
    seconds: float = 0.0

    def share(self, steps: int, seconds: float) -> float:
        """What part of it is used."""
        return steps / self.steps if self.steps else seconds / self.seconds


@dataclass
class TrainingState:
    """What a loop has come to, besides weights."""

    steps: int = 0
    seconds: float = 0.0
    checks: int = 0
    before: float = 0.0
    best: float = 0.0
    best_check: int = 0
    rate: float = 1.0  # halved where training diverges

    def numbers(self) -> list[float]:
        """As plain numbers, for a file."""
        return [float(value) for value in vars(self).values()]


@dataclass
class Loop:
    """A small network that is trained in place.

    Attributes:
        weights: name -> what the optimizer changes: a parameter of the network, or a copy in float32 of one
            that is of lower precision or on a grid.
        grids: name -> bits, group and scales of rounded weights.
    """

    small: nn.Module
    distillation: Distillation
    train: Inputs
    held: Inputs
    budget: Duration
    weights: dict[str, Tensor]
    grids: Mapping[str, tuple[int, int, Tensor]]
    augment: bool = True
    file: Fitted | None = None
    state: TrainingState = field(default_factory=TrainingState)
    stopped: str = ""
    interrupted: bool = False
    processes: Processes = field(default_factory=Processes)

    def __post_init__(self) -> None:
        self._device = next(iter(self.weights.values())).device
        self.size = batch_size(self.train, self.distillation.outputs)
        self._sizes = [_root_mean_square(one) for one in self.weights.values()]
        groups = [{"params": [one], "lr": 0.0} for one in self.weights.values()]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99), foreach=False)
        self.best = {name: one.detach().clone() for name, one in self.weights.items()}
        self._evaluate = self.distillation.evaluation(self.held, self.size, self._device)

    def run(self, show: Callable[[float], None]) -> None:
        """Train until the budget is used, or nothing is gained any more."""
        self.state.before, self.distillation.scales = self._evaluate(scales=True)
        self.state.best = self.state.before
        if not any(value > 0 for value in self.distillation.scales.values()):
            self.stopped = "both networks give the same answers already"
            return
        self._resume()
        started = time.monotonic() - self.state.seconds
        try:
            while not self.stopped:
                share = self.processes.first(self.budget.share(self.state.steps, self.state.seconds))
                show(min(share, 1.0))
                if share * CHECKS >= self.state.checks + 1 or share >= 1:
                    self._check(share)
                if share >= 1 or self.stopped:
                    break
                self._step(share)
                self.state.seconds = time.monotonic() - started
        except KeyboardInterrupt:
            self.interrupted, self.stopped = True, f"it was interrupted after {self.state.steps} steps"
            if self.file is not None:
                self.file.write()
        self._load(self.best)

    def _step(self, share: float) -> None:
        """One step; a loss that is not finite stops the loop."""
        number = self.state.steps
        generator = torch.Generator().manual_seed(number)
        batch = self.train.taken(self._places(number))
        if self.augment:
            batch = batch.augmented(generator)
        batch = self.processes.part(batch)
        terms = self.distillation.terms(batch.on(self._device))
        loss = self.distillation.loss(terms)
        if not self.processes.all(bool(loss.detach().isfinite())):
            worst = next((name for name, term in terms.items() if not bool(term.isfinite())), "the loss")
            self.stopped = f"at step {number} the loss was not finite ({worst})"
            return
        self.optimizer.zero_grad()
        parameters = [get(self.small, name) for name in self.weights]
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        for weight, gradient in zip(self.weights.values(), found, strict=True):
            weight.grad = None if gradient is None else gradient.to(weight).contiguous()
        self.processes.average([one.grad for one in self.weights.values() if one.grad is not None])
        factor = min(1.0, (share + 1e-3) / WARMUP) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
        for group, size in zip(self.optimizer.param_groups, self._sizes, strict=True):
            group["lr"] = RATE * self.state.rate * size * factor
        self.optimizer.step()
        self._load(self.weights)
        self.state.steps += 1

    def _places(self, number: int) -> Tensor:
        """The inputs of a step: every input is used once before one is used again."""
        per_pass = max(1, len(self.train) // self.size)
        generator = torch.Generator().manual_seed(1000003 + number // per_pass)
        order = torch.randperm(len(self.train), generator=generator)
        return order[number % per_pass * self.size :][: self.size]

    @torch.no_grad()
    def _load(self, weights: Mapping[str, Tensor]) -> None:
        """Give the network these weights, rounded where they are on a grid."""
        for name, value in weights.items():
            target = get(self.small, name)
            if name in self.grids:
                bits, group, scale = self.grids[name]
                value = nearest(value.flatten(1), scale, bits, group).reshape(value.shape)
            if target.data_ptr() != value.data_ptr():
                target.copy_(value)

    def _check(self, share: float) -> None:
        """Evaluate; keep the state if it is the best."""
        state = self.state
        state.checks = int(share * CHECKS)
        fidelity, _ = self._evaluate()
        if fidelity > state.best:
            state.best, state.best_check = fidelity, state.checks
            self.best = {name: one.detach().clone() for name, one in self.weights.items()}
        elif 1 - fidelity > DIVERGED * (1 - state.before):
            state.rate /= 2
            for name, one in self.weights.items():
                one.data.copy_(self.best[name])
            self._load(self.weights)
        if state.checks - state.best_check >= PATIENCE:
            self.stopped = "nothing was gained in the last steps, over half of the budget"
        if self.file is not None and self.processes.rank == 0:
            self.file.note(self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        """Everything that going on needs."""
        found = {"state": torch.tensor(self.state.numbers(), dtype=torch.float64)}
        for name, weight in self.weights.items():
            moments = self.optimizer.state.get(weight, {})
            found |= {f"weight {name}": weight, f"best {name}": self.best[name]}
            found |= {f"{key} {name}": value for key, value in moments.items()}
        return found

    @torch.no_grad()
    def _resume(self) -> None:
        """Take up what an earlier attempt has come to."""
        known = self.file.tensors if self.file is not None else {}
        if "state" not in known:
            return
        for key, value in zip(vars(self.state), known["state"].tolist(), strict=True):
            setattr(self.state, key, type(getattr(self.state, key))(value))
        for name, weight in self.weights.items():
            weight.copy_(known[f"weight {name}"])
            self.best[name] = known[f"best {name}"].to(weight)
            moments = {k.partition(" ")[0]: v for k, v in known.items() if k.partition(" ")[2] == name}
            self.optimizer.state[weight] = {
                key: value if key == "step" else value.to(weight)
                for key, value in moments.items()
                if key not in ("weight", "best")
            }
        self._load(self.weights)


def _root_mean_square(weight: Tensor) -> float:
    size = float(weight.detach().double().square().mean().sqrt()) if weight.numel() else 0.0
    return max(size, SMALLEST) if weight.ndim < 2 else size
