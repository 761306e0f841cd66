"""A network as a file that other programs run: ONNX, and torch's own `.pt2`.

Both come from one `torch.export` whose batch may vary, checked on two batches of other sizes than it was
made with: what is written gives the model's answers, or nothing is written.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from hope._util.calls import Example, evaluation, tensors_in
from hope._util.files import staged
from hope.errors import CannotExport, MissingExtra, first_line
from hope.rewrite.activation_ranges import Array
from hope.rewrite.integer_onnx import write_integers
from hope.rewrite.packed_onnx import Grid
from hope.rewrite.programs import ExportedModel, capture, compare

LARGEST = 1_900_000_000  # bytes of weights inside an .onnx file, which cannot be larger than 2 GB
UNCHECKED = "; check=False (--no-check) writes it all the same"


@dataclass(frozen=True)
class Exported:
    """A file that was written; it can be given wherever a path can.

    Attributes:
        path: where it is.
        batch: the batch size that it takes; None if any.
        checked: whether its answers were compared with the model's.
        note: what to know of it, in a line; empty if all is as it should be.
    """

    path: Path
    batch: int | None
    checked: bool
    note: str = ""

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        takes = "it takes batches of any size" if self.batch is None else f"it takes batches of {self.batch}"
        checked = "its answers were checked" if self.checked else "its answers were not checked"
        return f"{self.path}: {self.note or takes}; {checked}"


def export_onnx(
    model: nn.Module,
    example: Example | None,
    path: str | os.PathLike[str],
    *,
    dynamic: bool = True,
    check: bool = True,
    integers: Integers | None = None,
) -> Exported:
    """Write a network as ONNX: one file, its inputs named as the arguments of the model's `forward`.

    The weights are inside the file as long as they are below 2 GB; larger ones are in files next to it.

    Args:
        model: any model that `torch.export` can capture; it is exported in evaluation mode.
        example: an input it can run on.
        path: the file, which is written completely or not at all.
        dynamic: let the batch, the first dimension of every input, be of any size. A model that does not
            allow that is written for the example's batch; a warning and the result's `note` say so.
        check: compare the answers of onnxruntime with the model's on two batch sizes, if it is installed.
        integers: what `Encoding.export_onnx` gives for weights that were rounded.

    Raises:
        MissingExtra: the exporter's packages are not installed.
        CannotExport: the model cannot be written as ONNX, or onnxruntime cannot run it or gives other
            answers.

    Example:
        >>> import tempfile, torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> file = tempfile.mkdtemp() + "/net.onnx"
        >>> written = hope.export_onnx(net, torch.zeros(1, 4), file)  # doctest: +SKIP
        >>> session = onnxruntime.InferenceSession(file)  # doctest: +SKIP
        >>> (answer,) = session.run(None, {"input": numpy.zeros((16, 4), "float32")})  # doctest: +SKIP
    """
    with _quiet(), evaluation(model), torch.no_grad():
        captured = capture(model, example, dynamic)
        with staged(Path(path)) as place:
            _write_onnx(captured, place)
            checked = check and _check_onnx(captured, model, place)
            note = integers.write(place, captured, checked) if integers is not None else ""
    return _written(captured, Path(path), checked, note)


@dataclass(frozen=True)
class Integers:
    """Weights of a model that are on a grid, and what is known of activations.

    Attributes:
        grids: weight -> its grid.
        norms: weight -> mean and deviation of what the BN after it returns.
        inputs: batches to measure ranges on; without any, they come from batch norm.
    """

    grids: Mapping[str, Grid]
    norms: Mapping[str, tuple[Array, Array]]
    inputs: Sequence[Example] = ()

    def write(self, place: Path, captured: ExportedModel, checked: bool) -> str:
        """Replace a float file by one with integers; returns what to know of it, in a line."""
        before = _answers(place, captured) if checked else []
        note = write_integers(place, self.grids, self.norms, [_named(place, one) for one in self.inputs])
        if not checked:
            return note
        pairs = [(torch.as_tensor(a), torch.as_tensor(b))
                 for a, b in zip(before, _answers(place, captured), strict=True)]  # fmt: skip
        far = max(
            float((a - b).norm() / a.norm().clamp(min=1e-12)) for a, b in pairs if a.is_floating_point()
        )
        return f"{note}; on the example its answers differ from the float model's by {far:.1%}"


def onnx_session(model: str | bytes, threads: int | None = None, profile: str = "") -> Any:
    """An ONNX model in onnxruntime, on the CPU.

    Args:
        threads: how many; torch's by default.
        profile: where times of operators are written; "" for nowhere.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads or torch.get_num_threads(), 1
    settings.log_severity_level = 3
    if profile:
        settings.enable_profiling, settings.profile_file_prefix = True, profile
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


