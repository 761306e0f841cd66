"""Tensors as the bytes of a safetensors file, one tensor at a time: what is written needs no second memory.

The bytes are those of `safetensors.torch.save`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hope._util.files import write_file
from hope.errors import CannotWrite

# in the order in which tensors are in a file
NAMES = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64",
    torch.float32: "F32", torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.uint16: "U16", torch.int16: "I16", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
ORDER = {dtype: position for position, dtype in enumerate(NAMES)}


def write_tensor_file(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors, all or nothing; tensors with shared memory are written once per name."""
    write_file(path, tensor_bytes(tensors, metadata))


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 of a file of these tensors."""
    digest = hashlib.sha256()
    for part in tensor_bytes(tensors):
        digest.update(part)
    return digest.hexdigest()


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The header, then the bytes of each tensor.

    >>> from safetensors.torch import save
    >>> some = {"b": torch.ones(3), "a": torch.arange(4).bool()}
    >>> b"".join(tensor_bytes(some)) == save(some)
    True
    """
    unknown = next((name for name, one in tensors.items() if one.dtype not in NAMES), None)
    if unknown is not None:
        raise CannotWrite(
            f"{unknown} must have a type that safetensors stores, got {tensors[unknown].dtype}: convert it "
            "first"
        )
    names = sorted(tensors, key=lambda name: (ORDER[tensors[name].dtype], name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name in names:
        one = tensors[name]
        end = start + one.numel() * one.itemsize
        header[name] = {"dtype": NAMES[one.dtype], "shape": list(one.shape), "data_offsets": [start, end]}
        start = end
    words = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    words += b" " * (-len(words) % 8)
    yield len(words).to_bytes(8, "little") + words
    for name in names:
        if tensors[name].numel():
            yield tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
