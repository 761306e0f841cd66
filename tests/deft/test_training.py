"""Whatever trains the slack, the core stays as it was, to the bit."""

from __future__ import annotations

import gc
import shutil
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hope
from hope.deft import Tuning
from tests.deft.nets import (
    Residual,
    assert_core_kept,
    assert_slack_moved,
    chain,
    core_entries,
    core_signals,
    images,
    made,
    prepared,
    slack_entries,
    train,
)

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum and decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam with decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "AdamW with decay": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5),
    "AdamW, one by one": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5, foreach=False),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5, fused=True),
    "Adagrad with decay": lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1),
    "RMSprop with decay": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, weight_decay=0.1),
}


def check(tuning: Tuning, part: Any, fit: Callable[[], None]) -> None:
    """Train by `fit`; the core's parameters and signals on source inputs stay, the slack moves."""
    x = images()
    core, slack, signals = core_entries(tuning), slack_entries(tuning), core_signals(tuning, part, x)
    fit()
    assert_core_kept(core, core_entries(tuning))
    assert_core_kept(signals, core_signals(tuning, part, x))
    assert_slack_moved(slack, slack_entries(tuning))
    assert tuning.moved() == []


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("net", [chain, Residual])
def test_every_optimizer_keeps_the_core(name: str, net: Callable[[], nn.Module]) -> None:
    part, tuning = prepared(made(net()))
    check(tuning, part, lambda: train(tuning.model, OPTIMIZERS[name](tuning.model.parameters())))


def test_merged_networks_keep_the_core() -> None:
    part, tuning = prepared(made(chain()), merge=True)
    assert part.merges
    check(
        tuning, part, lambda: train(tuning.model, OPTIMIZERS["AdamW with decay"](tuning.model.parameters()))
    )


def test_lbfgs_keeps_the_core() -> None:
    part, tuning = prepared(made(chain()))
    x, y = images(16, 3), torch.arange(16) % 4
    optimizer = torch.optim.LBFGS(tuning.model.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(tuning.model(x), y)
        loss.backward()
        return loss

    check(tuning, part, lambda: optimizer.step(closure) and None)


def test_gradient_accumulation_keeps_the_core() -> None:
    part, tuning = prepared(made(chain()))
    optimizer = OPTIMIZERS["SGD with momentum and decay"](tuning.model.parameters())
    check(tuning, part, lambda: train(tuning.model, optimizer, accumulate=3))


def test_mixed_precision_keeps_the_core() -> None:
    part, tuning = prepared(made(Residual()))
    optimizer = OPTIMIZERS["AdamW with decay"](tuning.model.parameters())

    def fit() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            train(tuning.model, optimizer)

    check(tuning, part, fit)


def test_gradients_of_the_core_are_zero_before_the_optimizer_sees_them() -> None:
    _, tuning = prepared(made(Residual()))
    tuning.model.train()
    tuning.model(images()).square().sum().backward()
    for name, parameter in tuning.model.named_parameters():
        if name in tuning.frozen:
            mask = tuning.frozen[name].expand(parameter.shape)
            assert parameter.grad is None or not parameter.grad[mask].any()
            assert parameter.requires_grad == (not mask.all())


def test_infinite_gradients_do_not_reach_the_core() -> None:
    _, tuning = prepared(made(chain()))
    tuning.model.train()
    (tuning.model(images()).sum() * float("inf")).backward()
    weight = tuning.model.get_parameter("4.weight")
    assert weight.grad is not None
    assert not weight.grad[tuning.frozen["4.weight"].expand(weight.shape)].any()


def test_the_core_stays_when_only_the_model_is_kept() -> None:
    net = made(chain())
    _, tuning = prepared(net)
    model, frozen, before = tuning.model, tuning.frozen, core_entries(tuning)
    del tuning
    gc.collect()
    train(model, OPTIMIZERS["AdamW with decay"](model.parameters()))
    for name, value in before.items():
        parameter = model.get_parameter(name)
        assert torch.equal(parameter.detach()[frozen[name].expand(parameter.shape)], value)


def test_a_loop_without_an_optimizer_keeps_the_core() -> None:
    part, tuning = prepared(made(chain()))

    def fit() -> None:
        tuning.model.train()
        for _ in range(3):
            tuning.model(images(8, 5)).square().mean().backward()
            with torch.no_grad():
                for parameter in tuning.model.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.1 * parameter.grad
                        parameter.grad = None

    check(tuning, part, fit)


def _with_a_frozen_layer() -> Tuning:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=50, merge=False, core=["4"])
    return hope.deft.prepare(net, part, head=4)


