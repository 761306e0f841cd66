"""Models and moments that memory does not hold twice: the same results, with nothing written into a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope._util.memory import allowed, filed, share_weights
from hope.schedule.scheduler import FIRST
from hope.statistics import measured

transformers = pytest.importorskip("transformers", reason="the large models are of transformers")
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model in half precision, as others have saved it."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **HEADS)).bfloat16()
    path = tmp_path_factory.mktemp("llama")
    model.save_pretrained(path, max_shard_size="20KB")
    return path


def loaded(folder: Path) -> nn.Module:
    model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model.eval()


def batches() -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(2, 64, (8, 16), generator=draw)} for _ in range(3)]


@pytest.fixture(scope="module")
def anatomy(folder: Path) -> hope.Anatomy:
    return hope.inspect(loaded(folder), batches()[0])


def encoded(model: nn.Module, anatomy: hope.Anatomy, **options: Any) -> hope.Encoding:
    options |= {"method": hope.Absorb(calibration=iter(batches())), "anatomy": anatomy}
    return hope.encode(model, batches()[0], params=0.6, progress=False, **options)


@pytest.mark.parametrize(("moments", "uniform"), [(0, True), (100_000, False)])
def test_a_run_with_little_memory_is_the_same(
    folder: Path, anatomy: hope.Anatomy, moments: int, uniform: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = encoded(loaded(folder), anatomy, uniform=uniform)
    monkeypatch.setenv("HOPE_MEMORY", "0")
    monkeypatch.setattr(measured, "allowed", lambda: moments)  # a ceiling as low would refuse the run
    little = encoded(loaded(folder), anatomy, uniform=uniform)
    assert {one.covariance.dtype for one in little.input_statistics.values()} == {torch.float32}
    assert little.trajectory.steps == plain.trajectory.steps
    assert len(plain.trajectory) > 2 * 48 // FIRST  # paths went beyond their first part
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(tensor, little.model.state_dict()[name]), name


def test_moments_are_measured_in_parts_that_memory_holds(
    folder: Path, anatomy: hope.Anatomy, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[set[str]] = []
    gather = measured._gather

    def noted(model: Any, anatomy: Any, inputs: Any, sums: Any, *rest: Any, **options: Any) -> None:
        passes.append(set(sums))
        gather(model, anatomy, inputs, sums, *rest, **options)

    monkeypatch.setattr(measured, "_gather", noted)
    encoded(loaded(folder), anatomy)
    monkeypatch.setenv("HOPE_MEMORY", "0")
    encoded(loaded(folder), anatomy)
    assert len(passes[0]) == 4
    assert list(map(len, passes[1:])) == [1] * 4
    assert set.union(*passes[1:]) == passes[0]


def test_nothing_is_written_into_a_model_or_its_files(
    folder: Path, anatomy: hope.Anatomy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPE_MEMORY", "0")
    files = {path: path.read_bytes() for path in folder.glob("*.safetensors")}
    assert len(files) > 1
    model = loaded(folder)
    before = [(tensor.data_ptr(), tensor._version, tensor.clone()) for tensor in model.parameters()]
    small = encoded(model, anatomy).model
    after = list(model.parameters())
    assert all(a.data_ptr() == pointer and a._version == version and torch.equal(a, value)
               for a, (pointer, version, value) in zip(after, before, strict=True))  # fmt: skip
    assert {path: path.read_bytes() for path in files} == files
    with torch.no_grad():
        for tensor in small.parameters():  # the small model is its owner's alone
            tensor.zero_()
    assert all(torch.equal(a, value) for a, (_, _, value) in zip(after, before, strict=True))


def test_a_large_model_is_not_copied_and_a_change_of_it_is_noticed(
    folder: Path, anatomy: hope.Anatomy, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(folder)
    mine = {tensor.data_ptr() for tensor in model.parameters()}
    assert not mine & {tensor.data_ptr() for tensor in encoded(model, anatomy).original.parameters()}
    monkeypatch.setenv("HOPE_MEMORY", "0")
    encoding = encoded(model, anatomy)
    assert {tensor.data_ptr() for tensor in encoding.original.parameters()} == mine
    assert torch.equal(encoding.at(steps=0)(**batches()[0]).logits, model(**batches()[0]).logits)
    small = encoding.at(steps=3).state_dict()
    model.double()  # its own numbers, elsewhere
    again = encoding.at(steps=3).state_dict()
    assert all(torch.equal(small[name], again[name]) for name in small)
    next(encoding.original.parameters()).data.mul_(2)  # what no version counter tells
    for use in (lambda: encoding.at(steps=3), lambda: encoding.save(folder / "run"), encoding.as_run):
        with pytest.raises(hope.errors.InvalidAction, match="must not be changed"):
            use()


@pytest.mark.parametrize("given", ["much", "-1", "nan"])
def test_an_amount_that_is_none_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPE_MEMORY", given)
    with pytest.raises(hope.errors.UnknownMethod, match="HOPE_MEMORY"):
        allowed()
    with pytest.raises(hope.errors.UnknownMethod, match="memory must be"):
        hope.encode(nn.Linear(2, 2), torch.zeros(1, 2), steps=0, memory=given)


def test_what_is_held_in_a_file_is_as_it_was() -> None:
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(filed(tensor), tensor)


class Copied(nn.Module):
    """A module that copies itself in its own way, parameters and all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Copied:
        other = Copied()
        other.load_state_dict(self.state_dict())
        return other


def test_a_module_that_copies_its_own_parameters_keeps_them() -> None:
    model = nn.Sequential(Copied(), nn.Linear(2, 2))
    other = share_weights(model)
    x = torch.randn(4, 3)
    assert torch.equal(other(x), model(x))
    assert other[1].weight.data_ptr() == model[1].weight.data_ptr()  # type: ignore[index]
    assert other[0].linear.weight.data_ptr() != model[0].linear.weight.data_ptr()  # type: ignore[index, union-attr]
