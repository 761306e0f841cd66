"""Where a program uses its weights and biases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hope.ops.registry import forms, joins_inputs
from hope.ops.weight import Convolution, is_weight
from hope.trace.program import Operation, Program, readers_of


def uses_of_weights(program: Program) -> Counter[str]:
    """How many times each weight reads a signal."""
    return Counter(form.operation.tensors["weight"] for form in forms(program) if is_weight(form))


def added_biases(program: Program) -> dict[str, tuple[str, int]]:
    """Weight of a linear layer -> its module's bias and where that is added, if that is an operation of its
    own and all that happens to the result.
    """
    readers = readers_of(program)
    there = {operation.tensor for operation in program}
    found = {}
    for form in forms(program):
        if not is_weight(form) or "bias" in form.operation.tensors:
            continue
        weight = form.operation.tensors["weight"]
        bias = f"{weight.rpartition('.')[0]}.bias"
        if bias in there and (position := _plain_add(program, form.operation, readers, bias)) >= 0:
            found[weight] = bias, position
    return found


def _plain_add(
    program: Program, operation: Operation, readers: Mapping[int, list[Operation]], bias: str
) -> int:
    users = readers.get(operation.position, [])
    if len(users) != 1 or users[0].operator != "add" or users[0].arguments.get("alpha") != 1:
        return -1
    shape, sides = operation.output[-1:], [program[position] for position in users[0].inputs]
    plain = operation.operator == "linear" and any(s.tensor == bias and s.output == shape for s in sides)
    alone = sum(len(readers.get(op.position, ())) for op in program if op.tensor == bias) == 1
    return users[0].position if plain and alone else -1


def first_convolution(program: Program) -> Operation | None:
    """The first convolution that reads the model's first input as it is, or in a batch with others."""
    first = next((operation.position for operation in program if operation.operator == "input"), None)
    joined = {one.position for one in program if first in one.inputs and joins_inputs(program, one)}
    every = (form for form in forms(program) if form is not None and isinstance(form.operator, Convolution))
    return next(
        (form.operation for form in every if len(form.inputs) == 1 and form.inputs[0] in {first, *joined}),
        None,
    )