def test_what_is_frozen_as_a_whole_stays_when_all_is_made_to_require_gradients() -> None:
    tuning = _with_a_frozen_layer()
    assert not tuning.model.get_parameter("4.weight").requires_grad
    before = core_entries(tuning)
    tuning.model.requires_grad_(True)
    train(tuning.model, OPTIMIZERS["AdamW with decay"](tuning.model.parameters()))
    assert_core_kept(before, core_entries(tuning))
    tuning.model(images()).square().sum().backward()
    assert not tuning.model.get_parameter("4.weight").grad.any()


@pytest.mark.parametrize("ready", [lambda: prepared(made(chain()))[1], _with_a_frozen_layer])
def test_what_is_written_by_hand_can_be_put_back(ready: Callable[[], Tuning]) -> None:
    tuning = ready()
    before = core_entries(tuning)
    with torch.no_grad():
        tuning.model.get_parameter("4.weight").mul_(0.9)
    assert tuning.moved() == ["4.weight"]
    tuning.restore()
    assert tuning.moved() == []
    assert_core_kept(before, core_entries(tuning))


def test_parameters_that_are_replaced_are_noticed_and_held_again() -> None:
    tuning = _with_a_frozen_layer()
    before = core_entries(tuning)
    state = {name: value.clone() for name, value in tuning.model.state_dict().items()}
    tuning.model.load_state_dict(state, assign=True)
    tuning.model.requires_grad_(True)
    train(tuning.model, OPTIMIZERS["AdamW with decay"](tuning.model.parameters()))
    assert tuning.moved() == list(before)  # every one of them has frozen entries
    tuning.restore()
    assert_core_kept(before, core_entries(tuning))
    train(tuning.model, OPTIMIZERS["AdamW with decay"](tuning.model.parameters()))
    assert_core_kept(before, core_entries(tuning))
    assert not tuning.model.get_parameter("4.weight").requires_grad


def test_other_optimizers_are_left_alone() -> None:
    prepared(made(chain()))
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    torch.optim.SGD([weight], lr=0.5).step()
    assert torch.equal(weight.detach(), torch.full((3,), 0.5))


def test_a_model_that_changes_its_type_keeps_its_core() -> None:
    _, tuning = prepared(made(chain()))
    tuning.model.double()
    before = core_entries(tuning)
    optimizer = OPTIMIZERS["AdamW with decay"](tuning.model.parameters())
    tuning.model.train()
    tuning.model(images().double()).square().mean().backward()
    optimizer.step()
    assert_core_kept(before, core_entries(tuning))


def test_a_model_that_was_in_half_precision_can_have_its_core_back() -> None:
    _, tuning = prepared(made(chain()))
    before = core_entries(tuning)
    tuning.model.bfloat16().train()
    tuning.model(images().bfloat16()).square().mean().backward()
    OPTIMIZERS["AdamW with decay"](tuning.model.parameters()).step()
    assert tuning.moved() == []
    tuning.model.float()
    assert "4.weight" in tuning.moved()
    tuning.restore()
    assert_core_kept(before, core_entries(tuning))


# ---- statistics --------------------------------------------------------------------------------------------


def test_frozen_statistics_keep_the_core_without_going_back_to_the_source() -> None:
    part, tuning = prepared(made(Residual()), freeze_statistics=True)
    x = images()
    before = core_signals(tuning, part, x, source=False)
    train(tuning.model, OPTIMIZERS["SGD with momentum and decay"](tuning.model.parameters()))
    assert_core_kept(before, core_signals(tuning, part, x, source=False))
    bn = tuning.model.get_submodule("first.bn1")
    core = part.core["first.conv1"]
    assert torch.equal(bn.running_var[core], tuning.statistics["first.bn1.running_var"][core])
    assert not torch.equal(bn.running_var[~core], tuning.statistics["first.bn1.running_var"][~core])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_frozen_statistics_hold_when_the_model_changes_its_type(dtype: torch.dtype) -> None:
    part, tuning = prepared(made(chain()), freeze_statistics=True)
    tuning.model.to(dtype).train()
    tuning.model(images().to(dtype)).square().mean().backward()
    bn, core = tuning.model.get_submodule("1"), part.core["0"]
    want = tuning.statistics["1.running_var"].to(dtype)
    assert bn.running_var.dtype == dtype
    assert torch.equal(bn.running_var[core], want[core])
    assert not torch.equal(bn.running_var[~core], want[~core])


