"""The runtime of a latency budget: an engine, a batch size, a number of threads; and this machine."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hope.errors import MissingExtra, UnknownMethod, UnsupportedModel, first_line

ENGINES = ("torch", "onnxruntime")


@dataclass(frozen=True)
class Runtime:
    """The runtime of a budget in time.

    Attributes:
        engine: "torch" (eager) or "onnxruntime", both on the CPU of this machine.
        batch: the batch size; None for the example's.
        threads: the number of threads; None for torch's.

    Example:
        >>> import hope
        >>> print(hope.Runtime("onnxruntime", batch=8, threads=2))
        onnxruntime, batch 8, 2 threads
    """

    engine: str = "torch"
    batch: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UnknownMethod(
                f"runtime must be one of {', '.join(ENGINES)}, got {self.engine!r}: give one of them"
            )
        for name in ("batch", "threads"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UnknownMethod(
                    f"{name} must be a whole number from 1, got {value!r}: omit it for the default"
                )

    def resolved(self, batch: int) -> Runtime:
        """The same with all values resolved, for an example with so many inputs."""
        return replace(self, batch=self.batch or batch, threads=self.threads or torch.get_num_threads())

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"engine": self.engine, "batch": self.batch, "threads": self.threads}

    def __str__(self) -> str:
        batch = "the example's batch" if self.batch is None else f"batch {self.batch}"
        threads = "" if self.threads is None else f", {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.engine}, {batch}{threads}"


def runtime_of(given: Runtime | str | None) -> Runtime:
    """A runtime by its name or as an object, if it is installed.

    Raises:
        UnknownMethod: there is no such runtime.
    """
    runtime = given if isinstance(given, Runtime) else Runtime("torch" if given is None else given)
    for package in ("onnx", "onnxscript", "onnxruntime") if runtime.engine == "onnxruntime" else ():
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtra(
                f"{package} cannot be imported ({first_line(error)}): pip install 'hope-encoding[onnx]', or "
                "use runtime='torch' (--runtime torch)"
            ) from error
    return runtime


def check_device(model: nn.Module) -> None:
    """Refuse a model that is not on the CPU."""
    away = next((one.device for one in model.parameters() if one.device.type != "cpu"), None)
    if away is not None:
        raise UnsupportedModel(
            f"the model must be on the CPU for latency, got {away}: pass model.cpu(), or another budget"
        )


def machine(runtime: Runtime) -> dict[str, Any]:
    """What times depend on besides the network: machine and versions."""
    versions = {"torch": str(torch.__version__)}
    if runtime.engine == "onnxruntime":
        versions["onnxruntime"] = importlib.import_module("onnxruntime").__version__
    return {"cpu": _cpu(), "cores": os.cpu_count() or 1, "system": platform.system(), **versions}


def _cpu() -> str:
    """The processor's name."""
    return _cpu_field("model name") or platform.processor() or platform.machine()


def _cpu_field(what: str) -> str:
    """Linux' description of its first processor; "" elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(what)), "")


def block_of(runtime: Runtime) -> int:
    """The block width of an engine: onnxruntime pads the channels of convolutions to 16 on processors with
    AVX-512, to 8 on others.
    """
    if runtime.engine == "torch":
        return 1
    return 16 if "avx512f" in _cpu_field("flags").split() else 8


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads while the body runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
