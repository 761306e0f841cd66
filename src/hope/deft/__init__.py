"""DEFT: fine-tune a network's slack and keep its core, to the bit.

Partition, prepare, train `tuning.model` with any loop and optimizer, and evaluate the source task as the
paper does:

>>> import torch, hope
>>> linear, bn, head = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
>>> net = torch.nn.Sequential(linear, bn, torch.nn.ReLU(), head)
>>> part = hope.deft.partition(net, torch.zeros(2, 4), percentile=40)
>>> tuning = hope.deft.prepare(net, part, head=10)
>>> with tuning.source() as model:
...     tuple(model.eval()(torch.zeros(5, 4)).shape)
(5, 3)
"""

from hope.deft import baselines
from hope.deft.bounds import Bounds, UnitBound
from hope.deft.fisher import fisher
from hope.deft.partition import Partition
from hope.deft.prepare import prepare
from hope.deft.split import partition
from hope.deft.store import load
from hope.deft.tuning import Tuning
from hope.deft.wrap import wrap
from hope.errors import InvalidHead, InvalidPartition, InvalidPenalty, LostSource, NotSeparable
from hope.storage.adapter import Cost

__all__ = [
    "Bounds",
    "Cost",
    "InvalidHead",
    "InvalidPartition",
    "InvalidPenalty",
    "LostSource",
    "NotSeparable",
    "Partition",
    "Tuning",
    "UnitBound",
    "baselines",
    "fisher",
    "load",
    "partition",
    "prepare",
    "wrap",
]
