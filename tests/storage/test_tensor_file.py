"""Files of tensors have the bytes that safetensors writes, and need no memory of their own."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

import hope
from hope._util.tensor_file import NAMES, hash_of, tensor_bytes, write_tensor_file


def test_all_types_have_the_bytes_of_safetensors() -> None:
    tensors = {f"{dtype}-{k}": torch.ones(k, 3).to(dtype) for dtype in NAMES for k in (0, 1, 5)}
    tensors |= {
        "scalar": torch.tensor(2.5),
        "ünïcode": torch.ones(2),
        "crossed": torch.arange(6.0).reshape(2, 3).T,
    }
    assert b"".join(tensor_bytes(tensors)) == save({k: v.contiguous() for k, v in tensors.items()})
    assert hash_of(tensors) == hashlib.sha256(b"".join(tensor_bytes(tensors))).hexdigest()


def test_shared_memory_is_written_once_per_name(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    write_tensor_file(tmp_path / "x", {"whole": whole, "part": whole[2:5], "again": whole})
    found = load_file(tmp_path / "x")
    assert all(torch.equal(found[name], value) for name, value in (("whole", whole), ("part", whole[2:5])))


def test_writing_takes_no_copy_of_all_tensors(tmp_path: Path) -> None:
    tensors = {str(k): torch.zeros(1 << 20) for k in range(8)}
    tracemalloc.start()
    try:
        write_tensor_file(tmp_path / "x", tensors)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_type_that_no_file_has_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(hope.CannotWrite, match=r"a\.b must have a type .*, got torch\.complex128"):
        write_tensor_file(tmp_path / "x", {"a.b": torch.zeros(1, dtype=torch.complex128)})
    assert not list(tmp_path.iterdir())
