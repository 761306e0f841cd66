"""Every example runs as it stands."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NEEDS = {"sklearn": "demo", "onnxruntime": "onnx"}  # module -> the extra that brings it
ENDS = {
    "torchvision_model": "answers of shape (1, 1000)",
    "calibrate": "on digits that it has not seen",
    "finetune": "loaded again: the same answers",
    "quantise": "loaded again: the same outputs",
    "distil": "distilled 0.",
    "onnx_server": "answers as the compressed model does",
    "deft_task": "to the bit; the new one has a head of its own",
    "register_operator": "fidelity",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module, extra in NEEDS.items():
        if re.search(rf"^(?:import|from) {module}\b", path.read_text(), re.MULTILINE):
            pytest.importorskip(module, reason=f"{path.name} needs the extra {extra!r}")
    if path.stem == "torchvision_model":
        pytest.importorskip("torchvision", reason="the example takes a network of torchvision")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert ENDS[path.stem] in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"


def test_the_example_of_torchvision_needs_no_operator_that_somebody_else_declares() -> None:
    pytest.importorskip("torchvision", reason="the example takes a network of torchvision")
    path = str(FOLDER / "torchvision_model.py")
    script = f"import runpy; runpy.run_path({path!r})['get_model']('squeezenet1_1')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_imports_public_names_only(path: Path) -> None:
    assert not re.search(r"^\s*(?:from hope\b|import hope\.)", path.read_text(), re.MULTILINE)


def test_every_example_is_listed() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert [path.stem for path in EXAMPLES] == sorted(ENDS)
    for path in EXAMPLES:
        assert f"]({path.name})" in listed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the dev extra is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the dev extra is not installed")
    pytest.importorskip("sklearn", reason="the demo extra is not installed")
    pytest.importorskip("matplotlib", reason="the report extra is not installed")
    book = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "outputs are not committed"
    assert f"]({path.name})" in (FOLDER / "README.md").read_text()
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources=where).execute()
    shown = [output for cell in book.cells for output in cell.get("outputs", ())]
    assert [one for one in shown if one.output_type == "error"] == []
    assert any("image/png" in one.get("data", {}) for one in shown)
    assert any("of the original" in one.get("data", {}).get("text/html", "") for one in shown)
    assert list(tmp_path.iterdir()) == []
