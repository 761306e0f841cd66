"""The wheel holds the package and nothing else, and does what the demo does in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
WHERE = """
import importlib.util, sys, hope
print(hope.__file__)
for name in ("experiments", "zoo", "tests"):
    found = importlib.util.find_spec(name)
    print(found.origin if found else None)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; the source tree is out of its sight."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**known, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the source tree, or taken from what was left there."""
    pytest.importorskip("setuptools", minversion="77", reason="there is no setuptools to build with")
    copy = tmp_path_factory.mktemp("source")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "*.safetensors")
    for folder in ("src", "experiments", "zoo", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=unwanted)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-c", BUILD, out, cwd=copy)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and behind it the packages that it depends on, as they are here."""
    pytest.importorskip("pip", reason="there is no pip to install with")
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    folders = {name.partition("/")[0] for name in names}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"hope"}
    kinds = {".py", ".html", ".css", ".js", ".typed"}
    wanted = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "hope").rglob("*.*")}
    wanted = {name for name in wanted if Path(name).suffix in kinds}
    assert {name for name in names if name.startswith("hope/")} == wanted
    assert "hope/py.typed" in names
    assert {Path(name).suffix for name in wanted if name.startswith("hope/report/")} >= kinds - {".typed"}


def test_only_the_wheel_is_imported(environment: Path, tmp_path: Path) -> None:
    at, *others = run(environment / "bin" / "python", "-c", WHERE, cwd=tmp_path).splitlines()
    assert Path(at).is_relative_to(environment)
    assert not any(str(ROOT) in other for other in others)


def test_the_demo_and_a_report_of_it_run_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the demo extra is not installed")
    command = environment / "bin" / "hope"
    assert run(command, "--version", cwd=tmp_path).startswith("hope ")
    out = run(command, "demo", "--epochs", "1", "--out", tmp_path / "run", cwd=tmp_path)
    assert "the same run at 70% of the neurons" in out
    assert (tmp_path / "run" / "trajectory.json").is_file()
    run(command, "report", tmp_path / "run", "-o", tmp_path / "page.html", cwd=tmp_path)
    assert "</script>" in (tmp_path / "page.html").read_text()
