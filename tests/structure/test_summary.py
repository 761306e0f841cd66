"""An anatomy prints as a table that a person can read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hope
from hope._util.tables import grid
from hope._util.tables import text as shown
from hope.schedule.search_space import SearchSpace
from hope.structure.needs import Need, counts, needs


class Net(nn.Module):
    """A layer with BN, a grouped one, a block and a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.a, self.bn, self.b = (
            nn.Conv2d(8, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 8, 1),
        )
        self.c, self.d, self.out = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 1, groups=2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.b(F.relu(self.bn(self.a(x))))
        return self.out(F.silu(self.d(self.c(x))).mean((2, 3)))


def rows(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in text.splitlines() if line.split()}


def test_the_table_has_a_row_for_every_layer() -> None:
    text = str(hope.inspect(Net(), torch.zeros(1, 3, 4, 4)))
    header = next(line for line in text.splitlines() if line.startswith("layer"))
    assert header.split() == [
        "layer",
        "neurons",
        "fan-in",
        "fan-out",
        "activation",
        "BN",
        "needs",
        "saves",
        "removed",
        "with",
        "it",
    ]
    table = rows(text)
    assert table["a"] == ["a", "6", "72", "8", "relu", "bn", "nothing", "82"]
    assert table["c"] == [
        "c",
        "2×2",
        "16",
        "6",
        "silu",
        "none",
        "calibration",
        str(2 * 9 + 2 * 2 + 2 + 6),
        "d",
    ]
    assert table["model"][:4] == ["model", "identity", "8", str(8 * 6 * 9 + 12 + 56)]


def test_the_head_counts_neurons_blocks_streams_parameters_and_macs() -> None:
    anatomy = hope.inspect(Net(), torch.zeros(1, 3, 4, 4))
    lines = str(anatomy).splitlines()
    assert counts(anatomy) == {Need.NOTHING: 6, Need.CALIBRATION: 2 * 2, Need.NEVER: 8 + 8 + 3}
    assert "(a neuron with several channels counts once for each channel)" in lines
    assert lines[0] == "Net: 8 compressible neurons in 2 layers"
    assert lines[1] == "1 evictable block, 1 stream"
    share = 1 - anatomy.floor().parameters / anatomy.size().parameters
    macs = 16 * (24 + 432 + 48 + 32 + 8) + 12
    parameters = 32 + 432 + 12 + 56 + 36 + 12 + 15
    assert lines[2:4] == [
        f"{parameters} parameters, of which {share:.1%} are prunable",
        f"{macs:,} MACs on the example",
    ]


def test_a_network_without_removable_neurons_says_why() -> None:
    text = str(
        hope.inspect(
            nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softmax(1), nn.Conv2d(4, 2, 1)), torch.zeros(1, 3, 4, 4)
        )
    )
    assert "Sequential: 0 compressible neurons in 0 layers" in text
    assert "No neuron can be removed on its own; the reasons are below." in text
    assert "softmax in 1 normalises its channels together" in text
    assert "it is an output of the model" in text


def test_a_network_without_parameters_prints_too() -> None:
    assert "0 parameters, of which 0.0% are prunable" in str(hope.inspect(nn.ReLU(), torch.zeros(1, 3)))


def test_equal_reasons_are_reported_once() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(nn.Linear(3, n) for n in (2, 4, 5))

        def forward(self, x: Tensor) -> list[Tensor]:
            return [head(x) for head in self.heads]

    text = str(hope.inspect(Heads(), torch.zeros(1, 3)))
    assert text.count("it is an output of the model") == 1
    assert rows(text)["heads.0"][:5] == ["heads.0", "and", "2", "more", "11"]


class Twice(nn.Module):
    """Layers that can go without data, with calibration, and not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)
        self.c, self.d, self.twice, self.out = (
            nn.Linear(5, 4),
            nn.Linear(4, 3),
            nn.Linear(3, 7),
            nn.Linear(7, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.c(F.relu(self.b(F.relu(self.bn(self.a(x)))))))
        x = F.relu(self.d(x))
        return self.out(F.relu(self.twice(x)) + F.relu(self.twice(-x)))


def test_what_the_table_says_of_data_is_what_encode_does() -> None:
    net, example = Twice().eval(), torch.zeros(2, 4)
    anatomy = hope.inspect(net, example)
    text = str(anatomy)
    known, found = needs(anatomy), counts(anatomy)
    assert (known["a"], known["b"]) == (Need.NOTHING, Need.CALIBRATION)
    assert found[Need.NEVER] >= 2  # the model's outputs
    parts = [str(found[need]) for need in (Need.NOTHING, Need.CALIBRATION, Need.NEVER)]
    title, head, line = text.splitlines()[5:8]
    assert title == "Prunable neurons"
    assert head.split() == ["without", "data", "only", "with", "calibration", "not", "at", "all"]
    assert line.split() == ["by", "absorption,", "the", "default", *parts]
    for method, kind in (("absorb", hope.Absorb), ("paper", hope.Paper)):
        known = needs(anatomy, method)
        for batches, can in ((None, {Need.NOTHING}), ([torch.randn(8, 4)], {Need.NOTHING, Need.CALIBRATION})):
            plan = SearchSpace.of(net, example, anatomy, kind(calibration=batches))
            able = {name for name, need in known.items() if need in can}
            assert {state.name for state in plan.states} == able
    known = needs(anatomy)
    assert all(rows(text)[name][6] in need.value for name, need in known.items())


class Scaled(nn.Module):
    """Behind the activation stands a learned scale: absorption propagates it, the paper's method does not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.bn(self.a(x))) * self.scale)


