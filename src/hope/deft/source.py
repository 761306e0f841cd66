"""The paper's source-retention protocol: look at the source task without disturbing the target's training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

from torch import Tensor, nn

from hope.deft.heads import masked_head
from hope.deft.statistics import put_back, snapshot

if TYPE_CHECKING:
    from hope.deft.tuning import Tuning


@contextmanager
def source(tuning: Tuning, masked: bool) -> Iterator[nn.Module]:
    """Graft the source head back, deaf to slack if asked, with the source's BN statistics; then undo it all.

    A head that is deaf to slack has its columns masked; after severing by absorption, its other columns and
    its bias say what slack said.

    Core hears slack through weights of zero only, and so does that head. Zero times infinity is NaN, and
    slack may have learned to speak into a stream, so all that could be learned is zero within. Baselines have
    no slack, and keep what they have.

    Within, the model is in evaluation mode. Everything is put back at the end, also after an exception: head,
    slack, statistics, and the mode of every module.
    """
    model = tuning.model
    head = model.get_submodule(tuning.head)
    modes = [(module, module.training) for module in model.modules()]
    drifted = snapshot(model)
    deaf = (tuning.columns, tuning.absorbed_head) if masked else ({}, {})
    grafted = masked_head(tuning.source_head, *deaf)
    grafted.to(next(chain(head.parameters(), model.parameters())))
    silent = _slack(tuning) if masked and tuning.masks_source else []
    try:
        for parameter, data, slack in silent:
            parameter.data = data.masked_fill(slack.to(data.device), 0)
        model.set_submodule(tuning.head, grafted)
        put_back(model, tuning.statistics)
        model.eval()
        yield model
    finally:
        model.set_submodule(tuning.head, head)
        for parameter, data, _ in silent:
            parameter.data = data
        put_back(model, drifted)
        for module, training in modes:
            module.training = training


def _slack(tuning: Tuning) -> list[tuple[nn.Parameter, Tensor, Tensor]]:
    """Parameters of the backbone with slack in them: what they hold, and where slack is."""
    return [
        (parameter, parameter.data, ~tuning.frozen[name])
        for name, parameter in tuning.model.named_parameters()
        if name in tuning.frozen and not bool(tuning.frozen[name].all())
    ]
