"""Layer-wise refit: a small network fitted to the original."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hope
from hope._util import disk_cache
from hope.rewrite import normal_equations
from hope.rewrite.layer_sites import layer_sites
from hope.rewrite.normal_equations import FLOOR, PLACES, NormalEquations
from hope.rewrite.refit import refit_layers
from hope.trace.trace import Trace
from tests.support import check_cut, randomise, run


def inputs(*shape: int, seed: int = 0, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count)]


class Residual(nn.Module):
    """A stem, two blocks, a projection that runs after the branch, a head."""

    def __init__(self, wide: int = 6) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide)
        self.a1, self.n1 = nn.Conv2d(wide, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.a2, self.n2 = nn.Conv2d(8, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide)
        self.b1, self.m1 = nn.Conv2d(wide, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.b2, self.m2 = nn.Conv2d(8, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.skip, self.m3 = nn.Conv2d(wide, wide, 1, stride=2, bias=False), nn.BatchNorm2d(wide)
        self.head = nn.Linear(wide, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = (self.n2(self.a2(self.n1(self.a1(x)).relu())) + x).relu()
        branch = self.m2(self.b2(self.m1(self.b1(x)).relu()))
        x = (branch + self.m3(self.skip(x))).relu()
        return self.head(x.mean(dim=(2, 3)))


def residual() -> nn.Module:
    return randomise(Residual().double()).eval()


def cut(net: nn.Module, example: Tensor) -> nn.Module:
    anatomy = hope.inspect(net, example)
    return hope.cut(net, anatomy, [hope.Prune("a1", [1, 4, 6]), hope.Prune("b1", [0, 2])])


def error(net: nn.Module, small: nn.Module, batches: list[Tensor]) -> float:
    with torch.no_grad():
        return sum(float((net(x) - small(x)).square().sum()) for x in batches)


def test_one_pass_over_a_linear_network_is_the_dense_solution() -> None:
    """Against numpy's least squares with the prior as rows of its own."""
    net = nn.Sequential(nn.Linear(5, 9), nn.Linear(9, 3)).double()
    small = hope.cut(net, hope.inspect(net, torch.zeros(1, 5).double()), [hope.Prune("0", [2, 3, 8])])
    batches = inputs(20, 5)
    fitted = hope.refit(net, small, batches)
    x = torch.cat(batches)
    with torch.no_grad():
        heard, want = small[0](x), net(x)
    heard, want = heard - heard.mean(dim=0), want - want.mean(dim=0)
    prior = FLOOR + 6 / 60  # unknowns per input
    load = (prior * heard.square().mean(dim=0).mean() * len(x)).sqrt()
    rows = np.concatenate([heard.numpy(), float(load) * np.eye(6)])
    goal = np.concatenate([want.numpy(), float(load) * small[1].weight.detach().numpy().T])
    solution = np.linalg.lstsq(rows, goal, rcond=None)[0]
    assert torch.allclose(fitted[1].weight.detach(), torch.from_numpy(solution).T, atol=1e-10)
    assert torch.equal(fitted[0].weight, small[0].weight)  # reads what it always read
    with torch.no_grad():
        assert torch.allclose(fitted(x).mean(dim=0), net(x).mean(dim=0), atol=1e-10)  # the constant


def test_many_inputs_come_to_least_squares_and_few_to_what_was() -> None:
    net = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 3)).double()
    small = hope.cut(net, hope.inspect(net, torch.zeros(1, 9).double()), [hope.Prune("0", [2, 3, 8])])
    (x,) = inputs(40_000, 9, count=1)
    with torch.no_grad():
        heard, want = small[0](x), net(x)
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    best = torch.linalg.lstsq(torch.cat([heard, ones], dim=1), want).solution[:6].T
    weights = [hope.refit(net, small, [x[:n]])[1].weight.detach() for n in (2, 400, 40_000)]
    start = float((small[1].weight - best).norm().detach())
    gaps = [float((weight - best).norm()) for weight in weights]
    assert float((weights[0] - small[1].weight).norm().detach()) < 0.5 * start
    assert gaps[1] > gaps[2]
    assert gaps[2] < 0.1 * start  # up to the sample of places that is looked at


