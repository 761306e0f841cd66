"""Bits: grids and rounding against independent references, and runs that round from encode to a folder."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hope
from hope.actions.quantise import moments_of
from hope.cli.main import main
from hope.geometry.rounding import (
    BITS,
    ColumnMoments,
    grid_of,
    levels,
    nearest,
    pack,
    scales,
    significant_bits,
    unpack,
    with_feedback,
)
from hope.report.page import write_page
from hope.schedule.bit_options import BitOptions
from hope.schedule.bits import interleaved, lost_by, readers, roundings
from hope.statistics.input_scale import input_range
from hope.statistics.patterns import coloured_noise
from hope.storage.arrays import read_arrays, state
from hope.storage.run import read_run
from tests.support import randomise

CLOSED = hope.Absorb(calibration=None)  # statistics in closed form
EXAMPLE = torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8)


def drawn(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, ColumnMoments]:
    """A weight, and second moments of its columns with strong correlations."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns * 3, generator=draw, dtype=torch.float64)
    root = torch.randn(columns, columns, generator=draw, dtype=torch.float64)
    root = root + 2 * torch.ones(columns, 1, dtype=torch.float64) * root[:1]
    taps = 0.6 ** (torch.arange(3)[:, None] - torch.arange(3)).abs().double()
    return weight, ColumnMoments(root @ root.T / columns, taps)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return randomise(hope.demo.DigitsNet()).eval()


@pytest.fixture(scope="module")
def anatomy(model: nn.Module) -> hope.Anatomy:
    return hope.inspect(model, EXAMPLE)


@pytest.mark.parametrize("bits", BITS)
def test_feedback_never_has_a_larger_expected_error_than_nearest(bits: int) -> None:
    for seed in range(4):
        weight, moments = drawn(7, 20, seed)
        scale = scales(weight, bits, moments.diagonal)
        ours, plain = with_feedback(weight, scale, bits, moments), nearest(weight, scale, bits)
        assert (moments.error(ours - weight) <= moments.error(plain - weight) * (1 + 1e-12)).all()
        assert moments.error(ours - weight).sum() < 0.9 * moments.error(plain - weight).sum()


def test_feedback_is_that_of_the_textbook_with_a_dense_matrix() -> None:
    weight, moments = drawn(5, 6)
    dense = torch.kron(moments.channels, moments.taps)
    assert torch.allclose(moments.error(weight), (weight @ dense * weight).sum(1))
    scale = scales(weight, 3, moments.diagonal)
    eye = torch.eye(6, dtype=torch.float64)
    channels = moments.channels / moments.channels.diagonal().mean() + 0.01 * eye
    taps = moments.taps + 0.01 * torch.eye(3, dtype=torch.float64)
    hessian, left, found = torch.kron(channels, taps), weight.clone(), torch.zeros_like(weight)
    for k in range(weight.shape[1]):  # one column at a time, what is left solved anew each time
        rest = torch.arange(k, weight.shape[1])
        inverse = torch.linalg.inv(hessian[rest][:, rest])
        found[:, k] = (left[:, k] / scale[:, 0]).round().clamp(-3, 3) * scale[:, 0]
        error = (left[:, k] - found[:, k]) / inverse[0, 0]
        left[:, rest] -= torch.outer(error, inverse[0])
    plain = nearest(weight, scale, 3)
    better = moments.error(found - weight) <= moments.error(plain - weight)
    want = torch.where(better[:, None], found, plain)
    assert torch.allclose(with_feedback(weight, scale, 3, moments), want)


