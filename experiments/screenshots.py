"""Take the pictures of the page in docs/: `python -m experiments.screenshots --data FOLDER`.

ResNet-56 is encoded by three methods, looked at along each run, measured on CIFAR-10 and photographed in
chromium. Runs are kept in `--runs`, so that a second call only takes pictures. Other widths and the dark page
are written there, too, to be looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from playwright.sync_api import Browser, sync_playwright

import hope
from experiments.data import cifar10
from hope.bench.accuracy import accuracy
from hope.report.accuracies import read_accuracies
from hope.report.page import write_page
from hope.schedule.budget import Budget
from hope.storage.run import PLAN, read_run
from zoo.networks import CHECKPOINTS, trained

HERE = Path(__file__).resolve().parents[1] / "docs"
METHODS = ("absorb", "paper", "l1-in")
LEAST, BUDGET = 0.35, 0.5  # of the parameters
LOOKS, SIZES = 8, (0.8, 0.6, 0.5, 0.4)  # along a run, and at sizes that are compared
IMAGES = 1000
SCORES = "accuracy.json"
WIDE, PHONE = (1400, 1000), (390, 844)


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.screenshots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = os.environ.get("HOPE_DATA", "data")
    top.add_argument("--data", metavar="FOLDER", default=data, help="checkpoints and images (HOPE_DATA)")
    top.add_argument("--runs", metavar="FOLDER", help="where runs are kept (default: nowhere)")
    names = list(CHECKPOINTS)
    top.add_argument("--network", default="cifar10-resnet56", choices=names, help="default: %(default)s")
    return top


def main() -> None:
    """Make what is missing, and take the pictures."""
    options = parser().parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = Path(options.runs or spare)
        encode(options.network, Path(options.data), folder)
        pages = write(folder)
        with sync_playwright() as playwright:
            found = shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
            for name, page in pages.items():
                shoot(browser, page, HERE / f"{name}.png")
                for scheme in ("light", "dark"):
                    for size in (WIDE, PHONE):
                        target = folder / f"{name}-{size[0]}-{scheme}.png"
                        shoot(browser, page, target, size, scheme, whole=True)
            browser.close()


def encode(network: str, data: Path, folder: Path) -> None:
    """The runs that are not there yet, each with its fidelities and accuracies."""
    missing = [name for name in METHODS if not (folder / name / PLAN).is_file()]
    if not missing:
        return
    model, images = trained(network, data), cifar10(data, IMAGES)
    for name in missing:
        encoding = hope.encode(model, torch.zeros(1, 3, 32, 32), method=name, params=LEAST)
        encoding = encoding.truncated(Budget("params", BUDGET))
        looks = {k for k, _ in encoding.fidelities(LOOKS)}
        looks |= {encoding.trajectory.steps_to("params", size) for size in SIZES}
        measured = {}
        for k in sorted(looks):
            encoding.fidelity_after(k)
            measured[k] = accuracy(encoding.at(steps=k), images.images, images.labels)
        source = {
            "model": f"networks.py:{network.removeprefix('cifar10-')}",
            "weights": f"{network}.safetensors",
            "input": "1x3x32x32",
        }
        encoding.save(folder / name, source=source)
        (folder / name / SCORES).write_text(json.dumps(measured))


def write(folder: Path) -> dict[str, Path]:
    """The pages: of one run, and of all."""
    runs = [read_run(folder / name) for name in METHODS]
    scores = [read_accuracies(run.folder / SCORES, len(run.trajectory)) for run in runs]
    return {
        "report": write_page(runs[:1], folder / "report.html", accuracies=scores[:1]),
        "report-compare": write_page(runs, folder / "report-compare.html", accuracies=scores),
    }


def shoot(
    browser: Browser,
    page: Path,
    target: Path,
    size: tuple[int, int] = WIDE,
    scheme: str = "light",
    *,
    whole: bool = False,
) -> None:
    """One picture of a page."""
    view = browser.new_page(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    view.goto(page.resolve().as_uri())
    view.wait_for_timeout(300)
    view.screenshot(path=target, full_page=whole)
    view.close()


if __name__ == "__main__":
    main()
