"""Models that take their inputs in lists and dicts are compressed like those that take a plain tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.errors import InvalidExample
from hope.evaluate.fidelity import Fidelity


class Takes(nn.Module):
    """A network whose forward finds its images in something else."""

    def __init__(self, images: Callable[[Any], Tensor]) -> None:
        super().__init__()
        conv, more = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 16, 3, padding=1)
        first, second = nn.BatchNorm2d(12), nn.BatchNorm2d(16)
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
        self.net = nn.Sequential(conv, first, nn.ReLU(), more, second, nn.ReLU(), *head)
        self.images = images

    def forward(self, images: Any) -> Any:
        return self.net(self.images(images))


def made(images: Callable[[Any], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    model = Takes(images)
    for _ in range(3):
        model.net(2 * torch.randn(32, 3, 8, 8) + 0.5)  # BN statistics
    return model.eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
CALLS: dict[str, tuple[Callable[[Any], Tensor], Any]] = {
    "a list of one batch": (lambda given: given[0], ([X],)),
    "a list of images": (torch.stack, ([X[0], X[1]],)),
    "a tuple of one image": (lambda given: torch.stack(list(given)), ((X[0],),)),
    "a dict of a batch": (lambda given: given["image"], ({"image": X, "size": 8},)),
    "a dict of a list": (lambda given: torch.stack(given["images"]), ({"images": [X[0]], "name": "a"},)),
    "a keyword": (lambda given: given["image"], {"images": {"image": X}}),
}


@pytest.mark.parametrize(
    ("call", "method"), [*((call, "patterns") for call in CALLS), ("a list of images", "dream")]
)
def test_nested_inputs_give_the_trajectory_of_a_plain_tensor(call: str, method: str) -> None:
    images, example = CALLS[call]
    plain = hope.encode(made(lambda x: x), X, params=0.6, calibration=method)
    nested = hope.encode(made(images), example, params=0.6, calibration=method)
    assert nested.trajectory.steps == plain.trajectory.steps
    assert nested.notes == plain.notes
    assert nested.fidelity == pytest.approx(plain.fidelity, abs=0.01)  # on other roundings of the same probes
    args, kwargs = ((), example) if isinstance(example, dict) else (example, {})
    small = nested.model(*args, **kwargs)
    torch.testing.assert_close(small, plain.model(X)[: len(small)], atol=1e-5, rtol=1e-4)


def test_a_list_of_feature_maps_of_different_sizes_has_inputs_in_rows() -> None:
    model = made(lambda maps: maps[0] + nn.functional.interpolate(maps[1], scale_factor=2))
    encoding = hope.encode(model, ([X, X[..., :4, :4]],), params=0.6)
    assert encoding.notes == ()
    assert encoding.fidelity > 0.5


def test_batches_of_lists_are_joined_by_their_entries() -> None:
    batches = [(list(torch.randn(4, 3, 8, 8)),) for _ in range(3)]
    model = made(torch.stack)
    fidelity = Fidelity(model, ([X[0]],), inputs=batches, count=10)
    assert fidelity(model) == 1
    assert [len(output) for output in fidelity._outputs.values()] == [10]
    encoding = hope.encode(model, ([X[0]],), params=0.6, calibration=batches)
    assert encoding.fidelity > 0.5


def test_a_model_that_runs_on_one_number_of_inputs_only_is_refused_in_one_line() -> None:
    model = made(lambda images: torch.stack([images[0], images[1]]).reshape(2, 3, 8, 8))
    one = made(lambda given: given["image"].reshape(2, 3, 8, 8))
    with pytest.raises(InvalidExample, match="runs on the example's number only") as failure:
        hope.encode(one, ({"image": X},), params=0.6)
    assert len(str(failure.value).splitlines()) == 1
    assert hope.encode(model, ([X[0], X[1]],), params=0.6).steps  # more entries are left out


@pytest.mark.parametrize(
    ("images", "example"), [(lambda given: given["image"], {"image": X}), (torch.stack, [X[0], X[1]])]
)
def test_an_example_that_is_not_in_a_tuple_is_refused_with_the_way(images: Any, example: Any) -> None:
    with pytest.raises(InvalidExample, match=r"takes one (dict|list): pass the tuple \(example,\)"):
        hope.inspect(made(images), example)


def test_a_saved_run_of_nested_inputs_has_its_other_budgets(tmp_path: Path) -> None:
    images, _ = CALLS["a dict of a list"]
    model, example = made(images), ({"images": [X[0], X[1]]},)
    encoding = hope.encode(model, example, params=0.5)
    again = hope.load(encoding.save(tmp_path / "run"), model, params=0.8)
    torch.testing.assert_close(again(*example), encoding.at(params=0.8)(*example), atol=1e-5, rtol=1e-4)