def test_feedback_coincides_with_nearest_where_columns_are_independent() -> None:
    weight, _ = drawn(5, 10)
    scale = scales(weight, 4, torch.ones(30))
    assert torch.equal(with_feedback(weight, scale, 4, ColumnMoments.identity(30)), nearest(weight, scale, 4))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group", [0, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_packed_weights_come_back_to_the_bit(bits: int, group: int, dtype: torch.dtype) -> None:
    weight, _ = drawn(6, 9)
    weight[3] = 0
    scale = scales(weight, bits, torch.ones(27), group, significant_bits(dtype, bits))
    rounded = nearest(weight, scale, bits, group).to(dtype)
    found = grid_of(rounded, bits, group)
    assert found is not None
    whole, units = found
    assert int(whole.abs().max()) <= levels(bits)
    packed = pack(whole, bits)
    assert len(packed) == -(-whole.numel() * bits // 8)
    assert torch.equal(unpack(packed, bits, tuple(whole.shape)), whole)
    spread = units.repeat_interleave(group or 27, dim=1)[:, :27]
    assert torch.equal((whole * spread).to(dtype), rounded)
    assert grid_of(torch.randn(4, 50), 3) is None


def test_what_it_costs_is_the_error_on_gaussian_inputs(model: nn.Module, anatomy: hope.Anatomy) -> None:
    known = hope.Absorb(calibration=None).collect(model, EXAMPLE, anatomy)
    action = hope.Quantise("blocks.0.conv2.weight", 3)
    statistics = known.input_statistics[action.name]
    moments = moments_of(statistics)
    assert moments is not None
    weight = known.numbers[action.name].double().flatten(1)
    change = action.rounded(weight, moments) - weight
    root = torch.linalg.cholesky(
        torch.kron(moments.channels, moments.taps) + 1e-9 * torch.eye(weight.shape[1])
    )
    draws = torch.randn(40_000, weight.shape[1], dtype=torch.float64) @ root.T
    power = known.numbers.bn(statistics.bn).scale ** 2  # type: ignore[union-attr]
    measured = ((draws @ change.T).square().mean(0) / statistics.variance * power).sum() / power.sum()
    assert lost_by(action, known) == pytest.approx(float(measured), rel=0.05)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_all_weights_are_rounded_and_the_folder_is_as_small_as_promised(
    model: nn.Module, anatomy: hope.Anatomy, bits: int, tmp_path: Path
) -> None:
    encoding = hope.encode(model, EXAMPLE, bits=bits, anatomy=anatomy)
    small = encoding.model
    assert type(small) is type(model)
    for name in readers(anatomy):
        rows = small.state_dict()[name].flatten(1)
        assert all(len(row.unique()) <= 2 * levels(bits) + 1 for row in rows)
    run = read_run(encoding.save(tmp_path))
    stored = sum(one.nbytes for one in read_arrays(tmp_path, run.record.weights).values())
    assert stored == encoding.trajectory.counts("size")[-1]
    again = hope.load(tmp_path, model).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in small.state_dict().items())
    worse = hope.load(tmp_path, model, steps=0).state_dict()
    assert all(torch.equal(tensor, worse[name]) for name, tensor in model.state_dict().items())


def test_mean_errors_go_into_the_bn(model: nn.Module, anatomy: hope.Anatomy) -> None:
    known = hope.Absorb(calibration=None).collect(model, EXAMPLE, anatomy)
    name = "blocks.0.conv2.weight"
    small = hope.cut(model, anatomy, [hope.Quantise(name, 2)], input_statistics=known.input_statistics)
    change = (small.get_parameter(name) - model.get_parameter(name)).double().sum(
        (2, 3)
    ) @ known.input_statistics[name].mean
    bn = known.input_statistics[name].bn
    moved = small.get_buffer(f"{bn}.running_mean") - model.get_buffer(f"{bn}.running_mean")
    assert change.abs().max() > 1e-4
    assert torch.allclose(moved.double(), change, atol=1e-5)


def test_depthwise_weights_are_corrected_too() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, padding=1, groups=8), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 1)),
    )
    randomise(net).eval()
    encoding = hope.encode(net, torch.zeros(1, 3, 8, 8), bits=2, method=CLOSED)
    mean = torch.relu(torch.randn(200_000, 8) * net[1].weight.abs() + net[1].bias).mean(0)
    change = (encoding.model[3].weight - net[3].weight).sum((1, 2, 3)) * mean.repeat_interleave(2)
    moved = encoding.model[4].running_mean - net[4].running_mean
    assert change.abs().max() > 0.01
    assert torch.allclose(moved, change, atol=0.02)


