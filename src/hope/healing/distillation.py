"""What healing minimises: the distance of a small network's answers and features from the original's.

Answers are compared by the Kullback-Leibler divergence of their distributions at a temperature, features by
their squared error. Each term is divided by its value at the start, so that no weight is to be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from hope._util.calls import Example, as_call, mode
from hope.errors import InvalidExample
from hope.evaluate.fidelity import centred, cosine, float_outputs
from hope.healing.inputs import Inputs
from hope.statistics.observe import running
from hope.statistics.token_weights import mask_of

QUARTERS = 4  # a long row of equal modules, as in a transformer, is compared at so many places
TOKENS = 3  # dimensions of (text, token, word)

Terms = dict[str, Tensor]


class Distillation:
    """The two networks, and where they are compared.

    Attributes:
        features: modules whose results are compared, in order -> their channels that the small network has;
            None for all.
        scales: of each term, its value at the start.
    """

    def __init__(
        self,
        original: nn.Module,
        small: nn.Module,
        batch: Example,
        rows: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.original, self.small = original, small
        self.features: dict[str, Tensor | None] = {}
        self.scales: Mapping[str, float] = {}
        self.temperatures: dict[str, float] = {}  # of outputs that are distributions
        with torch.no_grad(), mode(original, training=False), mode(small, training=False):
            with running("batch 0", "heal"):
                before, there = _observed(original, batch, dict(original.named_modules()))
            after, here = _observed(small, batch, dict(small.named_modules()))
        shapes = [{name: tuple(one.shape) for name, one in some.items()} for some in (before, after)]
        if shapes[0] != shapes[1]:
            words = " and ".join(", ".join(f"{k} {v}".strip() for k, v in some.items()) for some in shapes)
            raise InvalidExample(
                f"heal: outputs of both networks must have the same shapes, got {words}: give the original "
                "and its own compressed version"
            )
        self.outputs = sum(one[0].numel() for one in before.values() if one.ndim)
        for name, output in before.items():
            if output.ndim == 2 and output.shape[1] > 1:
                deviation = float((output.double() - output.double().mean(dim=1, keepdim=True)).std())
                self.temperatures[name] = max(deviation, 1e-12)
            elif output.ndim == TOKENS and output.shape[2] == _words(original, batch, output):
                self.temperatures[name] = 1.0
        self.features = _places(small, there, here, rows or {}, set(shapes[0].values()))

    def terms(self, batch: Example) -> Terms:
        """How far the small network is from the original, by place."""
        with torch.no_grad(), mode(self.original, training=False):
            wanted, there = _observed(self.original, batch, self.features)
        with mode(self.small, training=False):  # statistics of BN stay, and nothing is dropped
            found, here = _observed(self.small, batch, self.features)
        mask = mask_of(self.small, batch)
        terms = {
            f"output {name}".strip(): _answers(found[name], output, self.temperatures.get(name), mask)
            for name, output in wanted.items()
        }
        for name, rows in self.features.items():
            value = there[name]
            if rows is not None:
                value = value.index_select(_channel(value), rows.to(value.device))
            terms[name] = _features(here[name], value, mask)
        return terms

    def evaluation(self, held: Inputs, size: int, device: torch.device) -> Evaluation:
        """What evaluates the small network on held-out inputs."""
        return Evaluation(self, held, size, device)

    def loss(self, terms: Terms) -> Tensor:
        """Answers and features count the same, each relative to the start."""
        groups: tuple[list[Tensor], list[Tensor]] = ([], [])
        for name, term in terms.items():
            groups[name in self.features].append(term / max(self.scales.get(name, 1.0), 1e-30))
        means = [torch.stack(group).mean() for group in groups if group]
        return torch.stack(means).sum()


HELD = 1 << 26  # numbers of the original's outputs that are held, to compare with


class Evaluation:
    """The fidelity of the small network on inputs that it is not trained on.

    Args:
        size: inputs that are run at once.
    """

    def __init__(self, distillation: Distillation, held: Inputs, size: int, device: torch.device) -> None:
        self._distillation, self._device = distillation, device
        self._parts = [held.taken(places) for places in torch.split(torch.arange(len(held)), size)]
        entries = distillation.outputs * len(held)
        self._every = max(1, -(-entries // HELD))  # of the tokens: the outputs of all take too much memory
        self._wanted = self._outputs(distillation.original)

    def __call__(self, *, scales: bool = False) -> tuple[float, dict[str, float]]:
        """The fidelity, and if they are asked for the terms of the loss."""
        terms: dict[str, float] = {}
        with torch.no_grad():
            for part in self._parts if scales else ():
                for name, term in self._distillation.terms(part.on(self._device)).items():
                    terms[name] = terms.get(name, 0.0) + float(term) * len(part)
        found = self._outputs(self._distillation.small)
        return min(cosine(found[name], one) for name, one in self._wanted.items()), terms

    @torch.no_grad()
    def _outputs(self, model: nn.Module) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {}
        with mode(model, training=False):
            for part in self._parts:
                batch = part.on(self._device)
                args, kwargs = as_call(batch)
                mask = mask_of(model, batch)
                for name, output in float_outputs(model(*args, **kwargs)).items():
                    if mask is not None and output.shape[:-1] == mask.shape:
                        output = output[mask.bool()]
                    elif output.ndim == TOKENS:
                        output = output.flatten(0, 1)
                    found.setdefault(name, []).append(output[:: self._every].float().cpu())
        return {name: centred(torch.cat(some)) for name, some in found.items()}


def _observed(
    model: nn.Module, batch: Example, wanted: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A network's outputs, and the results of modules that were run once, in the order of their ends."""
    args, kwargs = as_call(batch)
    with _observing(model, wanted) as found:
        outputs = float_outputs(model(*args, **kwargs))
    return outputs, {name: values[0] for name, values in found.items() if len(values) == 1}


