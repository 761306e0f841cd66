"""Saving removes nothing that is not its own, and writers of one folder do not harm each other's runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import hope
from hope._util import locks
from hope._util.files import staged, write_file
from hope._util.locks import LOCK, locked
from hope.cli.main import main
from hope.demo import DigitsNet as Network
from hope.storage import run as store
from hope.storage.adapter import Head, read_adapter, write_adapter
from hope.storage.arrays import read_arrays
from tests.support import random_cut, randomise

EXAMPLE = torch.zeros(1, 1, 8, 8)
FOREIGN = [
    *(f"{kind}-best.safetensors" for kind in ("weights", "moments", "inputs", "adapter")),
    "weights-0123456789ab.safetensors",
]
HOLD = """
import sys
from pathlib import Path
from hope._util.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
SAVE = """
import sys, time
import torch, hope
from hope.demo import DigitsNet
from tests.support import random_cut, randomise
folder, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = randomise(DigitsNet(), seed=seed).eval()
anatomy = hope.inspect(model, torch.zeros(1, 1, 8, 8))
print("ready", flush=True)
sys.stdin.readline()
done = 0
while done < rounds:
    try:
        hope.save(folder, model, anatomy, random_cut(anatomy, seed=done))
        done += 1
    except hope.CannotWrite as error:
        assert "is being written by process" in str(error), error
        time.sleep(0.001)
print(done)
"""


def save(folder: Path, seed: int = 0) -> Path:
    """Save a run of a model of its own; its weights."""
    model = randomise(Network(), seed=seed).eval()
    anatomy = hope.inspect(model, EXAMPLE)
    hope.save(folder, model, anatomy, random_cut(anatomy))
    return store.read_run(folder).weights


def save_adapter(folder: Path, seed: int = 0) -> Path:
    """Save a tuning of one tensor; its file."""
    head = Head(name="head", kind="Linear", recipe=None, shapes=None)
    fields = {"method": "deft", "original": "", "head": head, "frozen": {}, "columns": {}}
    tensors = {"values/x": torch.full((3,), float(seed))}
    write_adapter(folder, tensors, **fields, masks_source=False, holds_statistics=False)
    return read_adapter(folder).arrays.inside(folder)


def rename_stored(folder: Path, **changes: str) -> None:
    """Let the record say something else of its weights, with the right digest."""
    plan = json.loads((folder / store.PLAN).read_text())
    plan["weights"].update(changes)
    plan["sha256"] = store.digest_of(plan)
    (folder / store.PLAN).write_text(json.dumps(plan))


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a folder's lock."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.kill()


@pytest.mark.parametrize("write", [save, save_adapter])
def test_files_of_others_are_never_removed(write: object, tmp_path: Path) -> None:
    for name in FOREIGN:
        (tmp_path / name).write_bytes(b"mine")
    for seed in range(2):
        write(tmp_path, seed)  # type: ignore[operator]
    assert [(tmp_path / name).read_bytes() for name in FOREIGN] == [b"mine"] * len(FOREIGN)


def test_a_checkpoint_in_the_folder_of_the_run_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("from hope.demo import DigitsNet as build\n")
    save_file(randomise(Network()).state_dict(), "weights-best.safetensors")
    before = Path("weights-best.safetensors").read_bytes()
    call = ["encode", "net.py:build", "--input", "1x1x8x8", "--weights", "weights-best.safetensors"]
    assert main([*call, "--density", "0.5", "--method", "l1-in", "--out", "."]) == 0
    assert main([*call, "--density", "0.4", "--method", "l1-in", "--out", ".", "--force"]) == 0
    assert Path("weights-best.safetensors").read_bytes() == before


@pytest.mark.parametrize("write", [save, save_adapter])
def test_what_only_the_earlier_record_named_is_removed(write: object, tmp_path: Path) -> None:
    (tmp_path / "weights-0123456789ab.safetensors").touch()  # no record names it
    (tmp_path / "report.html").touch()
    earlier = write(tmp_path, 0)  # type: ignore[operator]
    later = write(tmp_path, 1)  # type: ignore[operator]
    assert not earlier.exists()
    assert later.exists()
    assert (tmp_path / "weights-0123456789ab.safetensors").exists()