def test_grouped_weights_are_corrected_too() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 12, 3, padding=1, groups=4), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 4, 1)),
    )
    randomise(net).eval()
    encoding = hope.encode(net, torch.zeros(1, 3, 8, 8), bits=2, method=CLOSED)
    mean = torch.relu(torch.randn(200_000, 8) * net[1].weight.abs() + net[1].bias).mean(0)
    change = (encoding.model[3].weight - net[3].weight).sum((2, 3))  # 12 outputs, 2 inputs each
    want = (change.reshape(4, 3, 2) * mean.reshape(4, 1, 2)).sum(2).flatten()
    moved = encoding.model[4].running_mean - net[4].running_mean
    assert want.abs().max() > 0.01
    assert torch.allclose(moved, want, atol=0.02)


class Tokens(nn.Module):
    """Linear layers over (N, tokens, features), as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128, bias=False), nn.Linear(128, 64)

    def forward(self, input: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(input)))


@pytest.mark.parametrize(
    ("net", "shape", "given", "products"),
    [
        (Tokens, (2, 3, 64), {"bits": 4, "group": 32}, 2),
        (Tokens, (2, 3, 64), {"bits": 4}, 2),
        (Tokens, (2, 3, 64), {"bits": 8, "group": 32}, 2),
        (lambda: nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8)), (2, 64), {"bits": 3}, 2),
        (lambda: nn.Sequential(nn.Conv2d(32, 8, 3), nn.GELU()), (2, 32, 5, 5), {"bits": 4}, 0),
        (lambda: nn.Sequential(nn.Conv2d(32, 8, 3), nn.GELU()), (2, 32, 5, 5), {"bits": 4, "group": 32}, 0),
    ],
)  # fmt: skip
def test_packed_weights_in_onnx_compute_what_the_module_computes(
    net: Callable[[], nn.Module],
    shape: tuple[int, ...],
    given: dict[str, int],
    products: int,
    tmp_path: Path,
) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    x = torch.randn(shape)
    encoding = hope.encode(net().eval(), torch.zeros(shape), method=CLOSED, **given)
    written = encoding.export_onnx(tmp_path / "small.onnx")
    graph = onnx.load(written).graph
    assert sum(node.op_type == "MatMulNBits" for node in graph.node) == products
    large = max(math.prod(one.dims) for one in graph.initializer if one.data_type == onnx.TensorProto.FLOAT)
    assert large < max(math.prod(anatomy_shape) for anatomy_shape in encoding.anatomy.shapes.values()) / 8
    (found,) = runtime.InferenceSession(str(tmp_path / "small.onnx")).run(None, {"input": x.numpy()})
    assert torch.allclose(torch.tensor(found), encoding.model(x), atol=1e-4)


def test_without_ranges_only_weights_are_integers(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).eval()
    encoding = hope.encode(net, torch.zeros(1, 64), bits=8)
    written = encoding.export_onnx(tmp_path / "small.onnx")
    assert "saves only bytes: no range of activations is known" in written.note
    assert (tmp_path / "small.onnx").stat().st_size < 0.4 * 4 * 2 * 64 * 256
    x = torch.randn(5, 64)
    (found,) = runtime.InferenceSession(str(tmp_path / "small.onnx")).run(None, {"input": x.numpy()})
    assert torch.allclose(torch.tensor(found), encoding.model(x), atol=1e-4)


def test_bits_and_neurons_meet_a_budget_in_bytes_and_every_other_one(
    model: nn.Module, anatomy: hope.Anatomy, tmp_path: Path
) -> None:
    encoding = hope.encode(model, EXAMPLE, size=0.06, anatomy=anatomy)
    mix = encoding.trajectory.mix(encoding.steps)
    assert mix["quantise"] > 0
    assert mix["absorb"] > 0
    sizes = encoding.trajectory.counts("size")
    assert sizes[encoding.steps] <= 0.06 * sizes[0] < sizes[encoding.steps - 1]
    assert (sizes[1:] <= sizes[:-1]).all()
    stored = read_arrays(encoding.save(tmp_path), read_run(tmp_path).record.weights)
    assert sum(one.nbytes for one in stored.values()) == sizes[encoding.steps]
    other = encoding.at(size=0.2)
    again = hope.load(tmp_path, model, size=0.2)
    assert all(torch.equal(a, b) for a, b in zip(state(other).values(), state(again).values(), strict=True))
    plain = hope.encode(model, EXAMPLE, size=0.5, bits=None, anatomy=anatomy)
    assert plain.trajectory.mix()["quantise"] == 0


def test_rounding_what_stays_is_the_same_before_and_after_pruning(
    model: nn.Module, anatomy: hope.Anatomy
) -> None:
    name = "blocks.0.conv1.weight"  # its rows go, and rows are rounded one by one
    both = [hope.Quantise(name, 4), hope.Prune("blocks.0.conv1", [1, 5])]
    first, last = (hope.cut(model, anatomy, steps) for steps in (both, both[::-1]))
    assert torch.equal(first.get_parameter(name), last.get_parameter(name))
    alone = hope.cut(model, anatomy, both[:1]).get_parameter(name)
    kept = [k for k in range(len(alone)) if k not in (1, 5)]
    assert torch.equal(first.get_parameter(name), alone[kept])


def test_a_run_ranks_by_cost_per_byte(model: nn.Module, anatomy: hope.Anatomy) -> None:
    known = hope.Absorb(calibration=None).collect(model, EXAMPLE, anatomy)
    rounding = roundings(known, readers(anatomy), BitOptions((8, 4)), lambda block: 1.0)
    steps, stops = interleaved(anatomy, (), (), rounding)
    assert stops == ()
    assert len(steps) == 2 * len(readers(anatomy))
    seen: dict[str, int] = {}
    for step in steps:
        assert step.weight_grid is not None
        assert seen.get(step.name, 32) > step.weight_grid[0]
        seen[step.name] = step.weight_grid[0]
    assert {step.weight_grid for step in steps[: len(readers(anatomy))]} >= {(8, 0)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bits": 3.5}, "bits must be one or several of 2, 3, 4, 5, 6, 8, or None, got 3.5"),
        ({"bits": 1}, "got 1"),
        ({"bits": 64}, "got 64"),
        ({"bits": []}, r"got \[\]"),
        ({"bits": 8, "params": 0.5}, "bits must go with size=, got params"),
        ({"bits": 8, "latency": 0.5}, "runtime must be 'onnxruntime' for bits, got torch"),
        (
            {"bits": 4, "latency": 0.5, "runtime": "onnxruntime"},
            "bits must be 8 with onnxruntime, .*, got 4: give bits=8",
        ),
        ({"bits": 8, "group": 48}, "group must be one of 32, 64, 128, got 48"),
        ({"bits": 8, "round": "up"}, "round must be one of feedback, nearest, got 'up'"),
        (
            {"params": 0.5, "group": 32},
            "group=32 must go with rounded weights, got none: give bits=8 or bits=4",
        ),
        ({"size": "10B"}, "size=10B cannot be met: the smallest reachable is"),
    ],
)
def test_bits_that_make_no_sense_are_refused(model: nn.Module, given: dict[str, object], words: str) -> None:
    with pytest.raises(hope.HopeError, match=words):
        hope.encode(model, EXAMPLE, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (hope.Quantise("nothing", 8), "a weight must be one of .*, got 'nothing'"),
        (hope.Quantise("stem.1.weight", 8), "must have two dimensions or more, got 1"),
        (hope.Quantise("stem.0.weight", 7), "bits of stem.0.weight must be one of 2, 3, 4, 5, 6, 8, got 7"),
        (hope.Quantise("stem.0.weight", 8, -1), "group of stem.0.weight must be at least 0, got -1"),
        (hope.Quantise("stem.0.weight", 8, 32), "must divide its 9 inputs, got 32: give 0 for one scale"),
        (hope.Quantise("stem.0.weight", 8, 0, "up"), "rounding must be feedback or nearest, got 'up'"),
    ],
)
def test_actions_that_make_no_sense_are_refused(
    model: nn.Module, anatomy: hope.Anatomy, action: hope.Quantise, words: str
) -> None:
    with pytest.raises(hope.errors.InvalidAction, match=words):
        hope.cut(model, anatomy, [action])


def test_groups_of_inputs_have_their_own_scales(
    model: nn.Module, anatomy: hope.Anatomy, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"method": hope.Absorb(calibration=None), "anatomy": anatomy}  # no refit
    encoding = hope.encode(model, EXAMPLE, bits=3, group=64, round="nearest", **how)
    steps = {step.name: step.weight_grid for step in encoding.trajectory}
    columns = {name: anatomy.shapes[name][1:] for name in steps}
    assert steps == {
        name: (3, 0 if torch.Size(shape).numel() % 64 else 64) for name, shape in columns.items()
    }
    assert {(3, 0), (3, 64)} == set(steps.values())
    uneven = sum(grid == (3, 0) for grid in steps.values())
    words = (
        f"{uneven} of {len(steps)} weights have one scale per output: group=64 does not divide their inputs"
    )
    assert words in encoding.notes
    name = next(name for name, grid in steps.items() if grid == (3, 64))
    weight = model.get_parameter(name).double().flatten(1)
    want = nearest(weight, scales(weight, 3, diagonal(encoding, name), 64), 3, 64).float()
    assert torch.equal(encoding.model.get_parameter(name).flatten(1), want)
    stored = read_arrays(encoding.save(tmp_path), read_run(tmp_path).record.weights)
    assert sum(one.nbytes for one in stored.values()) == encoding.trajectory.counts("size")[-1]
    again = hope.load(tmp_path, model).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in encoding.model.state_dict().items())


def diagonal(encoding: hope.Encoding, name: str) -> Tensor:
    moments = moments_of(encoding.input_statistics[name])
    assert moments is not None
    return moments.diagonal


def test_folders_of_half_precision_models_have_the_promised_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(64, 96, bias=False), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32))
    net = randomise(nn.Sequential(*layers)).bfloat16().eval()
    for given in ({"bits": 4}, {"bits": 4, "group": 32}, {"size": 0.3, "group": 32}):
        encoding = hope.encode(net, torch.zeros(2, 64, dtype=torch.bfloat16), **given)  # type: ignore[arg-type]
        folder = encoding.save(tmp_path / str(len(list(tmp_path.iterdir()))))
        stored = sum(one.nbytes for one in read_arrays(folder, read_run(folder).record.weights).values())
        assert stored == pytest.approx(encoding.trajectory.counts("size")[encoding.steps], rel=0.01)


def test_inspect_says_which_weights_can_be_rounded_and_why_others_cannot() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.twice, self.last = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9)
            self.head = nn.Linear(4, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            x = self.twice(self.twice(self.embed(x)))
            return self.head(x) + self.last(x)

    anatomy = hope.inspect(Net(), torch.zeros(1, 3, dtype=torch.long))
    reasons = {name: str(reason) for name, reason in anatomy.roundable.items() if reason is not None}
    assert reasons == {
        "embed.weight": "it is tied to head.weight",
        "twice.weight": "it is used 2 times in one pass",
    }
    assert list(readers(anatomy)) == ["last.weight"]
    assert "can be rounded" in str(anatomy)
    assert "it is tied to head.weight" in str(anatomy)
    for name, words in reasons.items():
        with pytest.raises(hope.errors.InvalidAction, match=f"{name} cannot be rounded, {words}"):
            hope.cut(Net(), anatomy, [hope.Quantise(name, 8)])


def test_a_run_of_bits_alone_needs_a_weight_to_round(model: nn.Module, anatomy: hope.Anatomy) -> None:
    with pytest.raises(hope.HopeError, match="bits must have a weight to round, got none"):
        hope.encode(model, EXAMPLE, anatomy=anatomy, bits=8, exclude=["*"])


def test_a_weight_of_one_value_is_rounded_to_it(model: nn.Module, anatomy: hope.Anatomy) -> None:
    flat = randomise(hope.demo.DigitsNet()).eval()
    with torch.no_grad():
        flat.get_parameter("blocks.0.conv2.weight").fill_(0.3)
    small = hope.cut(flat, anatomy, [hope.Quantise("blocks.0.conv2.weight", 2)])
    found = small.get_parameter("blocks.0.conv2.weight").detach().unique()
    assert len(found) == 1
    assert float(found) == pytest.approx(0.3, rel=1e-3)


def test_a_weight_of_zeros_stays(model: nn.Module, anatomy: hope.Anatomy) -> None:
    still = randomise(hope.demo.DigitsNet()).eval()
    with torch.no_grad():
        still.get_parameter("blocks.0.conv2.weight").zero_()
    small = hope.cut(still, anatomy, [hope.Quantise("blocks.0.conv2.weight", 4)])
    assert not small.get_parameter("blocks.0.conv2.weight").any()


def test_onnxruntime_computes_with_integers_what_the_module_computes(
    model: nn.Module, anatomy: hope.Anatomy, tmp_path: Path
) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    inputs = torch.randn(16, 1, 8, 8)
    for given in ({"bits": 8}, {"size": 0.2}):
        encoding = hope.encode(model, EXAMPLE, anatomy=anatomy, **given)  # type: ignore[arg-type]
        written = encoding.export_onnx(tmp_path / "small.onnx")
        assert "integers in" in written.note
        graph = onnx.load(written).graph
        whole = {one.name: one for one in graph.initializer if one.data_type == onnx.TensorProto.INT8}
        for name, grid in encoding.grids.items():
            if f"{name}_quantized" in whole:  # the module's own integers, up to the sign of the BN
                found = torch.tensor(onnx.numpy_helper.to_array(whole[f"{name}_quantized"])).flatten(1)
                assert torch.equal(found.abs(), grid.whole.abs())
        assert any(name.endswith("_quantized") for name in whole)
        answer = torch.tensor(
            runtime.InferenceSession(str(tmp_path / "small.onnx")).run(None, {"x": inputs.numpy()})[0]
        )
        want = encoding.model(inputs).detach()
        assert (answer - want).norm() < 0.1 * want.norm()


def test_the_command_line_rounds_and_extracts(
    model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    (tmp_path / "net.py").write_text(
        "from hope.demo import DigitsNet\n\n\ndef build():\n    return DigitsNet()\n"
    )
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    source = [
        f"{tmp_path / 'net.py'}:build",
        "--weights",
        str(tmp_path / "w.safetensors"),
        "--input",
        "1x1x8x8",
    ]
    run = str(tmp_path / "run")
    assert main(["encode", *source, "--bits", "8,4", "--out", run]) == 0
    assert "quantisations" in capsys.readouterr().out
    assert main(["encode", *source, "--bits", "8,4", "--out", run, "--resume"]) == 0
    assert "already has this run" in capsys.readouterr().out
    assert (
        main(["extract", run, source[0], "--steps", "3", "--out", str(tmp_path / "three.safetensors")]) == 0
    )
    written = str(tmp_path / "small.onnx")
    assert main(["extract", run, source[0], "--onnx", written]) == 0
    assert "integers in" in capsys.readouterr().out
    assert main(["encode", *source, "--bits", "seven", "--out", str(tmp_path / "other")]) == 2
    assert "bits must be" in capsys.readouterr().err
    page = write_page([read_run(run)], tmp_path / "run.html").read_text(encoding="utf-8")
    assert "round blocks.0.conv1.weight to 4 bits" in page


def test_without_bits_a_budget_is_needed(model: nn.Module) -> None:
    with pytest.raises(hope.errors.InfeasibleBudget, match="the budget must be exactly one of"):
        hope.encode(model, EXAMPLE)
    with pytest.raises(hope.errors.InfeasibleBudget, match="the budget must be exactly one of"):
        hope.encode(model, EXAMPLE, bits=None)


def test_the_inputs_range_holds_what_the_first_bn_implies_and_all_convolutions_compute_with_integers(
    tmp_path: Path,
) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    more = (nn.Conv2d(16, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    net = nn.Sequential(*layers, *more, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    x = 20 + 50 * coloured_noise(64, 3, (16, 16), seed=3)  # far from mean 0 and deviation 1
    net = hope.recalibrate_bn(net, [x]).eval()
    low, high = input_range(net, x[:1]) or (0.0, 0.0)
    assert low < x.min() < x.max() < high
    assert high - low < 4 * (x.max() - x.min())
    encoding = hope.encode(net, x[:1], bits=8, method=CLOSED)
    graph = onnx.load(encoding.export_onnx(tmp_path / "small.onnx")).graph
    integer = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert len(convolutions) == 2
    assert all(integer.issuperset(node.input[:2]) for node in convolutions)
    session = runtime.InferenceSession(str(tmp_path / "small.onnx"))
    answer = torch.tensor(session.run(None, {"input": x.numpy()})[0])
    want = encoding.model(x).detach()
    assert (answer - want).norm() < 0.05 * want.norm()


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)),
        nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.BatchNorm1d(4)),
    ],
)
def test_an_input_that_no_bn_follows_has_no_range(net: nn.Module) -> None:
    assert input_range(net.eval(), torch.zeros(1, 3, 8, 8)) is None


class Texts(nn.Module):
    """A transformer's layer and a pooler, which reads the first token, without BN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm, self.after = nn.Embedding(50, 16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.query, self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.pooler = nn.Linear(16, 8)
        with torch.no_grad():  # channels that are far from alike, as those of trained models
            self.norm.weight.copy_(torch.linspace(-2, 2, 16).exp())
            self.after.weight.copy_(torch.linspace(2, -2, 16).exp())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        normed = self.norm(x)
        x = x + functional.scaled_dot_product_attention(self.query(normed), normed, normed)
        x = x + self.down(functional.gelu(self.up(self.after(x))))
        out: Tensor = self.pooler(x[:, 0])
        return out


