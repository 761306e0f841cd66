"""Inputs as stored in settings: a name or a hash, never the inputs themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def hash_inputs(inputs: Iterable[Any] | str | None) -> str | None:
    """A hash of batches that can be iterated again; otherwise only the word "batches".

    >>> hash_inputs("dream"), hash_inputs(None), hash_inputs(iter([]))
    ('dream', None, 'batches')
    """
    if inputs is None or isinstance(inputs, str):
        return inputs
    if not isinstance(inputs, Sequence):
        return "batches"
    digest = hashlib.sha256()
    for leaf in pytree.tree_leaves(list(inputs)):
        if isinstance(leaf, Tensor):
            digest.update(f"{leaf.dtype} {tuple(leaf.shape)}\n".encode())
            digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()[:16]
