"""DEFT: fine-tune a network's slack and keep its core, to the bit.

part = hope.deft.partition(model, example, percentile=40)
tuning = hope.deft.prepare(model, part, head=10)
...                                  # train tuning.model with any loop and optimizer
with tuning.source() as model: ...   # the source task, as the paper evaluates it
"""

from hope.deft import baselines
from hope.deft.bounds import Bounds, GroupBound
from hope.deft.fisher import fisher
from hope.deft.groups import NotSeparable
from hope.deft.heads import InvalidHead
from hope.deft.partition import InvalidPartition, Partition, partition
from hope.deft.prepare import prepare
from hope.deft.store import load
from hope.deft.tuning import Tuning

__all__ = [
    "Bounds",
    "GroupBound",
    "InvalidHead",
    "InvalidPartition",
    "NotSeparable",
    "Partition",
    "Tuning",
    "baselines",
    "fisher",
    "load",
    "partition",
    "prepare",
]