def test_without_bn_what_every_weight_reads_is_measured() -> None:
    net, tokens = Texts().eval(), torch.randint(50, (64, 12), generator=torch.Generator().manual_seed(0))
    read: dict[str, Tensor] = {}
    for name in ("query", "up", "down", "pooler"):
        layer = net.get_submodule(name)
        layer.register_forward_pre_hook(
            lambda _, args, name=name: read.update({name: args[0].flatten(0, -2)})
        )
    with torch.no_grad():
        net(tokens)
    inputs = {name: one.double() for name, one in read.items()}
    plain = hope.encode(net, tokens[:1], bits=3, progress=False).model
    run = hope.encode(net, tokens[:1], bits=3, calibration=[tokens], progress=False)
    assert run.input_statistics.keys() == {f"{name}.weight" for name in inputs}
    for name, x in inputs.items():
        exact, spread = net.state_dict()[f"{name}.weight"], x - x.mean(dim=0)
        off = [(one.state_dict()[f"{name}.weight"] - exact).double() @ spread.T for one in (run.model, plain)]
        assert off[0].square().sum() < 0.9 * off[1].square().sum(), name


def test_a_weight_that_reads_one_place_is_rounded_to_nearest() -> None:
    net, tokens = Texts().eval(), torch.arange(12)[None]
    run = hope.encode(net, tokens, bits=4, calibration=[tokens], progress=False)
    plain = hope.encode(net, tokens, bits=4, round="nearest", progress=False)
    torch.testing.assert_close(run.model.pooler.weight, plain.model.pooler.weight, rtol=0, atol=0)
    assert run.input_statistics.keys() == {"query.weight", "up.weight", "down.weight"}


