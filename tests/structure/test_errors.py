"""What cannot be read is refused in one line that names the thing and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.storage.run import read_run


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def refused(kind: type[Exception], model: Any, example: Any) -> str:
    """The message of the refusal, which must be one line."""
    with pytest.raises(kind) as caught:
        hope.inspect(model, example)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_example() -> None:
    assert "must be a tensor, a tuple of positional inputs or a dict of keyword inputs, got none" in refused(
        hope.InvalidExample, mlp(), None
    )


@pytest.mark.parametrize("example", [3, "image.png", 1.5, {1, 2}, object()])
def test_an_example_of_an_unsupported_type(example: Any) -> None:
    message = refused(hope.InvalidExample, mlp(), example)
    assert message.startswith("the example must be a tensor")


def test_an_example_of_the_wrong_shape() -> None:
    message = refused(hope.InvalidExample, mlp(), torch.zeros(1, 5))
    assert message.startswith("Sequential cannot run on this example (1x5): ")
    assert message.endswith("pass an example of the shape, dtype and device that the model takes")


@pytest.mark.parametrize("example", [(), {}, (torch.zeros(1, 4), 3), {"wrong": torch.zeros(1, 4)}])
def test_an_example_with_the_wrong_arguments(example: Any) -> None:
    assert "cannot run on this example" in refused(hope.InvalidExample, mlp(), example)


def test_something_that_is_no_module() -> None:
    message = refused(hope.UnsupportedModel, lambda x: x, torch.zeros(1, 4))
    assert message == "the model must be a torch.nn.Module, got a function: pass the module"


def test_parameters_without_data() -> None:
    with torch.device("meta"):
        model = mlp()
    message = refused(hope.UnsupportedModel, model, torch.zeros(1, 4))
    assert message.startswith("0.weight must be given data, got the meta device: load the weights")


def test_sparse_parameters() -> None:
    model = mlp()
    model[2].weight = nn.Parameter(model[2].weight.detach().to_sparse())
    message = refused(hope.UnsupportedModel, model, torch.zeros(1, 4))
    assert message.startswith("2.weight must be dense, got a sparse tensor")
    assert "to_dense()" in message


def test_lazy_modules() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2))
    message = refused(hope.UnsupportedModel, model, torch.zeros(1, 4))
    assert (
        message == "0.weight must be initialised, got a lazy module: run the model once on an example first"
    )


@pytest.mark.filterwarnings("ignore")
def test_quantised_modules() -> None:
    model = nn.Sequential(torch.ao.nn.quantized.dynamic.Linear(4, 8), nn.Linear(8, 2))
    message = refused(hope.UnsupportedModel, model, torch.zeros(1, 4))
    assert "quantise" in message
    assert message.endswith("compress the float model first, then quantise the result")


def test_wrapped_models() -> None:
    message = refused(hope.UnsupportedModel, nn.DataParallel(mlp()), torch.zeros(1, 4))
    assert message == "the model must be the module itself, got DataParallel around it: pass model.module"
    message = refused(hope.UnsupportedModel, torch.compile(mlp(), backend="eager"), torch.zeros(1, 4))
    assert (
        message == "the model must be the module itself, got OptimizedModule around it: pass model._orig_mod"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_models() -> None:
    message = refused(hope.UnsupportedModel, torch.jit.script(mlp()), torch.zeros(1, 4))
    assert message.startswith("the model must be an nn.Module in Python, got a TorchScript module")


class Branching(nn.Module):
    """Decides by the data what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.b(x if x.sum() > 0 else -x)


def test_control_flow_that_depends_on_data() -> None:
    message = refused(hope.UnsupportedModel, Branching(), torch.zeros(1, 4))
    assert message.startswith("Branching runs but torch.export cannot capture it: ")
    assert "replace data-dependent Python in forward()" in message


class Careless(nn.Module):
    """Fails in its own words."""

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("first line\nsecond line " + 500 * "x")


def test_the_models_own_error_is_quoted_by_its_first_line() -> None:
    message = refused(hope.InvalidExample, Careless(), torch.zeros(1, 4))
    assert "(1x4): first line; pass" in message


@pytest.mark.parametrize("model", [Branching(), Careless(), mlp()])
def test_a_refusal_puts_the_training_flags_back(model: nn.Module) -> None:
    for i, module in enumerate(model.modules()):
        module.training = i % 2 == 0
    with pytest.raises(hope.HopeError):
        hope.inspect(model, torch.zeros(1, 4) if not isinstance(model, nn.Sequential) else torch.zeros(1, 3))
    assert [module.training for module in model.modules()] == [
        i % 2 == 0 for i, _ in enumerate(model.modules())
    ]


