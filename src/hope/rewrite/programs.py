"""A network as one exported program, for batches of any size where the model allows it.

Checked on two batches of other sizes than it was made with, so that what is written gives the model's
answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from hope._util.calls import Example, as_call, tensors_in
from hope.errors import CannotExport, first_line

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # between engines, in units of the largest answer
COARSE = 3e-2  # the same for half precision

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class ExportedModel:
    """An exported program, and what there is to know of it.

    Attributes:
        program: what `torch.export` gave.
        calls: inputs to check it on.
        outputs: names for what it gives.
        shapes: what may vary, in the form of `torch.export`; None if nothing does.
        batch: the batch size that it takes; None if any.
        note: why that is not any; empty if there is nothing to say.
    """

    program: ExportedProgram
    calls: tuple[Call, ...]
    outputs: list[str] | None
    shapes: Mapping[str, Any] | None
    batch: int | None
    note: str = ""


def capture(model: nn.Module, example: Example | None, dynamic: bool) -> ExportedModel:
    """The model with a batch of any size, or of the example's where it must be so."""
    call = _ordered(model, example)
    batch = _batch(call)
    note = ""
    if dynamic and batch is not None:
        try:
            return _capture_any(model, call, batch)
        except Exception as error:  # whatever the model's code or torch.export raises
            note = f"it takes batches of {batch} only, since {_why(error)}"
    try:
        program = torch.export.export(model, *call, strict=False)
    except Exception as error:  # as above
        raise CannotExport(
            f"{type(model).__name__} cannot be captured ({first_line(error)}): "
            "change its forward, or keep it in Python (encoding.save)"
        ) from error
    return ExportedModel(program, (_filled(call),), _output_names(model, call), None, batch, note)


def _why(error: Exception) -> str:
    """Why a batch cannot vary; of torch's own words, which are many, the gist."""
    if "specialized" in str(error):
        return "the model's code fixes the batch"
    return f"with others: {first_line(error, 120)}"


def _capture_any(model: nn.Module, call: Call, batch: int) -> ExportedModel:
    """The model with a batch of any size, if it then gives the model's answers."""
    traced = max(2, batch)  # torch.export takes a size of 1 for a constant
    any_size = Dim("batch", min=1)

    def vary(leaf: Any) -> Any:
        return {0: any_size} if _has_batch(leaf, batch) else None

    bound = inspect.signature(model.forward).bind(*call[0], **call[1])
    shapes = {name: pytree.tree_map(vary, value) for name, value in bound.arguments.items()}
    args, kwargs = _with_batch(call, batch, traced)
    program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    calls = tuple(_with_batch(_filled(call), batch, size) for size in (1, traced + 1))
    module = program.module()
    for one in calls:
        compare(tensors_in(module(*one[0], **one[1])), model, one, "torch.export")
    varying = {name: some for name, some in shapes.items() if pytree.tree_leaves(some) != [None]}
    return ExportedModel(program, calls, _output_names(model, call), varying, None)


def _ordered(model: nn.Module, example: Example | None) -> Call:
    """The example's inputs, those by name in the order of the model's arguments."""
    args, kwargs = as_call(example)
    known = [name for name in inspect.signature(model.forward).parameters if name in kwargs]
    return args, {name: kwargs[name] for name in [*known, *(name for name in kwargs if name not in known)]}


def _batch(call: Call) -> int | None:
    """The first dimension of the first input; None if there is nothing to vary."""
    return next((len(leaf) for leaf in tensors_in(call) if leaf.ndim), None)


def _has_batch(leaf: Any, batch: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == batch


def _with_batch(call: Call, batch: int, size: int) -> Call:
    """The same inputs in a batch of another size, repeated as often as it takes."""

    def repeat(leaf: Any) -> Any:
        return leaf[torch.arange(size) % batch].clone() if _has_batch(leaf, batch) else leaf

    changed: Call = pytree.tree_map(repeat, call)
    return changed


def _filled(call: Call) -> Call:
    """Inputs to check a network on: where the example is one number all over, noise."""
    generator = torch.Generator().manual_seed(0)

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or not leaf.numel():
            return leaf
        blank = bool((leaf == leaf.flatten()[0]).all())
        return torch.randn(leaf.shape, generator=generator).to(leaf) if blank else leaf

    filled: Call = pytree.tree_map(fill, call)
    return filled


def _output_names(model: nn.Module, call: Call) -> list[str] | None:
    """ "output", or the names that the model itself gives; None where names would be ambiguous."""
    out = model(*call[0], **call[1])
    if isinstance(out, Tensor):
        names = ["output"]
    elif isinstance(out, Mapping) and all(isinstance(value, Tensor) for value in out.values()):
        names = [str(name) for name in out]
    else:
        names = [f"output_{n}" for n in range(len(tensors_in(out)))]
    taken = inspect.signature(model.forward).parameters
    return names if not set(names) & set(taken) else None


# ---- comparing ---------------------------------------------------------------------------------------------


def compare(got: Sequence[Tensor], model: nn.Module, call: Call, engine: str) -> None:
    """Refuse answers that are not the model's. Of answers that are no real numbers (classes), only shapes are
    compared: two that are equally likely may change places.
    """
    want = [tensor.cpu() for tensor in tensors_in(model(*call[0], **call[1]))]
    shapes, wanted = ([tuple(tensor.shape) for tensor in some] for some in (got, want))
    if shapes != wanted:
        raise CannotExport(
            f"answers of {engine} must have the shapes {wanted}, got {shapes}: export with check=False, or "
            "another format"
        )
    for a, b in zip(got, want, strict=True):
        if b.is_floating_point() and b.numel():
            tolerance = TOLERANCE.get(b.dtype, COARSE)
            a, b = a.cpu().double(), b.double()
            largest = float(b.abs().nan_to_num(0, 0, 0).max())
            if not torch.allclose(a, b, rtol=tolerance, atol=tolerance * largest, equal_nan=True):
                raise CannotExport(
                    f"answers of {engine} must be the model's, got a difference of "
                    f"{float((a - b).abs().max()):.3g} (the largest answer is {largest:.3g}): export with "
                    "check=False, or another format"
                )
