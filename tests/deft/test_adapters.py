"""Several tasks on one core, and trainers that other libraries bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.deft import InvalidPartition, Tuning
from tests.deft.nets import (
    assert_core_kept,
    assert_slack_moved,
    chain,
    core_entries,
    images,
    made,
    slack_entries,
)
from tests.deft.nets import train as steps


def _pair(heads: tuple[int | None, int | None] = (4, 3)) -> tuple[nn.Module, Tuning, Tuning]:
    net = made(chain())
    part = hope.deft.partition(net, images(2), free=0.3)
    first, second = (hope.deft.prepare(net, part, head=head) for head in heads)
    return net, first, second


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_adapters_on_one_core_are_switched_by_name(tmp_path: Path) -> None:
    net, first, second = _pair()
    x = images()
    steps(first.model, _sgd(first.model))
    second.model.train()
    second.model(images(16, 5)).square().sum().backward()
    _sgd(second.model).step()
    answers = {"default": first.model.eval()(x), "digits": second.model.eval()(x)}
    loaded = hope.deft.load(second.save_pretrained(tmp_path), net)
    with first.disable_adapter() as network:
        source = network(x)
    first.add_adapter("digits", loaded)
    for name in ("digits", "default", "digits"):
        first.set_adapter(name)
        assert first.active_adapter == name
        assert torch.equal(first.model.eval()(x), answers[name])
        assert first.moved() == []
        with first.disable_adapter() as network:
            assert torch.equal(network(x), source)
    assert set(first.adapters) == {"default", "digits"}


def test_adapters_that_do_not_fit_are_refused() -> None:
    net, first, second = _pair()
    other = hope.deft.wrap(net, images(2), free=0.5, head=4)
    with pytest.raises(
        hope.CheckpointMismatch,
        match=r"'digits' must have the core .* trains [1-9]\d* entries .*: prepare",
    ):
        first.add_adapter("digits", other)
    first.add_adapter("digits", second)
    with pytest.raises(InvalidPartition, match="must have a new name, got 'digits'"):
        first.add_adapter("digits", second)
    with pytest.raises(InvalidPartition, match="one of default, digits, got 'dogs'"):
        first.set_adapter("dogs")
    with pytest.raises(InvalidPartition, match="must be active at a time"):
        first.set_adapter(["default", "digits"])  # type: ignore[arg-type]


def test_a_merged_model_is_a_plain_one() -> None:
    _, tuning, shared = _pair((4, None))
    steps(tuning.model, _sgd(tuning.model))
    x, model = images(), tuning.merge_and_unload()
    assert torch.equal(model.eval()(x), tuning.model.eval()(x))
    before = [p.detach().clone() for p in model.parameters()]
    steps(model, _sgd(model))
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with pytest.raises(InvalidPartition, match=r"merge_and_unload\(keep_source=False\)"):
        shared.merge_and_unload()
    assert shared.merge_and_unload(keep_source=False)(x).shape == (8, 5)


def test_the_size_of_a_delta_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = hope.deft.wrap(made(chain()), images(2), grow=0.1, head=4)
    tuning.save_pretrained(tmp_path)
    size = sum(file.stat().st_size for file in tmp_path.glob("adapter*"))
    assert f"{size:,} bytes" in capsys.readouterr().err


# ---- trainers ----------------------------------------------------------------------------------------------


class Task(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Images of four classes, as trainers take them."""

    def __init__(self) -> None:
        self.x, self.y = images(32, 5), torch.arange(32) % 4

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> dict[str, Tensor]:
        return {"input": self.x[k], "labels": self.y[k]}


@pytest.fixture
def tuning() -> Tuning:
    return hope.deft.wrap(made(chain()), images(2), grow=0.25, head=4)


def _checked(tuning: Tuning, fit: Any) -> None:
    x = images()
    core, slack = core_entries(tuning), slack_entries(tuning)
    with tuning.source() as network:
        answers = network(x)
    fit(tuning.model)
    assert_core_kept(core, core_entries(tuning))
    assert_slack_moved(slack, slack_entries(tuning))
    with tuning.source() as network:
        assert torch.equal(network(x), answers)


def test_the_trainer_of_transformers_trains_slack_only(tuning: Tuning, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], **_: Any) -> Tensor:
            return nn.functional.cross_entropy(model(inputs["input"]), inputs["labels"])

    options = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=3,
        learning_rate=0.05, weight_decay=0.1, max_grad_norm=1.0, bf16=True, use_cpu=True, report_to=[],
        save_strategy="no", remove_unused_columns=False, disable_tqdm=True,
    )  # fmt: skip
    _checked(tuning, lambda model: Trainer(model=model, args=options, train_dataset=Task()).train())


def test_accelerate_trains_slack_only(tuning: Tuning) -> None:
    accelerate = pytest.importorskip("accelerate")

    def fit(model: nn.Module) -> None:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
        loader = torch.utils.data.DataLoader(Task(), batch_size=8)
        wrapped, optimizer, loader = accelerator.prepare(model.train(), optimizer, loader)
        for batch in loader:
            with accelerator.accumulate(wrapped):
                accelerator.backward(nn.functional.cross_entropy(wrapped(batch["input"]), batch["labels"]))
                accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    _checked(tuning, fit)


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_slack_only(tuning: Tuning, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Learner(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            return nn.functional.cross_entropy(self.model(batch["input"]), batch["labels"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.05, weight_decay=0.1)

    def fit(model: nn.Module) -> None:
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", precision="bf16-mixed", gradient_clip_val=1.0, logger=False,
            accumulate_grad_batches=2,
            enable_model_summary=False, enable_checkpointing=False, enable_progress_bar=False,
            default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(Learner(model.train()), torch.utils.data.DataLoader(Task(), batch_size=8))

    _checked(tuning, fit)


def test_a_compiled_model_trains_slack_only(tuning: Tuning) -> None:
    def fit(model: nn.Module) -> None:
        steps(torch.compile(model, backend="aot_eager"), torch.optim.AdamW(model.parameters(), lr=0.05))

    _checked(tuning, fit)
