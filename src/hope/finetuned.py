"""`save_finetuned`: save a compressed and fine-tuned network."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Unpack

from torch import nn

from hope.encoding import Encoding
from hope.schedule.budget import ReplayBudget, lists_budgets, optional_budget
from hope.storage.finetuned import save_trained
from hope.storage.run import read_run


@lists_budgets(ReplayBudget)
def save_finetuned(
    folder: str | PathLike[str],
    source: Encoding | str | PathLike[str],
    small: nn.Module,
    **budget: Unpack[ReplayBudget],
) -> Path:
    """Save a compressed and fine-tuned network; `hope.load(folder, fresh_model)` loads it. Such a folder has
    one budget.

    Args:
        folder: the target: its own folder, not that of the run. An earlier save of this kind is replaced.
        source: the run of the network: the `Encoding`, or the folder it was saved in.
        small: the fine-tuned network, with the shapes of the run: a head with another number of
            outputs is refused.
        **budget: the network's budget (see `hope.encode`), if not the run's own.

    Raises:
        CheckpointMismatch: the network has other shapes than the run; the message names the first difference.
        CannotWrite: the folder contains a run, whose other budgets would be lost.

    Example:
        >>> import tempfile, torch, hope
        >>> linear, bn = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8)
        >>> net = torch.nn.Sequential(linear, bn, torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> encoding = hope.encode(net, torch.zeros(2, 3), density=0.25)
        >>> small = encoding.model.train()
        >>> small(torch.randn(16, 3)).square().sum().backward()
        >>> torch.optim.SGD(small.parameters(), lr=0.1).step()
        >>> folder = hope.save_finetuned(tempfile.mkdtemp(), encoding, small)
        >>> torch.equal(hope.load(folder, net)[0].weight, small[0].weight)
        True
    """
    run = source.as_run() if isinstance(source, Encoding) else read_run(source)
    asked = optional_budget(**budget)
    taken = run.steps if asked is None else run.trajectory.steps_at(asked)
    return save_trained(Path(folder), run, taken, small)