def test_where_methods_need_different_things_the_table_says_so() -> None:
    net, example = Scaled().eval(), torch.zeros(2, 4)
    anatomy = hope.inspect(net, example)
    assert (needs(anatomy)["a"], needs(anatomy, "paper")["a"]) == (Need.NOTHING, Need.CALIBRATION)
    assert str(anatomy).splitlines()[8].split() == ["by", "the", "paper's", "method", "0", "6", "5"]
    plans = [
        SearchSpace.of(net, example, anatomy, hope.Paper(calibration=some))
        for some in (None, [torch.randn(8, 4)])
    ]
    assert [len(plan.states) for plan in plans] == [0, 1]
    assert plans[0].left_alone["a"].cause is hope.Cause.SCALED
    assert str(replace(anatomy, program=(), taps={})) == str(anatomy)  # as it is saved
    assert "by the paper" not in str(hope.inspect(Twice().eval(), example))


def test_a_table_fits_its_width_and_names_what_it_left_out() -> None:
    table = grid("A table", " layer", "neurons", "fan-in?", " goes with it?")
    table.add_row("features.0", "64", "1,000", "features.1, features.2, features.3")
    assert "not shown" not in shown(table)
    narrow = shown(table, width=40).splitlines()
    assert max(map(len, narrow)) <= 40
    assert narrow[1].split() == ["layer", "neurons", "fan-in"]
    assert " ".join(" ".join(narrow).split()).endswith("(not shown for want of space: goes with it)")
    assert "fan-in, goes with" in " ".join(shown(table, width=20).split())


def test_a_title_is_not_folded_to_the_width_of_its_table() -> None:
    table = grid("A title that is longer than the table", " what", "outputs")
    table.add_row("stem", "8")
    assert shown(table).splitlines()[0] == "A title that is longer than the table"
    assert max(map(len, shown(table, width=20).splitlines())) <= 20


class Auxiliary(nn.Module):
    """A second head, for training."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)
        self.aux, self.aux_bn, self.aux_out = nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.bn(self.a(x)))
        if not self.training:
            return self.b(x)
        return self.b(x), self.aux_out(F.relu(self.aux_bn(self.aux(x))))


def test_what_a_head_for_training_reads_cannot_go_by_absorption() -> None:
    net, example = Auxiliary().eval(), torch.zeros(2, 4)
    anatomy = hope.inspect(net, example)
    assert needs(anatomy) == dict.fromkeys(("a", "aux"), Need.NEVER)
    assert needs(anatomy, "paper") == dict.fromkeys(("a", "aux"), Need.NOTHING)
    for method in (hope.Absorb(), hope.Absorb(calibration=[torch.randn(8, 4)])):
        assert not SearchSpace.of(net, example, anatomy, method).states
    assert [state.name for state in SearchSpace.of(net, example, anatomy, hope.Paper()).states] == [
        "a",
        "aux",
    ]


class Positions(nn.Module):
    """A perceptron that reads a table of positions, no signal, as attention with learned biases has it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(1, 8), nn.Linear(8, 4), nn.Linear(4, 2)
        self.register_buffer("table", torch.linspace(-1, 1, 5).reshape(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) + self.b(F.relu(self.a(self.table))).mean()


def test_what_reads_positions_can_be_measured() -> None:
    net, example = Positions().eval(), torch.zeros(2, 4)
    anatomy = hope.inspect(net, example)
    assert needs(anatomy) == {"a": Need.CALIBRATION}
    for batches, able in ((None, []), ([torch.randn(8, 4)], ["a"])):
        plan = SearchSpace.of(net, example, anatomy, hope.Absorb(calibration=batches))
        assert [state.name for state in plan.states] == able