def _named(place: Path, call: Any) -> dict[str, Any]:
    """Inputs of a call by the names that an ONNX file has for them."""
    import onnx

    names = [one.name for one in onnx.load(place, load_external_data=False).graph.input]
    arrays = [tensor.detach().cpu().numpy() for tensor in tensors_in(call)]
    return dict(zip(names, arrays, strict=True))


def _answers(place: Path, captured: ExportedModel) -> list[Any]:
    session = onnx_session(str(place))
    return [answer for call in captured.calls for answer in session.run(None, _named(place, call))]


def export_program(
    model: nn.Module,
    example: Example | None,
    path: str | os.PathLike[str],
    *,
    dynamic: bool = True,
    check: bool = True,
) -> Exported:
    """Write a network as a `.pt2` file: `torch.export.load(path).module()` runs without the model's code.

    Args:
        model: any model that `torch.export` can capture; it is exported in evaluation mode.
        example: an input it can run on; the program is called as the example is given, by position or name.
        path: the file, which is written completely or not at all.
        dynamic: let the batch, the first dimension of every input, be of any size. A model that does not
            allow that is written for the example's batch; a warning and the result's `note` say so.
        check: read the file again and compare its answers with the model's on two batch sizes.

    Raises:
        CannotExport: the model cannot be captured, or what was written gives other answers.

    Example:
        >>> import tempfile, torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> written = hope.export_program(net, torch.zeros(1, 4), tempfile.mkdtemp() + "/net.pt2")
        >>> torch.export.load(written).module()(torch.zeros(16, 4)).shape
        torch.Size([16, 2])
    """
    with _quiet(), evaluation(model), torch.no_grad():
        captured = capture(model, example, dynamic)
        with staged(Path(path)) as place:
            data = BytesIO()  # on a full disk, torch's own writer aborts the process
            torch.export.save(captured.program, data)
            place.write_bytes(data.getbuffer())
            if check:
                again = torch.export.load(place).module()
                for args, kwargs in captured.calls:
                    compare(tensors_in(again(*args, **kwargs)), model, (args, kwargs), "the saved program")
    return _written(captured, Path(path), check)


def _written(captured: ExportedModel, path: Path, checked: bool, more: str = "") -> Exported:
    if captured.note:
        warnings.warn(f"{path}: {captured.note}", stacklevel=3)
    return Exported(path, captured.batch, checked, "; ".join(filter(None, (captured.note, more))))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' warnings about themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pass_over_nothing(program: ExportedProgram) -> None:
    """Concatenations without the empty tensors that evicted parts of them hand on: ONNX has no such parts."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.cat.default:
            parts, *dim = node.args
            something = [part for part in parts if tuple(part.meta["val"].shape) != (0,)]
            if something:
                node.args = (something, *dim)
            else:
                node.replace_all_uses_with(parts[0])
                graph.erase_node(node)


def _write_onnx(captured: ExportedModel, place: Path) -> None:
    _pass_over_nothing(captured.program)
    try:
        made = torch.onnx.export(
            captured.program,
            dynamo=True,
            verbose=False,
            output_names=captured.outputs,
            dynamic_shapes=dict(captured.shapes) if captured.shapes else None,
        )
    except ImportError as error:
        raise MissingExtra(
            f"ONNX needs more packages ({error.name}): pip install 'hope-encoding[onnx]'"
        ) from error
    except Exception as error:  # whatever the exporter raises about an operator
        raise CannotExport(
            f"{place.name} cannot be made: {first_line(_root(error))}: "
            "write a .pt2 file instead (export_program)"
        ) from error
    assert made is not None
    weights = (value.const_value for value in made.model.graph.initializers.values())
    size = sum(weight.nbytes for weight in weights if weight is not None)
    made.save(place, external_data=size > LARGEST)


def _root(error: BaseException) -> BaseException:
    """The cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _check_onnx(captured: ExportedModel, model: nn.Module, place: Path) -> bool:
    """Hold onnxruntime's answers against the model's; False if it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return False
    try:
        session = onnx_session(str(place))
        names = [one.name for one in session.get_inputs()]
        for call in captured.calls:
            arrays = [tensor.detach().cpu().numpy() for tensor in tensors_in(call)]
            got = session.run(None, dict(zip(names, arrays, strict=True)))
            compare([torch.as_tensor(one) for one in got], model, call, "onnxruntime")
    except CannotExport as error:
        raise CannotExport(f"{place.name} cannot be written: {error}{UNCHECKED}") from error
    except Exception as error:  # onnxruntime's own, of many kinds
        words = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", first_line(error, 400))
        words = words.replace(str(place), place.name)
        raise CannotExport(
            f"{place.name} cannot be written: onnxruntime cannot run it: {words}{UNCHECKED}"
        ) from error
    return True
