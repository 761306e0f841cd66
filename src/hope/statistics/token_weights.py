"""How much each place counts where a stream is read through a norm.

A LayerNorm or RMSNorm divides every place (token) of a stream by its own size before anything reads it. A few
tokens, often the first of a text, are many times as large as all others, so plain second moments describe
these tokens alone; an error affects the readers by its size relative to the stream there. So, of what is
added to such a stream, a place is weighted by one over the stream's mean square after the add. Places that a
text's attention_mask leaves out have weight 0.
"""

from __future__ import annotations

from torch import Tensor, nn

from hope import ops
from hope._util.calls import Example, by_name
from hope.ops.elementwise import Identity
from hope.ops.norm import RootMeanSquareNorm, is_square
from hope.ops.weight import Linear, is_weight
from hope.trace.program import Operation, Program, Ref, readers_of


def normed_adds(program: Program) -> dict[str, int]:
    """Weight of a linear layer -> position of the add that reads its result, if a norm over the channels
    reads what comes out of it.
    """
    readers = readers_of(program)
    found = {}
    for form in ops.forms(program):
        if is_weight(form) and isinstance(form.operator, Linear):
            add = _add(program, form.operation, readers)
            if add is not None and _normed(add, readers):
                found[form.operation.tensors["weight"]] = add.position
    return found


def _add(program: Program, operation: Operation, readers: dict[int, list[Operation]]) -> Operation | None:
    """The add of two signals that reads a result, changed on the way by a factor and a bias at most."""
    shape = operation.output
    while len(readers.get(operation.position, ())) == 1:
        (operation,) = readers[operation.position]
        every = (one for one in operation.arguments.values() if isinstance(one, Ref))
        signals = [one for one in every if program[one.position].tensor is None]
        if operation.operator == "add" and len(signals) == 2 and operation.output == shape:
            return operation
        moves = isinstance(ops.find(operation), Identity) or operation.operator in ("mul", "view", "reshape")
        if not moves and not (operation.operator == "add" and len(signals) == 1):
            return None
        shape = operation.output
    return None


def _normed(add: Operation, readers: dict[int, list[Operation]]) -> bool:
    """Whether a norm over the last dimension reads a stream here, or after a further add."""
    for reader in readers.get(add.position, ()):
        last = len(add.output) - 1
        entry = ops.find(reader)
        if isinstance(entry, RootMeanSquareNorm) and last in entry.over(reader, last + 1):
            return True
        squares = is_square(reader) and any(
            one.operator == "mean" and one.arguments.get("dim") in ([-1], [last])
            for one in readers.get(reader.position, ())
        )
        onwards = reader.operator == "add" and reader.output == add.output
        converts = isinstance(entry, Identity)
        if squares or ((onwards or converts) and _normed(reader, readers)):
            return True
    return False


def counts(stream: Tensor) -> Tensor:
    """What each place of a stream counts: one over its mean square.

    >>> import torch
    >>> counts(torch.tensor([[[1.0, -1.0], [2.0, 2.0]]])).tolist()
    [[1.0, 0.25]]
    """
    square = stream.float().square().mean(dim=-1)
    return 1 / square.clamp(min=1e-12 * float(square.mean()) + 1e-30)


def mask_of(model: nn.Module, batch: Example) -> Tensor | None:
    """(texts, tokens) 0 where a text is padded and 1 elsewhere; None if it says nothing of padding.

    >>> import torch
    >>> model = torch.nn.Module()  # of any kind
    >>> text = {"input_ids": torch.tensor([[5, 6, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])}
    >>> mask_of(model, text).tolist()
    [[1.0, 1.0, 0.0]]
    """
    named = by_name(model, batch)
    mask = named.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2 or bool(mask.all()):
        return None
    two = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if two or any(name.startswith("decoder") for name in named):  # of two texts, it is one's
        return None
    return mask.bool().float()


def without_padding(known: Tensor | None, mask: Tensor | None, places: tuple[int, ...]) -> Tensor | None:
    """What each place counts, with nothing for padding, where these are the places of the mask's tokens."""
    if mask is None or tuple(places) not in (tuple(mask.shape), (mask.numel(),)):
        return known
    left = mask.reshape(places)
    return left if known is None else known.reshape(places).to(left) * left