def test_frozen_statistics_hold_in_training_too() -> None:
    part, tuning = prepared(made(chain()), freeze_statistics=True)
    x = images()
    seen = {}
    for mode in (True, False):
        tuning.model.train(mode)
        hook = tuning.model.get_submodule("1").register_forward_hook(
            lambda _, __, out, mode=mode: seen.__setitem__(mode, out)
        )
        with torch.no_grad():
            tuning.model(x)
        hook.remove()
    core = part.core["0"]
    torch.testing.assert_close(seen[True][:, core], seen[False][:, core])
    assert not torch.allclose(seen[True][:, ~core], seen[False][:, ~core])


def test_synchronised_bn_is_held_if_it_was_converted_before() -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=50, merge=False)
    several = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    tuning = hope.deft.prepare(several, part, head=4, freeze_statistics=True)
    held = [name for name, module in tuning.model.named_modules() if module._forward_hooks]
    assert held == ["1", "5", "10"]
    assert all(isinstance(tuning.model.get_submodule(name), nn.SyncBatchNorm) for name in held)


def test_statistics_drift_by_default_as_in_the_paper() -> None:
    part, tuning = prepared(made(chain()))
    train(tuning.model, OPTIMIZERS["SGD"](tuning.model.parameters()))
    core = part.core["0"]
    bn = tuning.model.get_submodule("1")
    assert not torch.equal(bn.running_mean[core], tuning.statistics["1.running_mean"][core])


# ---- wrappers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_models_keep_the_core(backend: str) -> None:
    if backend == "inductor" and not (shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("no C compiler on this machine")
    part, tuning = prepared(made(chain(6)), freeze_statistics=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(tuning.model, backend=backend)
        optimizer = OPTIMIZERS["AdamW with decay"](compiled.parameters())
        check(tuning, part, lambda: train(compiled, optimizer, steps=2))


def test_a_compiled_optimizer_step_keeps_the_core() -> None:
    part, tuning = prepared(made(chain(6)))
    optimizer = torch.optim.AdamW(tuning.model.parameters(), lr=0.01, weight_decay=0.5)
    step = torch.compile(optimizer.step, backend="eager")

    def fit() -> None:
        tuning.model.train()
        for _ in range(2):
            tuning.model(images(8, 5)).square().mean().backward()
            step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(tuning, part, fit)


def test_accelerate_keeps_the_core() -> None:
    accelerate = pytest.importorskip("accelerate")
    part, tuning = prepared(made(chain()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        optimizer = OPTIMIZERS["AdamW with decay"](tuning.model.parameters())
        model, optimizer = accelerator.prepare(tuning.model, optimizer)

        def fit() -> None:
            model.train()
            for _ in range(6):
                with accelerator.accumulate(model):
                    loss = model(images(8, 5)).square().mean()
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()

        check(tuning, part, fit)


def _worker(rank: int, meeting: str) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(meeting, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    try:
        _train_beside_another(rank)
        gc.collect()  # the wrapper must be gone before its group is, or taking down the group may deadlock
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _train_beside_another(rank: int) -> None:
    torch.manual_seed(0)
    net = made(Residual())
    part = hope.deft.partition(net, images(2), percentile=50, merge=False)
    tuning = hope.deft.prepare(net, part, head=4)
    model = nn.parallel.DistributedDataParallel(tuning.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)

    def fit() -> None:
        model.train()
        for step in range(3):
            model(images(8, 10 * rank + step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    check(tuning, part, fit)
    weight = tuning.model.get_parameter("first.conv1.weight").detach().clone()
    other = weight.clone()
    torch.distributed.broadcast(other, src=0)
    assert torch.equal(weight, other)


def test_two_processes_keep_the_core(tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this build of torch has no torch.distributed")
    both = torch.multiprocessing.spawn(_worker, args=(str(tmp_path / "meeting"),), nprocs=2, join=False)
    assert both is not None
    try:
        for _ in range(30):  # raises what a worker raised
            if both.join(timeout=10):
                return
        pytest.fail("the two processes did not come to an end")
    finally:
        for process in both.processes:
            if process.is_alive():
                process.kill()
