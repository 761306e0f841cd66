"""Capture: a module and an example become an operator graph with concrete shapes (`torch.export`).

The graph is for reading only. Nothing here knows what a neuron is.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from hope._util.calls import Example, as_call, by_name, evaluation, mode, runs
from hope._util.progress import READ, busy
from hope._util.tokens import check_tokens
from hope.errors import InvalidExample, UnsupportedModel, first_line
from hope.trace.exporting import exported, shapes_of, unchanged, unsized, way_out

QUANTISED = ("Linear8bitLt", "Linear4bit", "LinearFP4", "LinearNF4")  # of bitsandbytes
FLOAT = "compress the float model first, then quantise the result"
ADAPTED = (("lora_A",), ("lora_embedding_A",), ("base_layer", "active_adapters"))  # what peft's modules have


@dataclass(frozen=True)
class Graph:
    """A captured forward pass."""

    nodes: tuple[Node, ...]  # every node in order of execution
    tensors: Mapping[str, str]  # placeholder name -> name of the parameter or buffer it stands for
    inputs: tuple[str, ...]  # names of the placeholders that carry the example, in the order of the call
    constants: Mapping[str, Any]  # placeholder or attribute name -> what else the graph holds
    training: bool  # whether the pass was captured in training mode


def check_readable(model: nn.Module) -> None:
    """Refuse models whose weights cannot be read or cut, in one line that says what to do."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(
            f"the model must be a torch.nn.Module, got a {type(model).__name__}: pass the module"
        )
    for wrapper, inner in (
        ("DistributedDataParallel", "module"),
        ("DataParallel", "module"),
        ("OptimizedModule", "_orig_mod"),
    ):
        if type(model).__name__ == wrapper:
            raise UnsupportedModel(
                f"the model must be the module itself, got {wrapper} around it: pass model.{inner}"
            )
    if any(kind.__module__ == "ultralytics.engine.model" for kind in type(model).__mro__):
        raise UnsupportedModel(
            f"the model must be the network itself, got ultralytics' {type(model).__name__}: pass its .model"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModel(
            "the model must be an nn.Module in Python, got a TorchScript module: pass what it was made from"
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        wrong = _unreadable(name, tensor)
        if wrong is not None:
            what, way = wrong
            raise UnsupportedModel(f"{name} must be {what}: {way}")
    for name, module in model.named_modules():
        kind = type(module).__name__
        if "quantized" in type(module).__module__.split(".") or kind in QUANTISED:
            raise UnsupportedModel(
                f"{name or kind} must be a float module, got a quantised one ({kind}): {FLOAT}"
            )
        if any(all(hasattr(module, one) for one in names) for names in ADAPTED):
            raise UnsupportedModel(
                f"{name or kind} must be a plain layer, got one with an adapter (LoRA): "
                "merge it first, model = model.merge_and_unload()"
            )


def _unreadable(name: str, tensor: Tensor) -> tuple[str, str] | None:
    """What a parameter or buffer must be instead, and what to do; None if it can be read."""
    if is_lazy(tensor):
        return "initialised, got a lazy module", "run the model once on an example first"
    if tensor.is_meta:
        return "given data, got the meta device", "load the weights (to_empty, load_state_dict)"
    if tensor.layout is not torch.strided:
        return f"dense, got a sparse tensor ({tensor.layout})", "call .to_dense() on it first"
    packed = isinstance(tensor, nn.Parameter) and tensor.ndim > 1 and tensor.itemsize == 1  # int8, float8
    if tensor.is_quantized or packed or name.rpartition(".")[2] == "qweight":
        return f"floating point, got {tensor.dtype}", FLOAT
    return None


def capture(
    model: nn.Module, example: Example | None, *, training: bool = False, progress: bool | None = None
) -> Graph:
    """Export the model on the example and return its graph.

    The model is run in evaluation mode (or training mode on request) and put back as it was.

    Raises:
        InvalidExample: the model itself fails on the example.
        UnsupportedModel: the model runs, but `torch.export` cannot capture it.
    """
    args, kwargs = as_call(example)
    check_tokens(model, example)
    with mode(model, training), unchanged(model), busy(READ, progress):
        try:
            program = exported(model, args, kwargs)
        except Exception as error:  # torch.export raises many kinds; all mean the same to the caller
            raise _explain(model, args, kwargs, error) from error
    if not training:  # export computes shapes alone
        given = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        before = [one.clone() for one in given]
        failure = _failure(model, args, kwargs)
        if failure is not None:
            raise failure
        _check_unwritten(model, given, before)
        if (maker := unsized(program)) is not None:
            way = way_out(model, args, kwargs)
            raise UnsupportedModel(
                f"{type(model).__name__} must run on tensors without data, got {maker}, the size of whose "
                f"result depends on data: {way}"
            )
    return _graph(model, program, training)


def _check_unwritten(model: nn.Module, given: list[Tensor], before: list[Tensor]) -> None:
    """Restore and refuse inputs that a forward has written into: two runs on them would differ."""
    for now, was in zip(given, before, strict=True):
        if not bool(((now == was) | (was != was)).all()):
            now.copy_(was)
            raise UnsupportedModel(
                f"{type(model).__name__} must not write into its input, got one that it changes: let its "
                "forward copy it first (x = x.clone())"
            )


def _explain(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Exception:
    """Whether the example or the model failed: the model is run to find out."""
    name = type(model).__name__
    if any(module.training for module in model.modules()):
        return UnsupportedModel(
            f"{name} cannot be captured in training mode ({first_line(error)}): call model.eval()"
        )
    config, given = getattr(model, "config", None), {**by_name(model, args), **kwargs}
    second = any(key.startswith("decoder") or key == "labels" for key in given)
    if getattr(config, "is_encoder_decoder", False) and not second:
        return InvalidExample(
            f"{name} must get two texts, got one: give both by name, decoder_input_ids besides "
            f"{getattr(model, 'main_input_name', 'input_ids')}"
        )
    failure = _failure(model, args, kwargs)
    if failure is not None:
        return failure
    return UnsupportedModel(
        f"{name} runs but torch.export cannot capture it: {first_line(error)}{_line(error)}; "
        f"replace data-dependent Python in forward(), or {way_out(model, args, kwargs)}"
    )


def _line(error: Exception) -> str:
    """The line of code outside torch where tracing stopped."""
    folders = Path(torch.__file__).parent, Path(__file__).parents[1]
    ours = (*(f"{folder}{os.sep}" for folder in folders), "<")
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(ours)]
    if not frames or not frames[-1].line:
        return ""
    return f" (in {Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line.strip()})"


def _failure(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InvalidExample | None:
    """Why a model cannot run on an example; None if it can."""
    if any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()]):
        return None
    try:
        with evaluation(model), unchanged(model), torch.no_grad():
            model(*args, **kwargs)
    except Exception as failure:  # whatever the user's forward raises
        way = "pass an example of the shape, dtype and device that the model takes"
        one: Any = kwargs if kwargs else list(args)
        with unchanged(model):
            alone = not (args and kwargs) and runs(model, (one,))
        if alone:
            way = f"its forward takes one {type(one).__name__}: pass the tuple (example,)"
        error = InvalidExample(
            f"{type(model).__name__} cannot run on this example ({shapes_of(args, kwargs)}): "
            f"{first_line(failure)}; {way}"
        )
        error.__cause__ = failure
        return error
    return None


def _graph(model: nn.Module, program: ExportedProgram, training: bool) -> Graph:
    signature = program.graph_signature
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        if any("slice(" in path for path, _ in stack.values()):
            node.meta["nn_module_stack"] = {
                call: (_whole(model, path), kind) for call, (path, kind) in stack.items()
            }
    first: dict[int, str] = {}  # a tensor with several names is called by the first
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    called = {name: first.setdefault(id(tensor), name) for name, tensor in every}
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    tensors = {placeholder: called.get(name, name) for placeholder, name in named.items()}
    return Graph(
        nodes=tuple(program.graph.nodes),
        tensors=tensors,
        inputs=tuple(spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT),
        constants=_constants(program, set(tensors)),
        training=training,
    )


def _whole(model: nn.Module, path: str) -> str:
    """The way to a module that was reached through a part of a list ("layers.slice(1, None, None).0"), as
    export names it in models that have a module in several places: the way from the whole list ("layers.1").
    """
    module, known, part = model, list[str](), slice(None)
    for name in path.split("."):
        if name.startswith("slice("):
            numbers = name.removeprefix("slice(").removesuffix(")").split(", ")
            part = slice(*(None if number == "None" else int(number) for number in numbers))
            continue
        children = dict(module.named_children())
        name = list(children)[part][int(name)] if part != slice(None) else name
        module, part = getattr(module, name, module), slice(None)
        known.append(name)
    return ".".join(known)


def _constants(program: ExportedProgram, known: Collection[str]) -> dict[str, Any]:
    """What the graph holds besides parameters, buffers and inputs: tensors of its own, and sub-graphs."""
    signature = program.graph_signature
    lifted = {**signature.inputs_to_lifted_tensor_constants, **signature.inputs_to_buffers}
    found = {
        placeholder: program.constants[name]
        for placeholder, name in lifted.items()
        if placeholder not in known and name in program.constants
    }
    for node in program.graph.nodes:
        if node.op == "get_attr":
            found[node.name] = attrgetter(str(node.target))(program.graph_module)
    return found