def test_with_nothing_removed_nothing_changes() -> None:
    net, batches = residual(), inputs(4, 3, 8, 8)
    fitted = hope.refit(net, copy.deepcopy(net), batches)
    for name, tensor in fitted.state_dict().items():
        assert torch.equal(tensor, net.state_dict()[name]), name


def test_it_comes_nearer_and_neither_model_is_changed() -> None:
    net, batches = residual(), inputs(16, 3, 8, 8, count=4)
    small = cut(net, batches[0])
    before = [copy.deepcopy(one.state_dict()) for one in (net, small)]
    fitted = hope.refit(net, small, batches)
    assert error(net, fitted, batches) < 0.5 * error(net, small, batches)
    assert error(net, fitted, inputs(64, 3, 8, 8, seed=9)) < error(net, small, inputs(64, 3, 8, 8, seed=9))
    for one, state in zip((net, small), before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in one.state_dict().items())
    assert not fitted.training


def test_no_weight_is_worse_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """On what it was fitted on, no layer lacks more than before."""
    monkeypatch.setattr(normal_equations, "LEAST", 1 << 30)  # look at every place
    net, batches = residual(), inputs(16, 3, 8, 8, count=2)
    small = cut(net, batches[0])
    looked: dict[str, list[float]] = {}
    solve = NormalEquations.solve

    def watched(self: NormalEquations, *, constant: bool) -> tuple[Tensor, Tensor]:
        change, shift = solve(self, constant=constant)
        n, grouped = self.samples, change.reshape(self.groups, -1, self.x.shape[1])
        c = shift.reshape(self.groups, -1)
        raw = -2 * (grouped.transpose(1, 2) * self.xr).sum() / n + torch.einsum(
            "god,gde,goe->", grouped, self.xx / n, grouped
        )
        mixed = 2 * (c * torch.einsum("god,gd->go", grouped, self.x / n)).sum()
        more = raw + mixed - 2 * (c * self.r / n).sum() + c.square().sum()
        looked.setdefault("more", []).append(float(more))
        return change, shift

    monkeypatch.setattr(NormalEquations, "solve", watched)
    hope.refit(net, small, batches)
    assert len(looked["more"]) >= 4
    assert max(looked["more"]) <= 1e-12


def test_branches_make_up_for_the_drift_of_the_stream() -> None:
    """What the first block lost, the second one's branch corrects where it is added."""
    net, batches = residual(), inputs(32, 3, 8, 8, count=4)
    small = cut(net, batches[0])
    streams = []
    for drift in (True, False):
        fitted = copy.deepcopy(small)
        rows = {"a1.weight": torch.tensor([0, 2, 3, 5, 7]), "b1.weight": torch.tensor([1, 3, 4, 5, 6, 7])}
        refit_layers(net, fitted, batches, lambda _, rows=rows: rows, drift=drift, progress=False)
        streams.append(_stream(net, fitted, batches))
    assert streams[0] < streams[1]


def _stream(net: nn.Module, small: nn.Module, batches: list[Tensor]) -> float:
    """How far the stream behind the second add is from the original's."""
    ends = []
    for one in (net, small):
        execution = Trace().interpreter(one, batches)
        adds = [op.position for op in execution.program if op.operator == "add"]
        execution.keep(adds[1:2])
        ends.append(torch.cat(execution.get(adds[1])))
    return float((ends[0] - ends[1]).square().mean())


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), (5, 4, 6, 6)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=(0, 1), bias=False), (5, 4, 7, 6)),
        (nn.Conv2d(4, 6, (3, 2), dilation=2, padding="same"), (5, 4, 6, 6)),
        (nn.Conv2d(4, 8, 3, groups=2), (5, 4, 6, 6)),
        (nn.Conv2d(4, 8, 3, groups=4, padding="valid"), (5, 4, 6, 6)),
        (nn.Conv1d(3, 4, 5, stride=2), (5, 3, 16)),
        (nn.Conv3d(2, 3, 2), (3, 2, 4, 5, 4)),
        (nn.Linear(4, 3), (5, 4)),
        (nn.Linear(4, 3, bias=False), (5, 7, 4)),
    ],
    ids=str,
)
def test_moments_are_those_of_what_the_weight_reads(layer: Any, shape: tuple[int, ...]) -> None:
    """Against the layer itself: each unknown's column is what the layer computes with that entry alone."""
    layer = layer.double()
    x, y = inputs(*shape, count=2)
    program = Trace().interpreter(nn.Sequential(layer), [x]).program
    (site,) = layer_sites(program).values()
    sums = NormalEquations(program[site.position], layer.weight.detach(), 10**9)
    with torch.no_grad():
        lacks = [torch.sin(3 * layer(one)) for one in (x, y)]
    sums.share = 1.0
    for one, lack in zip((x, y), lacks, strict=True):
        sums.add(one, lack)
    groups, out = sums.groups, len(layer.weight) // sums.groups
    channel = 1 if layer.weight.ndim > 2 else -1
    want = torch.stack([_column(layer, k, [x, y], channel) for k in range(sums.x.shape[1])], dim=2)
    lack = torch.cat([one.movedim(channel, -1).reshape(-1, groups, out) for one in lacks]).transpose(0, 1)
    assert sums.samples == sums.places == want.shape[1]
    assert torch.allclose(sums.xx, want.transpose(1, 2) @ want)
    assert torch.allclose(sums.xr, want.transpose(1, 2) @ lack)
    counted = sums.inputs * max(1.0, sums.places / sums.inputs / PLACES)
    assert sums.prior == pytest.approx(FLOOR + sums.x.shape[1] / counted)