def test_a_folder_with_files_of_others_is_not_cleaned(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert save(tmp_path, 0) != save(tmp_path, 1)
    assert len(list(tmp_path.glob("weights-*"))) == 2


def test_nothing_is_removed_if_the_earlier_record_cannot_be_read(tmp_path: Path) -> None:
    earlier = save(tmp_path, 0)
    (tmp_path / store.PLAN).write_bytes((tmp_path / store.PLAN).read_bytes()[:-1])
    save(tmp_path, 1)
    assert earlier.exists()


def test_a_record_can_name_no_file_for_removal_but_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    save(folder, 0)
    digest = "0123456789ab" + 52 * "0"
    names = ["weights-best.safetensors", "weights-000000000000.safetensors", "small.safetensors"]
    for name in (*names, f"../weights-{digest[:12]}.safetensors", "partial.json"):
        (folder / name).touch()
        rename_stored(folder, file=name, sha256=digest)
        save(folder, 1)
        assert (folder / name).exists(), name


def test_a_folder_has_one_writer_which_the_refusal_names(tmp_path: Path) -> None:
    earlier = save(tmp_path, 0)
    with held_elsewhere(tmp_path) as other:
        for write in (save, save_adapter):
            with pytest.raises(
                hope.CannotWrite, match=rf"process {other.pid} on .* since .*: wait"
            ) as refusal:
                write(tmp_path, 1)
            assert "\n" not in str(refusal.value)
        other.kill()
        other.wait()
        assert (tmp_path / LOCK).exists()
        assert earlier.exists()
        save(tmp_path, 1)
    assert len(list(tmp_path.iterdir())) == 2


def test_encode_holds_the_folder_from_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, build = tmp_path / "run", tmp_path / "net.py"
    build.write_text(
        "import subprocess, sys\nfrom pathlib import Path\nfrom hope.demo import DigitsNet\n"
        "def build():\n"
        f"    command = [sys.executable, '-c', {HOLD!r}, {str(out)!r}]\n"
        "    done = subprocess.run(command, capture_output=True, text=True)\n"
        f"    Path({str(tmp_path / 'said')!r}).write_text(done.stderr)\n"
        "    return DigitsNet()\n"
    )
    call = ["encode", f"{build}:build", "--input", "1x1x8x8", "--density", "0.5", "--method", "l1-in"]
    assert main([*call, "--out", str(out)]) == 0
    assert f"is being written by process {os.getpid()} on" in (tmp_path / "said").read_text()
    assert not (out / LOCK).exists()
    capsys.readouterr()
    with held_elsewhere(out):
        assert main([*call, "--out", str(out), "--force"]) == 2
    error = capsys.readouterr().err
    assert "is being written by process" in error
    assert error.count("\n") == 1


def test_a_refused_encode_leaves_no_folder(tmp_path: Path) -> None:
    call = ["encode", "nowhere.py:build", "--input", "1x1x8x8", "--density", "0.5"]
    assert main([*call, "--out", str(tmp_path / "a" / "b")]) == 2
    assert list(tmp_path.iterdir()) == []


def test_processes_and_a_reader_never_meet_a_broken_folder(tmp_path: Path) -> None:
    save(tmp_path)
    commands = [[sys.executable, "-c", SAVE, str(tmp_path), "40", str(seed)] for seed in (1, 2)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen(command, **pipes) for command in commands]  # type: ignore[call-overload]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    while any(writer.poll() is None for writer in writers):
        hope.load(tmp_path, Network())
    done = [int(writer.communicate()[0]) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert done == [40, 40]
    hope.load(tmp_path, Network())
    assert len(list(tmp_path.iterdir())) == 2


def test_threads_save_one_after_the_other(tmp_path: Path) -> None:
    models = [randomise(Network(), seed=seed).eval() for seed in range(4)]
    anatomy = hope.inspect(models[0], EXAMPLE)

    def save_often(model: nn.Module) -> None:
        for seed in range(10):
            hope.save(tmp_path, model, anatomy, random_cut(anatomy, seed=seed))
            hope.load(tmp_path, Network())

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(save_often, models))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_reader_whose_run_is_replaced_reads_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 0)
    check, times = store.check_architecture, iter([1, 2])

    def save_meanwhile(*given: object) -> None:
        check(*given)  # type: ignore[arg-type]
        for seed in times:
            save(tmp_path, seed)
            return

    monkeypatch.setattr(store, "check_architecture", save_meanwhile)
    hope.load(tmp_path, Network())
    store.read_run(tmp_path).weights.unlink()
    with pytest.raises(hope.DamagedFolder, match="is missing"):
        hope.load(tmp_path, Network())


