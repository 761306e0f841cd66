"""A cut network is an ordinary network: it trains, copies, moves, exports, compiles and runs in parallel."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hope
from hope.demo import DigitsNet as Network
from hope.rewrite.apply import outcome
from tests.support import assert_same, backward, check_cut, masked, random_cut, randomise, run

EXAMPLE = torch.linspace(-1, 1, 4 * 64).reshape(4, 1, 8, 8)


@pytest.fixture
def model() -> nn.Module:
    return randomise(Network()).eval()


@pytest.fixture
def small(model: nn.Module) -> nn.Module:
    """Half of all neurons and one block removed."""
    anatomy = hope.inspect(model, EXAMPLE)
    bias = torch.linspace(-1, 1, 16).tolist()
    return hope.cut(model, anatomy, [*random_cut(anatomy, 0.5), hope.Evict("blocks.1", bias)])


def test_cut_equals_masked_in_double_precision(model: nn.Module) -> None:
    check_cut(model.double(), EXAMPLE.double(), tolerance=1e-10)


def test_size_attributes_follow_the_tensors(small: nn.Module) -> None:
    for module in small.modules():
        if isinstance(module, nn.Conv2d):
            assert module.weight.shape[:2] == (module.out_channels, module.in_channels // module.groups)
        elif isinstance(module, nn.Linear):
            assert module.weight.shape == (module.out_features, module.in_features)
        elif isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.weight.shape == module.running_mean.shape == (module.num_features,)


def test_model_is_left_untouched(model: nn.Module) -> None:
    before = copy.deepcopy(model.state_dict())
    anatomy = hope.inspect(model, EXAMPLE)
    hope.cut(model, anatomy, [*random_cut(anatomy), hope.Evict("blocks.0")])
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_trains_and_gradients_have_the_new_shapes(small: nn.Module) -> None:
    backward(small, EXAMPLE)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1, momentum=0.9)
    before = [p.clone() for p in small.parameters()]
    optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, small.parameters(), strict=True))


def test_frozen_parameters_stay_frozen(model: nn.Module) -> None:
    model.get_parameter("blocks.0.conv1.weight").requires_grad_(False)
    anatomy = hope.inspect(model, EXAMPLE)
    small = hope.cut(model, anatomy, random_cut(anatomy))
    assert not small.get_parameter("blocks.0.conv1.weight").requires_grad
    assert small.get_parameter("blocks.1.conv1.weight").requires_grad


def test_copies_and_moves_between_types_and_devices(small: nn.Module) -> None:
    want = run(small, EXAMPLE)
    assert_same(run(copy.deepcopy(small), EXAMPLE), want, 0)
    assert run(copy.deepcopy(small).double(), EXAMPLE.double())[0].dtype is torch.float64
    assert run(copy.deepcopy(small).bfloat16(), EXAMPLE.bfloat16())[0].dtype is torch.bfloat16
    assert run(copy.deepcopy(small).to("meta"), EXAMPLE.to("meta"))[0].device.type == "meta"


def test_exports_again_and_can_be_inspected_and_cut_again(small: nn.Module) -> None:
    program = torch.export.export(small, (EXAMPLE,))
    assert_same([program.module()(EXAMPLE)], run(small, EXAMPLE), 1e-5)
    check_cut(small, EXAMPLE, tolerance=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx_runtime_gives_the_same_outputs(small: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    path = tmp_path / "small.onnx"
    torch.onnx.export(small, (EXAMPLE,), str(path), dynamo=True, verbose=False)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: EXAMPLE.numpy()})
    assert_same([torch.from_numpy(got)], run(small, EXAMPLE), 1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.skipif(
    shutil.which("c++") is None and shutil.which("g++") is None, reason="there is no C++ compiler"
)
def test_compiles_where_a_compiler_exists(small: nn.Module) -> None:
    want = run(small, EXAMPLE)
    assert_same(run(torch.compile(small), EXAMPLE), want, 1e-4)


def _worker(rank: int, meeting: str, folder: str) -> None:
    store = torch.distributed.FileStore(meeting, 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    small = nn.parallel.DistributedDataParallel(hope.load(folder, Network()).train())
    loss = small(EXAMPLE[2 * rank : 2 * rank + 2]).square().mean()
    loss.backward()
    gradient = next(p.grad for p in small.parameters() if p.grad is not None).flatten()
    both = [torch.zeros_like(gradient) for _ in range(2)]
    torch.distributed.all_gather(both, gradient)
    torch.distributed.destroy_process_group()
    assert torch.equal(both[0], both[1])
    assert both[0].abs().sum() > 0


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_runs_under_distributed_data_parallel(model: nn.Module, tmp_path: Path) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    hope.save(tmp_path / "run", model, anatomy, [*random_cut(anatomy), hope.Evict("blocks.2", [0.5] * 16)])
    torch.multiprocessing.spawn(_worker, args=(str(tmp_path / "meeting"), str(tmp_path / "run")), nprocs=2)


class Flat(nn.Module):
    """Two residual blocks written out in one forward, one add in place on the branch, one functional."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.a1, self.n1, self.b1 = nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 1)
        self.a2, self.b2 = nn.Conv2d(6, 8, 1), nn.Conv2d(8, 6, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        out = self.b1(F.relu(self.n1(self.a1(x)), inplace=True))
        out += x
        y = F.gelu(out)
        y = y + self.b2(F.silu(self.a2(y)))
        return self.head(y.mean((2, 3)))


@pytest.mark.parametrize("with_bias", [False, True])
def test_evicting_from_flat_code_equals_zeroing_the_branch(with_bias: bool) -> None:
    model = randomise(Flat()).double().eval()
    example = EXAMPLE.double()
    anatomy = hope.inspect(model, example)
    assert [block.skip for block in anatomy.blocks] == ["identity", "identity"]
    bias = torch.linspace(-1, 1, 6) if with_bias else torch.zeros(6)
    silent = copy.deepcopy(model)
    for last in (silent.b1, silent.b2):
        last.weight.data.zero_()
        last.bias.data.copy_(bias)
    actions = [hope.Evict(block.name, bias.tolist() if with_bias else None) for block in anatomy.blocks]
    small = hope.cut(model, anatomy, actions)
    assert_same(run(small, example), run(silent, example), 1e-7)
    assert sum(p.numel() for p in small.parameters()) == outcome(anatomy, actions).size(anatomy).parameters


def test_evicting_leaves_no_operator_of_the_branch() -> None:
    model = Network().eval()
    anatomy = hope.inspect(model, EXAMPLE)
    small = hope.cut(model, anatomy, [hope.Evict(block.name) for block in anatomy.blocks])
    kinds = [str(node.target) for node in torch.export.export(small, (EXAMPLE,)).graph.nodes]
    assert not [kind for kind in kinds if "add" in kind or "zeros" in kind]
    assert len([kind for kind in kinds if "conv2d" in kind]) == 2
    assert (
        len([kind for kind in kinds if "relu" in kind]) == 2
    )  # the stem's and the squeeze's, none for the blocks


def test_pruning_inside_an_evicted_block_is_harmless(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    pruned = [action for action in random_cut(anatomy) if action.name != "blocks.1.conv1"]
    evict = hope.Evict("blocks.1")
    both = hope.cut(model, anatomy, [hope.Prune("blocks.1.conv1", [0]), *pruned, evict])
    one = hope.cut(model, anatomy, [*pruned, evict])
    assert_same(run(both, EXAMPLE), run(one, EXAMPLE), 0)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([hope.Prune("nowhere", [0])], "must be one of blocks.0.conv1"),
        ([hope.Prune("squeeze", [24])], "neurons must be 0 to 23, got 24"),
        ([hope.Prune("squeeze", [-1])], "neurons must be 0 to 23, got -1"),
        ([hope.Prune("squeeze", [1, 1])], "must be removed once, got 1 again"),
        ([hope.Prune("squeeze", range(24))], "must keep a neuron, got all 24 removed"),
        ([hope.Evict("nowhere")], "got 'nowhere'"),
        ([hope.Evict("blocks.0"), hope.Evict("blocks.0")], "twice"),
        ([hope.Evict("blocks.0", [1.0])], "must have 16 numbers, got 1"),
        ([hope.Merge("squeeze", 1, 1, (1, 1), (1, 1))], "must be two, got 1 twice"),
        (
            [hope.Prune("squeeze", [1]), hope.Merge("squeeze", 0, 1, (1, 0), (1, 1))],
            "must be removed once, got 1 again",
        ),
        ([hope.Merge("blocks.0.conv1", 0, 1, (1, 0), (1, 1))], "spread must be at least 0 before a BN"),
    ],
)
def test_impossible_actions_are_refused_in_one_line(
    model: nn.Module, actions: list[hope.Prune], words: str
) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    with pytest.raises(hope.InvalidAction) as refusal:
        hope.cut(model, anatomy, actions)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_foreign_anatomy_is_refused(model: nn.Module) -> None:
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    anatomy = hope.inspect(other, torch.zeros(1, 4))
    with pytest.raises(hope.InvalidAction, match="must be this model's, got"):
        hope.cut(model, anatomy, [])


def test_masked_reference_is_not_trivial(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    actions = random_cut(anatomy)
    difference = run(model, EXAMPLE)[0] - run(masked(model, anatomy, actions), EXAMPLE)[0]
    assert difference.abs().max() > 1e-2


def test_a_copy_made_inside_inference_mode_still_trains(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    with torch.inference_mode():
        small = hope.cut(model, anatomy, random_cut(anatomy))
    backward(small, EXAMPLE)


class Inner(nn.Module):
    """A residual block inside a module that stands in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x)))


def test_a_block_in_a_module_that_is_used_in_several_places_is_left_alone() -> None:
    shared = nn.Sequential(Inner(), nn.Tanh())
    anatomy = hope.inspect(nn.Sequential(shared, nn.ReLU(), shared), EXAMPLE)
    assert not anatomy.blocks
    assert {str(s.reason) for s in anatomy.skipped if s.kind == "block"} == {
        "the block cannot be evicted: it is inside a module that is used in several places"
    }
