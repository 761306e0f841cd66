"""The paper's source-retention protocol: look at the source task without disturbing the target's training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from hope.deft.heads import masked_head
from hope.deft.statistics import put_back, snapshot

if TYPE_CHECKING:
    from hope.deft.tuning import Tuning


@contextmanager
def source(tuning: Tuning, masked: bool) -> Iterator[nn.Module]:
    """Graft the source head back, deaf to slack if asked, with the source's BN statistics; then undo it all.

    A head that is deaf to slack has its columns masked; after severing by absorption, its other columns and
    its bias say what slack said.

    Within, the model is in evaluation mode. Everything is put back at the end, also after an exception: head,
    statistics, and the mode of every module.
    """
    model = tuning.model
    head = model.get_submodule(tuning.head)
    modes = [(module, module.training) for module in model.modules()]
    drifted = snapshot(model)
    deaf = (tuning.columns, tuning.absorbed_head) if masked else ({}, {})
    grafted = masked_head(tuning.source_head, *deaf)
    like = next(head.parameters(), None)
    if like is not None:
        grafted.to(like.device)
    try:
        model.set_submodule(tuning.head, grafted)
        put_back(model, tuning.statistics)
        model.eval()
        yield model
    finally:
        model.set_submodule(tuning.head, head)
        put_back(model, drifted)
        for module, training in modes:
            module.training = training