KILLED = """
import os, signal, sys
from pathlib import Path
from hope._util.files import staged, write_file
def die(*given): os.kill(os.getpid(), signal.SIGKILL)
os.replace = die
path = Path(sys.argv[1])
if path.suffix == ".onnx":
    with staged(path) as place:
        place.touch()
write_file(path, b"x")
"""


def test_what_killed_writers_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    for name in ("weights-0123456789ab.safetensors", store.PLAN, "small.onnx", "report.html"):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], check=False)
    assert len(list(tmp_path.glob(".*.part"))) == 4
    others = [".film.mp4.part", ".film.mp4.999999.part", ".x.1.0123.part", "a.1.01234567-01234567.part"]
    elsewhere = ".report.html.999999.01234567-01234567.part"  # its writer may be alive on another machine
    for name in (*others, elsewhere):
        (tmp_path / name).touch()
    save(tmp_path)
    assert {path.name for path in tmp_path.glob("*.part")} == {*others, elsewhere}


@pytest.mark.parametrize("name", ["page.html", "small.onnx"])
def test_what_a_killed_writer_left_outside_of_runs_is_removed_by_the_next_writer_of_that_file(
    tmp_path: Path, name: str
) -> None:
    for one in (name, "other.html"):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / one)], check=False)
    elsewhere = f".{name}.999999.01234567-01234567.part"  # its writer may be alive on another machine
    (tmp_path / elsewhere).touch()
    assert len(list(tmp_path.glob(".*.part"))) == 3
    write_file(tmp_path / name, b"x")
    left = {path.name for path in tmp_path.iterdir()} - {name, elsewhere}
    assert len(left) == 1
    assert left.pop().startswith(".other.html.")


def test_what_is_being_written_stays(tmp_path: Path) -> None:
    with staged(tmp_path / "small.onnx") as place, staged(tmp_path / "small.onnx") as other:
        assert place != other
        save(tmp_path)
        place.write_text("one")
        other.write_text("two")
    assert (tmp_path / "small.onnx").read_text() == "one"
    code = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "print(1, flush=True), sys.stdin.read()")
    command = [sys.executable, "-c", code, str(tmp_path / "page.html")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        save(tmp_path)
        assert len(list(tmp_path.glob(".page.html.*.part"))) == 1
        writer.kill()


def test_threads_can_write_one_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: write_file(tmp_path / "page.html", bytes([n]) * 4096), range(200)))
    assert len(set((tmp_path / "page.html").read_bytes())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_forked_process_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    code = "import os\n" + HOLD.replace("    print", "    if os.fork(): os._exit(0)\n    print")
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        parent.wait()
        with locked(tmp_path):
            pass


def test_without_locks_of_files_the_owner_is_the_one_who_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "fcntl", None)
    save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    with locked(tmp_path):
        owner = json.loads((tmp_path / locks.OWNER).read_text())
    (tmp_path / locks.OWNER).write_text(json.dumps({**owner, "pid": os.getppid()}))
    with pytest.raises(hope.CannotWrite, match=rf"process {os.getppid()} on .*: wait .* remove .*owner if"):
        save(tmp_path)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    (tmp_path / locks.OWNER).write_text(json.dumps({**owner, "pid": gone.pid}))
    save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_lock_that_is_a_link_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(hope.CannotWrite, match="cannot be locked"):
        save(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"


class Tied(torch.nn.Module):
    """A language model in small, whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.head = torch.nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.embedding(x)
        return self.head(y + self.down(torch.relu(self.up(y))))


def test_a_tied_tensor_is_stored_once_and_stays_tied(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied().eval()
    anatomy = hope.inspect(model, torch.zeros(1, 4, dtype=torch.long))
    folder = hope.save(tmp_path, model, anatomy, [hope.Prune("up", [1, 2])])
    stored = read_arrays(folder, store.read_run(folder).record.weights)
    assert sum(tensor.shape == (50, 8) for tensor in stored.values()) == 1
    small = hope.load(folder, Tied())
    assert torch.equal(small.head.weight, model.head.weight)
    assert small.head.weight is small.embedding.weight
