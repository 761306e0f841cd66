"""DEFT: fine-tune a network's slack and keep its core, to the bit."""

from hope.deft.bounds import Bounds, GroupBound
from hope.deft.groups import NotSeparable
from hope.deft.partition import InvalidPartition, Partition, partition

__all__ = ["Bounds", "GroupBound", "InvalidPartition", "NotSeparable", "Partition", "partition"]