@contextmanager
def _observing(model: nn.Module, wanted: Mapping[str, Any]) -> Iterator[dict[str, list[Tensor]]]:
    found: dict[str, list[Tensor]] = {}

    def observe(name: str) -> Any:
        def hook(_: nn.Module, __: Any, result: Any) -> None:
            value = result[0] if isinstance(result, (tuple, list)) and result else result
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1:
                found.setdefault(name, []).append(value)

        return hook

    handles = [
        module.register_forward_hook(observe(name))
        for name, module in model.named_modules()
        if name and name in wanted
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _places(
    small: nn.Module,
    there: Mapping[str, Tensor],
    here: Mapping[str, Tensor],
    rows: Mapping[str, Tensor],
    outputs: set[tuple[int, ...]],
) -> dict[str, Tensor | None]:
    """Modules whose results correspond: of each shape the last, and of a long row some on the way."""
    shapes: dict[tuple[int, ...], list[str]] = {}
    for name, value in there.items():
        kept = rows.get(name)
        shape = list(value.shape)
        if kept is not None:
            shape[_channel(value)] = len(kept)
        if name in here and tuple(here[name].shape) == tuple(shape) and tuple(value.shape) not in outputs:
            shapes.setdefault(tuple(value.shape), []).append(name)
    lists = {
        f"{name}.{child}".lstrip(".")
        for name, module in small.named_modules()
        if isinstance(module, (nn.Sequential, nn.ModuleList))
        for child, one in module.named_children()
        if any(True for _ in one.children())
    }
    found: dict[str, Tensor | None] = {}
    for names in shapes.values():
        steps = [name for name in names if name in lists]
        some = [
            steps[len(steps) * k // QUARTERS - 1] for k in range(1, QUARTERS) if len(steps) > 2 * QUARTERS
        ]
        found |= {name: rows.get(name) for name in [*some, names[-1]]}
    return found


def _channel(value: Tensor) -> int:
    """The dimension of channels: the second of images, the last of tokens."""
    return 1 if value.ndim != TOKENS else 2


def _weights(mask: Tensor | None, places: tuple[int, ...], like: Tensor) -> Tensor | None:
    """What each place counts: nothing for padding."""
    return mask.to(like) if mask is not None and tuple(mask.shape) == tuple(places) else None


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    count = _weights(mask, tuple(values.shape), values)
    return values.mean() if count is None else (values * count).sum() / count.sum()


def _words(model: nn.Module, batch: Example, output: Tensor) -> int:
    """How many words a model that reads whole numbers only may answer with; 0 for another model."""
    values = tree_leaves(as_call(batch))
    if any(isinstance(value, Tensor) and value.is_floating_point() for value in values):
        return 0
    return int(getattr(getattr(model, "config", None), "vocab_size", output.shape[-1]))


def _answers(found: Tensor, wanted: Tensor, temperature: float | None, mask: Tensor | None) -> Tensor:
    """KL of distributions over the last dimension; of other outputs, such as maps and boxes, the squared
    error of each channel relative to its variance.
    """
    found, wanted = found.float(), wanted.float()
    if temperature is None:
        channel = 1 if wanted.ndim == 4 else wanted.ndim - 1
        over = [dim for dim in range(wanted.ndim) if dim != channel or wanted.ndim < 2]
        variance = wanted.var(dim=over, correction=0)
        error = (found - wanted).square().mean(dim=over)
        return (error / variance.clamp(min=1e-6 * float(variance.mean()) + 1e-30)).mean()
    before, after = (functional.log_softmax(one / temperature, dim=-1) for one in (wanted, found))
    each = functional.kl_div(after, before, reduction="none", log_target=True).sum(dim=-1)
    return _mean(each, mask)


def _features(found: Tensor, wanted: Tensor, mask: Tensor | None) -> Tensor:
    """The squared error; of tokens, as a part of each token's size, which differs by orders of magnitude."""
    found, wanted = found.float(), wanted.float()
    if found.ndim != TOKENS:
        return (found - wanted).square().mean()
    size = wanted.square().mean(dim=-1)
    error = (found - wanted).square().mean(dim=-1) / size.clamp(min=1e-6 * float(size.mean()) + 1e-30)
    return _mean(error, mask)