def _column(layer: Any, unknown: int, batches: list[Tensor], channel: int) -> Tensor:
    """(groups, places) what entry `unknown` of every filter is multiplied by."""
    probe = copy.deepcopy(layer)
    groups = getattr(layer, "groups", 1)
    with torch.no_grad():
        probe.weight.zero_()
        probe.weight.flatten(1)[:, unknown] = 1
        if probe.bias is not None:
            probe.bias.zero_()
        found = torch.cat(
            [probe(x).movedim(channel, -1).reshape(-1, groups, len(layer.weight) // groups) for x in batches]
        )
    return found[:, :, 0].T


def test_fewer_places_are_looked_at_where_there_are_plenty() -> None:
    layer = nn.Conv2d(2, 3, 1)
    x = torch.randn(8, 2, 64, 64)
    program = Trace().interpreter(nn.Sequential(layer), [x]).program
    (site,) = layer_sites(program).values()
    sums = NormalEquations(program[site.position], layer.weight.detach(), 8 * 64 * 64)
    sums.add(x, torch.randn(8, 3, 64, 64))
    assert sums.places == 8 * 64 * 64
    assert normal_equations.LEAST * 0.9 < sums.samples < normal_equations.LEAST * 1.1
    whole = x.movedim(1, -1).reshape(-1, 2).double()
    assert torch.allclose(sums.xx[0] / sums.samples, whole.T @ whole / len(whole), atol=0.05)


def test_excluded_modules_stay_as_they_are() -> None:
    net, batches = residual(), inputs(8, 3, 8, 8)
    small = cut(net, batches[0])
    fitted = hope.refit(net, small, batches, exclude=["b*", "head"])
    assert torch.equal(fitted.b2.weight, small.b2.weight)
    assert torch.equal(fitted.head.weight, small.head.weight)
    assert not torch.equal(fitted.a2.weight, small.a2.weight)


class Written(nn.Module):
    """A linear layer as somebody writes it."""

    def __init__(self, inputs: int, outputs: int, way: str) -> None:
        super().__init__()
        self.weight, self.bias = nn.Linear(inputs, outputs).parameters()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "plain":
            return nn.functional.linear(x, self.weight, self.bias)
        if self.way == "apart":
            return nn.functional.linear(x, self.weight) + self.bias
        if self.way == "product":
            return x @ self.weight.T + self.bias
        if self.way == "transpose":
            return self.bias + torch.matmul(x, self.weight.transpose(0, 1))
        if self.way == "swapaxes":
            return torch.mm(x, self.weight.swapaxes(-1, 0)) + self.bias
        if self.way == "addmm":
            return torch.addmm(self.bias, x, self.weight.mT)
        return nn.functional.linear(x, self.weight) * 0.5 + self.bias


@pytest.mark.parametrize("way", ["apart", "product", "transpose", "swapaxes", "addmm"])
def test_a_linear_layer_is_one_however_it_is_written(way: str) -> None:
    found = {}
    for how in ("plain", way):
        torch.manual_seed(0)
        layers = Written(6, 24, how), nn.ReLU(), Written(24, 16, how), nn.ReLU(), Written(16, 3, how)
        model = randomise(nn.Sequential(*layers)).double().eval()
        batches = inputs(64, 6)
        for refit in (False, True):
            method = hope.Absorb(calibration=batches, refit=refit)
            encoding = hope.encode(model, batches[0][:1], params=0.5, method=method, progress=False)
            with torch.no_grad():
                said = [torch.cat([each(x) for x in batches]) for each in (model, encoding.model)]
            found[how, refit] = float((said[1] - said[0]).norm() / said[0].norm())
    for refit in (False, True):
        assert found[way, refit] < 1.1 * found["plain", refit] + 1e-9
    assert found[way, True] < found[way, False]


def test_a_square_weight_that_is_not_turned_is_read_along_its_rows() -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.w = nn.Linear(4, 8), nn.Linear(8, 3), nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            turned = self.w.permute(0, 1)  # not at all
            return self.b(torch.relu(torch.relu(self.a(x)) @ turned))

    check_cut(Square().double(), inputs(5, 4)[0], tolerance=1e-9)


@pytest.mark.parametrize("way", ["kernel", "row", "minus"])
def test_a_weight_is_fitted_whatever_becomes_of_the_bias(way: str) -> None:
    class Layer(nn.Module):
        def __init__(self, wide: int, narrow: int) -> None:
            super().__init__()
            self.kernel, self.bias = nn.Linear(wide, narrow).parameters()

        def forward(self, x: Tensor) -> Tensor:
            y = nn.functional.linear(x, self.kernel)
            return (
                y + self.bias if way == "kernel" else y + self.bias[None] if way == "row" else y - self.bias
            )

    torch.manual_seed(0)
    model = randomise(nn.Sequential(Layer(6, 16), nn.ReLU(), Layer(16, 3))).double().eval()
    batches, anatomy = inputs(64, 6), hope.inspect(model, inputs(2, 6)[0])
    small = hope.cut(model, anatomy, [hope.Prune(anatomy.layers[0].name, i) for i in range(6)])
    fitted = hope.refit(model, small, batches)
    lost = [float((run(one, batches[0])[0] - run(model, batches[0])[0]).norm()) for one in (small, fitted)]
    assert lost[1] < 0.8 * lost[0]


def test_a_bias_that_goes_elsewhere_takes_no_constants() -> None:
    torch.manual_seed(0)
    layers = (
        Written(6, 24, "halved"),
        nn.ReLU(),
        Written(24, 16, "halved"),
        nn.ReLU(),
        Written(16, 3, "plain"),
    )
    model = randomise(nn.Sequential(*layers)).double().eval()
    batches = inputs(64, 6)
    encoding = hope.encode(model, batches[0][:1], params=0.6, method=hope.Absorb(calibration=batches))
    assert encoding.input_statistics["2.weight"].bias == ""
    assert encoding.input_statistics["4.weight"].bias == "4.bias"
    found = layer_sites(hope.inspect(model, batches[0]).program)
    assert {name: one.bias for name, one in found.items()} == {
        "0.weight": "",
        "2.weight": "",
        "4.weight": "4.bias",
    }


class Mixed(nn.Module):
    """Channels, and then weights that mix the places of each of them, as in an MLP-Mixer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8)
        self.mix, self.last = nn.Linear(5, 5), nn.Conv1d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.mix(self.norm(self.conv(x)).relu()))  # type: ignore[no-any-return]


def test_a_weight_that_mixes_places_of_channels_that_were_cut_is_left_alone() -> None:
    net, x = randomise(Mixed()).eval(), torch.randn(32, 3, 5)
    anatomy = hope.inspect(net, x[:2])
    small = hope.cut(net, anatomy, [hope.Prune("conv", [0, 5])])
    fitted = hope.refit(net, small, [x])
    assert torch.equal(fitted.mix.weight, small.mix.weight)  # type: ignore[union-attr]
    assert not torch.equal(fitted.last.weight, small.last.weight)  # type: ignore[union-attr]
    assert (fitted(x) - net(x)).norm() < (small(x) - net(x)).norm()


def test_a_weight_that_is_used_twice_is_left_alone() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.b(self.a(x).relu()).relu()))

    net, batches = Twice().double(), inputs(16, 3)
    small = copy.deepcopy(net)
    with torch.no_grad():
        small.a.weight[2] = 0
    fitted = hope.refit(net, small, batches)
    assert torch.equal(fitted.b.weight, small.b.weight)
    assert error(net, fitted, batches) < error(net, small, batches)


@pytest.mark.parametrize("told", ["bn", "bias", "filters"])
def test_what_is_left_is_found(told: str) -> None:
    if told == "bn":
        net: nn.Module = nn.Sequential(
            nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
        )
    else:
        net = nn.Sequential(nn.Linear(4, 8, bias=told == "bias"), nn.ReLU(), nn.Linear(8, 3))
    net = randomise(net.double()).eval()
    batches = inputs(32, 4)
    small = hope.cut(net, hope.inspect(net, batches[0]), [hope.Prune("0", [0, 5])])
    fitted = hope.refit(net, small, batches)
    named = hope.refit(net, small, batches, kept={"0": [1, 2, 3, 4, 6, 7]})
    assert error(net, fitted, batches) < error(net, small, batches)
    for a, b in zip(run(fitted, batches[0]), run(named, batches[0]), strict=True):
        assert torch.equal(a, b)


def test_what_is_left_after_absorption_is_found_as_well() -> None:
    """Statistics of BNs have changed there; scales and shifts have not."""
    net, batches = residual(), inputs(16, 3, 8, 8)
    small = hope.encode(net, batches[0], density=0.5, evict=False).model
    assert error(net, hope.refit(net, small, batches), batches) < error(net, small, batches)


def test_what_cannot_be_told_is_asked_for() -> None:
    net, batches = residual(), inputs(4, 3, 8, 8)
    small = cut(net, batches[0])
    with torch.no_grad():
        small.n1.running_mean += 1
        small.n1.weight += 1
        small.a1.weight += 1
    with pytest.raises(
        hope.InvalidAction, match=r"outputs of a1 .* give kept=\{'a1': \[...\]\}, 5 places out of 8"
    ):
        hope.refit(net, small, batches)
    with pytest.raises(hope.InvalidAction, match="must be 5 of 8 outputs, got"):
        hope.refit(net, small, batches, kept={"a1": [1, 2]})
    with pytest.raises(hope.InvalidAction, match="must name modules of the original, got"):
        hope.refit(net, small, batches, kept={"nothing": [1]})
    with pytest.raises(hope.InvalidExample, match="at least one batch for a refit, got none"):
        hope.refit(net, small, [])
    with pytest.raises(hope.InvalidExample, match="batch 1 must have finite entries"):
        hope.refit(net, small, [batches[0], batches[1] * float("nan")])


def test_labels_are_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    net, batches = residual(), inputs(4, 3, 8, 8)
    small = cut(net, batches[0])
    pairs = [(x, torch.zeros(4, dtype=torch.long)) for x in batches]
    a, b = hope.refit(net, small, batches), hope.refit(net, small, pairs)
    assert all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def test_the_same_whatever_the_number_of_threads() -> None:
    net, batches = residual(), inputs(16, 3, 8, 8)
    small, threads = cut(net, batches[0]), torch.get_num_threads()
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(run(hope.refit(net, small, batches), batches[0])[0])
    finally:
        torch.set_num_threads(threads)
    assert torch.allclose(found[0], found[1], atol=1e-9)


def test_absorption_with_inputs_is_refitted() -> None:
    net, batches = residual(), inputs(16, 3, 8, 8, count=4)
    options: dict[str, Any] = {"density": 0.5, "evict": False}
    plain = hope.encode(net, batches[0], method=hope.Absorb(calibration=batches, refit=False), **options)
    fitted = hope.encode(net, batches[0], method=hope.Absorb(calibration=batches), **options)
    assert plain.trajectory.steps == fitted.trajectory.steps
    assert error(net, fitted.model, batches) < error(net, plain.model, batches)
    assert not hope.encode(net, batches[0], method=hope.Absorb(calibration=None), **options).inputs


def test_a_dreamed_run_has_other_budgets_back(tmp_path: Path) -> None:
    net = residual().float()
    example = torch.zeros(1, 3, 8, 8)
    encoding = hope.encode(net, example, density=0.5, method=hope.Absorb(calibration="dream"), evict=False)
    encoding.save(tmp_path / "run")
    x = torch.randn(4, 3, 8, 8)
    for budget in ({}, {"density": 0.7}):
        want = encoding.at(**budget) if budget else encoding.model
        got = hope.load(tmp_path / "run", net, **budget)
        assert torch.equal(run(got, x)[0], run(want, x)[0])


def test_measured_inputs_are_not_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, batches = residual(), inputs(16, 3, 8, 8)
    method = hope.Absorb(calibration=batches)
    encoding = hope.encode(net, batches[0], density=0.5, method=method, evict=False)
    encoding.save(tmp_path)
    assert not list(tmp_path.glob("inputs-*"))
    assert torch.equal(run(hope.load(tmp_path, net), batches[0])[0], run(encoding.model, batches[0])[0])
    capsys.readouterr()
    absorbed = hope.load(tmp_path, net, density=0.7)
    assert "pass the same batches with calibration=" in capsys.readouterr().err
    again = hope.load(tmp_path, net, density=0.7, calibration=batches)
    assert torch.equal(run(again, batches[0])[0], run(encoding.at(density=0.7), batches[0])[0])
    assert error(net, again, batches) < error(net, absorbed, batches)


class Stop(Exception):
    pass


def test_an_interrupted_fit_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.Tanh()))).eval()
    x = torch.randn(64, 6)
    small = hope.cut(net, hope.inspect(net, x), [hope.Prune("0", 2), hope.Prune("4", [1, 3])])
    whole, file = hope.refit(net, small, [x]), tmp_path / "fit"
    solve, solved = NormalEquations.solve, []

    def watched(self: NormalEquations, **options: bool) -> Any:
        solved.append(len(self.xr))
        if len(solved) == 3:
            raise Stop
        return solve(self, **options)

    monkeypatch.setattr(NormalEquations, "solve", watched)
    monkeypatch.setattr(disk_cache.Throttle, "due", True)
    with pytest.raises(Stop):
        hope.refit(net, small, [x], checkpoint=file)
    assert file.exists()
    other = hope.refit(net, small, [x + 1], checkpoint=tmp_path / "other")  # of its own
    fits = len(solved) - 3
    resumed = hope.refit(net, small, [x], checkpoint=file)
    assert not file.exists()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value)
    assert not torch.equal(other[2].weight, whole[2].weight)
    assert len(solved) == 3 + fits + (fits - 2)  # the third was not finished


def test_a_file_of_another_fit_is_not_gone_on_with(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(64, 4)
    small = hope.cut(net, hope.inspect(net, x), [hope.Prune("0", [5, 6])])
    file = tmp_path / "fit"
    file.write_bytes(b"something else")
    again = hope.refit(net, small, [x], checkpoint=file)
    torch.testing.assert_close(again(x), hope.refit(net, small, [x])(x))


def test_a_flipped_bit_in_the_file_of_a_fit_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    x = torch.randn(64, 6)
    small = hope.cut(net, hope.inspect(net, x), [hope.Prune("0", 2)])
    whole, file = hope.refit(net, small, [x]), tmp_path / "fit"
    monkeypatch.setattr(disk_cache.Throttle, "due", True)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        hope.refit(net, small, [x], checkpoint=file)
    content = file.read_bytes()
    for position in (*range(0, len(content), len(content) // 12), len(content) - 1):
        file.write_bytes(content[:position] + bytes([content[position] ^ 16]) + content[position + 1 :])
        capsys.readouterr()
        again = hope.refit(net, small, [x], checkpoint=file)
        told = capsys.readouterr().err
        assert told in {
            f"note: {file} is {why}: weights are fitted anew\n" for why in ("damaged", "of another fit")
        }
        assert all(torch.equal(value, whole.state_dict()[name]) for name, value in again.state_dict().items())
    file.write_bytes(content)
    other = hope.refit(net, small, [x + 1], checkpoint=file)
    assert "is of another fit: weights are fitted anew" in capsys.readouterr().err
    assert not torch.equal(other[2].weight, whole[2].weight)
