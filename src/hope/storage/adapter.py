"""The typed record of a fine-tuned network, `adapter.json`, and its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from hope._util.locks import locked
from hope.storage.arrays import Arrays, clean, write_arrays
from hope.storage.codec import Format, read_record, stored_files, write_record
from hope.storage.migrations import adapter_to_2

PLAN = "adapter.json"


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new head."""

    name: str  # the module that it replaces
    kind: str  # its class
    # how to make it again, where that is known; what it does not say is as in the source's head
    recipe: dict[str, Any] | None
    shapes: dict[str, list[int]] | None  # of its parameters and buffers; None if not stored


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of severing for the source task.

    Attributes:
        fidelity: the source's predicted fidelity after it (see `hope.fidelity`) on the masked path of
            `source()`; None if unknown. Training does not change it.
        before, after: the source's accuracy on labelled inputs, after it on the masked path; None if there
            were none.
        inputs: how many they were.
        fidelity_as_is, after_as_is: the same of the network as it is, where core may read slack.

    Example:
        >>> Cost(fidelity=0.4, before=0.5, after=0.25, inputs=100).kept
        0.5
        >>> print(Cost(fidelity=0.4, before=0.9, after=0.6, inputs=100))
        predicted fidelity 0.40; 60.0% of 100 labelled inputs right, 90.0% before
        >>> print(Cost(fidelity=0.4, fidelity_as_is=0.3))
        predicted fidelity 0.40, of the network as it is 0.30
    """

    fidelity: float | None = None
    before: float | None = None
    after: float | None = None
    inputs: int = 0
    fidelity_as_is: float | None = None
    after_as_is: float | None = None

    @property
    def kept(self) -> float | None:
        """The share of the source that is kept: of its accuracy if known, otherwise the fidelity."""
        if self.before is not None and self.after is not None:
            return self.after / self.before if self.before > 0 else 1.0
        return self.fidelity

    def __str__(self) -> str:
        words = [] if self.fidelity is None else [f"predicted fidelity {self.fidelity:.2f}"]
        if words and self.fidelity_as_is is not None:
            words[0] += f", of the network as it is {self.fidelity_as_is:.2f}"
        if self.before is not None and self.after is not None:
            right = f"{self.after:.1%} of {self.inputs:,} labelled inputs right"
            if self.after_as_is is not None:
                right += f", {self.after_as_is:.1%} by the network as it is"
            words.append(f"{right}, {self.before:.1%} before")
        return "; ".join(words) or "not known: the partition was made without an example"


class AdapterRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `adapter.json`."""

    method: str  # "deft", or a baseline's name
    original: str  # fingerprint of the source checkpoint
    arrays: Arrays  # everything that differs from it
    head: Head  # the new head
    # frozen, columns: the masks of a `Tuning`: the shape of one that is among the arrays, or the value of one
    # that has only one
    frozen: dict[str, list[int] | bool]
    columns: dict[str, list[int] | bool]
    masks_source: bool  # whether the source head's inputs from slack are masked
    holds_statistics: bool  # whether the running statistics of frozen channels stay
    # the parameters that a penalty draws to where they were
    anchored: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)  # what else a user should know
    cost: Cost | None = None  # what the cut took from the source task
    shares_head: bool = False  # whether the new head started as the source's


ADAPTER = Format("hope-deft", "tuning", AdapterRecord, 2, adapter_to_2)


def write_adapter(folder: Path, tensors: Mapping[str, Tensor], **fields: Any) -> None:
    """Write the arrays, then the record that names them; then remove files that only the earlier record
    named.

    Args:
        fields: the record's fields, without the arrays.
    """
    with locked(folder):
        earlier = stored_files(folder / PLAN, ADAPTER)
        record = AdapterRecord(arrays=write_arrays(folder, "adapter", tensors), **fields)
        write_record(folder / PLAN, ADAPTER, record)
        clean(folder, earlier, [record.arrays])


def read_adapter(folder: Path) -> AdapterRecord:
    """Read and check a record; `read_arrays` reads its arrays.

    Raises:
        DamagedFolder: the folder is incomplete, altered, not written by HOPE, or from a newer version.
    """
    return read_record(folder / PLAN, ADAPTER)