class Rows(nn.Module):
    """A convolution, and linear layers of its places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.inner, self.last = nn.Linear(8, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x))).flatten(2).transpose(1, 2)
        return self.last(torch.relu(self.inner(x))).mean(1)


@pytest.mark.parametrize(("given", "whole"), [({"bits": 3}, 2), ({"bits": 3, "group": 32}, 1)])
def test_linear_layers_of_tensors_keep_their_grid_in_onnx(
    given: dict[str, Any], whole: int, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    x = torch.randn(32, 3, 8, 8)
    net = hope.recalibrate_bn(Rows(), [x]).eval()
    encoding = hope.encode(net, x[:1], method=hope.Absorb(calibration=[x]), **given)
    graph = onnx.load(encoding.export_onnx(tmp_path / "small.onnx")).graph
    known = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    matrices = [one.T for name, one in known.items() if name.endswith("_quantized") and one.ndim == 2]
    assert len(matrices) == whole
    own = [encoding.grids[name].whole.numpy() for name in ("inner.weight", "last.weight")]
    assert all(any(one.shape == mine.shape and (one == mine).all() for mine in own) for one in matrices)
    packed = sum(node.op_type == "MatMulNBits" for node in graph.node)
    assert packed == 2 - whole  # the one with groups


def test_what_stays_in_float_says_why(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    x = torch.randn(8, 5, 64)
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8)).eval()
    encoding = hope.encode(net, x[:1], bits=8, method=hope.Absorb(calibration=[x]))
    written = encoding.export_onnx(tmp_path / "small.onnx")
    assert "saves only bytes: no convolution or Gemm can use integer kernels" in written.note
