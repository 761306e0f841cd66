"""The paper's source-retention protocol: evaluate the source task without disturbing the target's
training.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hope._util.calls import duplicate
from hope.deft.heads import head_of, masked_head, put_head
from hope.deft.statistics import put_back, snapshot

if TYPE_CHECKING:
    from hope.deft.grow import Growth
    from hope.deft.tuning import Tuning


@contextmanager
def source(tuning: Tuning, masked: bool) -> Iterator[nn.Module]:
    """Restore the source head, optionally with zero weights for slack, and the source's BN statistics; undo
    it at the end.

    After severing by absorption, the head's other weights and its bias compensate for slack.

    Core reads slack only through zero weights, and so does this head. Zero times infinity is NaN, and slack
    may have learned to write into a stream, so all trainable entries are zero inside. Baselines have no
    slack, and keep their values.

    Inside, the model is in evaluation mode. Everything is restored at the end, also after an exception: head,
    slack, statistics, and the mode of every module.
    """
    model = tuning.model
    if masked and tuning.growth is not None:
        yield _narrow(tuning, tuning.growth)
        return
    head = head_of(model, tuning.head)
    forward = _without_autocast(model)
    modes = [(module, module.training) for module in model.modules()]
    drifted = snapshot(model)
    masks = (tuning.columns, tuning.absorbed_head) if masked else ({}, {})
    grafted = masked_head(tuning.source_head, *masks)
    grafted.to(next(chain(head.parameters(), model.parameters())))
    slack_entries = _slack(tuning) if masked and tuning.masks_source else []
    try:
        for parameter, data, slack in slack_entries:
            parameter.data = data.masked_fill(slack.to(data.device), 0)
        put_head(model, tuning.head, grafted)
        put_back(model, tuning.statistics)
        model.eval()
        yield model
    finally:
        vars(model).update(forward)
        put_head(model, tuning.head, head)
        for parameter, data, _ in slack_entries:
            parameter.data = data
        put_back(model, drifted)
        for module, training in modes:
            module.training = training


def _without_autocast(model: nn.Module) -> dict[str, Any]:
    """Undo the mixed precision that accelerate (and so the trainer of transformers) leaves in a model: the
    source task is computed as before.

    Returns:
        The attribute to put back.
    """
    if "_original_forward" not in vars(model):
        return {}
    wrapped = {"forward": model.forward}
    vars(model)["forward"] = vars(model)["_original_forward"]
    return wrapped


def _narrow(tuning: Tuning, growth: Growth) -> nn.Module:
    """The source model, cut out of a wider one."""
    model = duplicate(tuning.model)
    put_head(model, tuning.head, copy.deepcopy(tuning.source_head))
    put_back(model, tuning.statistics)
    growth.narrow(model)
    _without_autocast(model)
    return model.requires_grad_(False).eval()


def _slack(tuning: Tuning) -> list[tuple[nn.Parameter, Tensor, Tensor]]:
    """Parameters of the backbone with slack entries: their values, and where slack is."""
    return [
        (parameter, parameter.data, ~tuning.frozen[name])
        for name, parameter in tuning.model.named_parameters()
        if name in tuning.frozen and not bool(tuning.frozen[name].all())
    ]
