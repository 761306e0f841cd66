"""MODEL, --weights, --pretrained and --input on the command line."""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hope._util.notes import note
from hope._util.operators import NOTE, declare_missing_operators
from hope.cli.text import TOKENS, from_pretrained, reads_tokens, tokens, usual
from hope.errors import HopeError, InvalidExample, UnknownModel, first_line

if TYPE_CHECKING:
    from torch import Tensor, nn

INPUT = "1x3x224x224"
HELP = "torchvision:NAME, timm:NAME, hf:FOLDER, hf:ORG/NAME, or file.py:function (which returns the model)"

EXTRAS = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}  # which brings what
LIBRARIES = ("torchvision", "timm")  # these build networks with random weights, or with their own
_noted: set[str] = set()


def add_arguments(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The arguments of every command that takes a model."""
    parser.add_argument("model", metavar="MODEL", nargs="?" if optional else None, help=HELP)
    parser.add_argument(
        "--weights", metavar="FILE", help="a checkpoint: .safetensors, or .pt/.pth with a state dict"
    )
    parser.add_argument(
        "--pretrained", action="store_true", help="the weights that torchvision or timm have for the model"
    )
    parser.add_argument(
        "--input",
        metavar="SHAPE",
        default=INPUT,
        help=f"shape of an input (default: %(default)s; {TOKENS} tokens for a language model)",
    )


def build(options: argparse.Namespace) -> tuple[nn.Module, Tensor | dict[str, Tensor]]:
    """The model with its weights, and an example input."""
    inputs: Tensor | dict[str, Tensor] = example(
        options.input
    )  # a wrong shape is reported before anything loads
    pretrained = bool(getattr(options, "pretrained", False))
    if pretrained and options.weights:
        raise UnknownModel("--pretrained and --weights cannot be combined: omit one of them")
    model = make(options.model, pretrained=pretrained)
    if options.weights:
        from hope.cli.weights import load_weights

        load_weights(model, Path(options.weights))
    shape = usual(model, INPUT) if options.input == INPUT else options.input
    inputs = tokens(model, _sizes(shape), shape) if reads_tokens(model) else example(shape)
    return model.eval(), inputs


def build_plain(options: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """The same for what is measured on images: a model that takes one tensor."""
    from torch import Tensor

    model, inputs = build(options)
    if not isinstance(inputs, Tensor):
        raise UnknownModel(
            f"MODEL must take one tensor, got {options.model}, which takes tokens: measure another"
        )
    return model, inputs


@contextmanager
def loading(options: argparse.Namespace) -> Iterator[None]:
    """A spinner while torch and the model are loaded; not together with a download bar."""
    from hope._util.progress import LOAD, busy

    with nullcontext() if getattr(options, "pretrained", False) else busy(LOAD):
        yield


def random_weights(options: argparse.Namespace) -> bool:
    """Whether the requested model has random weights."""
    given = options.weights or getattr(options, "pretrained", False)
    return options.model.partition(":")[0] in LIBRARIES and not given


def is_code(spec: str) -> bool:
    """Whether building a model runs a file that its name names.

    >>> is_code("torchvision:resnet18"), is_code("hf:folder"), is_code("net.py:build"), is_code("hf:a.py:b")
    (False, False, True, True)
    """
    return spec.rpartition(":")[0] not in EXTRAS


def make(spec: str, *, pretrained: bool = False) -> nn.Module:
    """A model by its name on the command line. Random weights are the same every time, so that a run on them
    can be resumed and extracted.
    """
    import torch
    from torch import nn

    source, _, name = spec.rpartition(":")
    if not source or not name:
        raise UnknownModel(f"MODEL must be {HELP}, got {spec!r}: give one of these")
    if pretrained and source not in LIBRARIES:
        raise UnknownModel(
            f"--pretrained must go with {' or '.join(LIBRARIES)}, got {spec}: give --weights FILE"
        )
    missing, known = declare_missing_operators(), "torchvision" in sys.modules
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = _made(source, name, pretrained)
    except ImportError as error:
        extra = EXTRAS.get(source)
        way = f"pip install 'hope-encoding[{extra}]'" if extra else "install what the file imports"
        raise UnknownModel(f"{spec} cannot be imported ({first_line(error)}): {way}") from error
    except HopeError:
        raise
    except Exception as error:  # whatever the library or the user's function raises
        raise UnknownModel(_why(spec, pretrained, error)) from error
    if missing and not known and "torchvision" in sys.modules and NOTE not in _noted:
        _noted.add(NOTE)
        note(NOTE)
    if not isinstance(model, nn.Module):
        raise UnknownModel(
            f"{spec} must give a torch.nn.Module, got {type(model).__name__}: return the model"
        )
    return model


def _made(source: str, name: str, pretrained: bool) -> Any:
    from torch import nn

    if source == "torchvision":
        models = importlib.import_module("torchvision.models")
        return models.get_model(name, weights="DEFAULT" if pretrained else None)
    if source == "timm":
        return importlib.import_module("timm").create_model(name, pretrained=pretrained)
    if source == "hf":
        from hope.rewrite.experts import stacks, unstack_experts

        library = importlib.import_module("transformers")
        config = from_pretrained(library.AutoConfig, name)
        _check_kernels(name, config)
        own = _class_of(config, library)
        model = from_pretrained(own, name, weights_only=True)
        return unstack_experts(model) if any(map(stacks, model.modules())) else model
    found = _named(_file(Path(source)), name, source)
    return found if isinstance(found, nn.Module) else found()


def function(spec: str) -> Any:
    """The function that "file.py:name" names."""
    source, _, name = spec.rpartition(":")
    if not source or not name:
        raise UnknownModel(
            f"--evaluate must be FILE.py:FUNCTION, got {spec!r}: give a file and a function in it"
        )
    return _named(_file(Path(source)), name, source)


def _named(module: Any, name: str, source: str) -> Any:
    """What a file calls by a name: a function or class that makes a model, or a model."""
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = difflib.get_close_matches(name, own, 1)
        way = f"did you mean {near[0]}?" if near else f"give {HELP}"
        raise UnknownModel(f"there is no {name} in {source}: {way}")
    return getattr(module, name)


def _class_of(config: Any, library: Any) -> Any:
    """The class that a configuration names, if it is a model of transformers, and no other thing in there."""
    found = getattr(library, (config.architectures or [""])[0], None)
    is_model = isinstance(found, type) and issubclass(found, library.PreTrainedModel)
    return found if is_model else library.AutoModel


def _check_kernels(name: str, config: Any) -> None:
    """Refuse configurations that have code fetched: attention as a kernel from a hub ("owner/name")."""
    from hope._util.calls import configs

    for one in configs(config):
        attention = getattr(one, "_attn_implementation", None)
        if "/" in str(attention):
            raise UnknownModel(
                f"{name} must not bring code, got attn_implementation={attention!r}, a kernel from a hub: "
                "remove it from config.json"
            )


def _why(spec: str, pretrained: bool, error: Exception) -> str:
    """Why a model cannot be built; with the library's own weights, the way there is the likeliest reason."""
    if pretrained and isinstance(error, (OSError, RuntimeError)):
        return (
            f"the weights of {spec} cannot be had ({first_line(error)}): "
            "fetch a checkpoint elsewhere and give --weights FILE"
        )
    source, _, name = spec.partition(":")
    if source == "hf" and not Path(name).is_dir():
        return (
            f"there is no folder {name}, and no such model in the Hugging Face cache or on the hub "
            f"({first_line(error, 100)}): "
            "give hf:FOLDER with a model that transformers has saved, or hf:ORG/NAME"
        )
    near = difflib.get_close_matches(name, _library_names(source), 1)
    if near and near[0] != name:
        return f"there is no {spec}: did you mean {source}:{near[0]}?"
    return f"{spec} cannot be built: {first_line(error)}"


def _library_names(source: str) -> list[str]:
    """The models of a library."""
    if source not in LIBRARIES:
        return []
    module = importlib.import_module({"torchvision": "torchvision.models"}.get(source, source))
    return [str(name) for name in module.list_models()]


def _file(path: Path) -> Any:
    if not path.is_file():
        raise UnknownModel(f"there is no file {path}: give {HELP}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UnknownModel(f"{path} must be a Python file, got another: give FILE.py")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # a file imports its neighbours, as it does when Python runs it
        sys.path.insert(0, folder)
    spec.loader.exec_module(module)
    return module


def example(shape: str) -> Tensor:
    """An input of noise.

    >>> example("2x3x8x8").shape
    torch.Size([2, 3, 8, 8])
    """
    import torch

    sizes = _sizes(shape)
    try:
        return torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    except RuntimeError as error:
        raise InvalidExample(
            f"--input {shape} cannot be made: {first_line(error)}: give a smaller one"
        ) from error


def _sizes(shape: str) -> list[int]:
    try:
        sizes = [int(size) for size in shape.lower().split("x")]
    except ValueError:
        raise InvalidExample(f"--input must be a shape, got {shape}: write it like 1x3x224x224") from None
    if min(sizes) < 1:
        raise InvalidExample(f"--input must have sizes of at least 1, got {shape}: write it like 1x3x224x224")
    return sizes