def test_errors_can_be_caught_as_what_python_calls_them() -> None:
    assert issubclass(hope.InvalidExample, ValueError)
    assert issubclass(hope.InvalidAction, ValueError)


def test_a_model_that_does_not_run_without_data_is_refused_in_one_line() -> None:
    @torch.library.custom_op("shop::choosy", mutates_args=())
    def choosy(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    tried = []

    @choosy.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        tried.append(x)
        if len(tried) > 1:  # capture is the first
            raise RuntimeError("no such kernel")
        return torch.empty_like(x)

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return choosy(x)

    with pytest.raises(
        hope.UnsupportedModel, match=r"Net must run on tensors without data, got an error \(no such kernel"
    ):
        hope.inspect(Net(), torch.zeros(1, 4))


def stream(norm: nn.Module) -> nn.Sequential:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = norm, nn.Linear(6, 8), nn.Linear(8, 6)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(torch.relu(self.up(self.norm(x))))

    return nn.Sequential(nn.Linear(4, 6), Branch(), nn.Linear(6, 2)).eval()


@pytest.mark.parametrize("norm", [nn.Identity(), nn.LayerNorm(6)])
def test_an_anatomy_that_was_read_without_streams(norm: nn.Module) -> None:
    net, x = stream(norm), torch.randn(16, 4)
    method = hope.Absorb(calibration=[x])
    with pytest.raises(hope.UnknownMethod, match=r"must be read with streams=True"):
        hope.encode(net, x, params=0.8, streams=True, anatomy=hope.inspect(net, x), method=method)
    with pytest.raises(hope.UnknownMethod, match=r"must be read with streams=False"):
        hope.encode(net, x, params=0.8, anatomy=hope.inspect(net, x, streams=True), method=method)


def test_an_anatomy_of_another_network() -> None:
    other = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2))
    longer = nn.Sequential(*mlp(), nn.Linear(2, 2))
    x = torch.randn(16, 4)
    with pytest.raises(hope.UnknownMethod, match=r"0\.bias is \(9,\) in it and is \(8,\) in the model"):
        hope.encode(mlp(), x, density=0.5, anatomy=hope.inspect(other, x))
    with pytest.raises(hope.UnknownMethod, match=r"3\.bias is not in it and is \(2,\) in the model"):
        hope.encode(longer, x, density=0.5, anatomy=hope.inspect(mlp(), x))
    twin = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.1), nn.Linear(8, 2))
    with pytest.raises(hope.UnknownMethod, match=r"1 is ReLU\(\) in it and is LeakyReLU\(negative"):
        hope.encode(twin, x, density=0.5, anatomy=hope.inspect(mlp(), x))
    with pytest.raises(
        hope.UnknownMethod, match=r"0\.bias is 4 bytes an entry in it and is 8 bytes an entry"
    ):
        hope.encode(mlp().double(), x.double(), density=0.5, anatomy=hope.inspect(mlp(), x))


class Silent(nn.Dropout):
    def extra_repr(self) -> str:
        raise AttributeError("nothing to say")


def test_what_changes_nothing_is_no_other_network() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), Silent(0.5), nn.Linear(8, 2)).eval()
    x = torch.randn(16, 4)
    anatomy = hope.inspect(net, x)
    net[1].momentum, net[2].inplace, net[3].p = 0.01, True, 0.1
    net.train()
    assert hope.encode(net, x, density=0.5, anatomy=anatomy, progress=False).model[0].out_features == 4


def test_an_anatomy_of_a_saved_run_is_read_again(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(16, 4)
    run = read_run(hope.encode(net, x, method="paper", density=0.5, progress=False).save(tmp_path / "run"))
    assert not run.anatomy.program
    again = hope.encode(net, x, density=0.5, anatomy=run.anatomy, progress=False)
    assert again.trajectory.steps == hope.encode(net, x, density=0.5, progress=False).trajectory.steps
    assert again.model[0].out_features == 4


@pytest.mark.parametrize(
    "given", [{"count": 0}, {"count": -1}, {"count": 2.5}, {"steps": -1}, {"steps": "a"}]
)
def test_dreams_of_numbers_that_make_no_sense(given: dict[str, Any]) -> None:
    with pytest.raises(hope.UnknownMethod, match="must be a whole number from"):
        hope.dream(mlp(), torch.zeros(1, 4), **given)


def test_calibration_that_is_one_batch() -> None:
    with pytest.raises(hope.InvalidExample, match="must be a list of batches, got one dict"):
        hope.encode(
            mlp(),
            torch.zeros(1, 4),
            density=0.5,
            method=hope.Absorb(calibration={"input": torch.zeros(9, 4)}),
        )


def test_an_activation_that_has_no_values() -> None:
    with pytest.raises(hope.UnknownMethod, match="finite"):
        hope.ops.Activation(torch.log)
