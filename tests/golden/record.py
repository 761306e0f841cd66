"""What runs came to before a rebuild, so that they come to the same after it.

    python -m tests.golden.record --out FILE [KEY ...]       record (all cases, or those whose key begins so)
    python -m tests.golden.record --check FILE [KEY ...]     make them again and say what differs

A case is a network and what is done to it: a method's whole trajectory, costs to the bit, hashes of extracted
weights, or a DEFT partition. Bits are those of one machine, one build and one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hope
from tests.support import randomise

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
DATA = Path(os.environ.get("HOPE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
CHECKPOINTS = Path(os.environ.get("HOPE_CHECKPOINTS", DATA))

ZOO = (
    "torchvision/resnet18", "torchvision/mobilenet_v2", "torchvision/mobilenet_v3_small",
    "torchvision/shufflenet_v2_x0_5", "torchvision/squeezenet1_1", "torchvision/googlenet",
    "torchvision/vgg11_bn", "torchvision/mnasnet0_5", "torchvision/regnet_y_400mf",
    "timm/resnet26d", "timm/resnetv2_18", "timm/seresnet18", "timm/res2net50_26w_4s", "timm/ghostnet_050",
    "timm/densenet121", "timm/repvgg_a0", "timm/mobileone_s0", "timm/tinynet_e", "timm/convnext_atto",
    "timm/selecsls42b",
)  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "hope": {"method": "hope"},
    "hope-no-evict": {"method": "hope", "evict": False},
    "hope-sum": {"method": "hope", "merge": "sum"},
    "hope-exact": {"method": "hope", "kernel": "exact"},
    "hope-prunes": {"method": "hope", "merge": None},
    "hope-live": {"method": "hope", "release": "live"},
    "hope-live-no-evict": {"method": "hope", "release": "live", "evict": False},
    "absorb": {"method": "absorb"},
    "absorb-no-evict": {"method": "absorb", "evict": False},
    "absorb-measured": {"method": "absorb", "evict": False, "calibration": True, "refit": False},
    "l1-in": {"method": "l1-in"},
    "l1-joint": {"method": "l1-joint"},
    "bn-scale": {"method": "bn-scale"},
    "random": {"method": "random"},
    "hope-multiple-of-8": {"method": "hope", "multiple_of": 8},
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "deft": {},
    "deft-pair": {"merge": "pair"},
    "deft-plain-40": {"merge": False, "percentile": 40},
    "deft-capacity": {"by": "capacity"},
}
FEW = ("hope", "absorb-no-evict", "l1-in", "bn-scale", "random")
REAL = {
    "resnet20": (tuple(METHODS), tuple(PARTITIONS), 0.3),
    "resnet56": (
        ("hope", "hope-no-evict", "absorb", "absorb-no-evict", "l1-joint", "bn-scale"),
        ("deft",),
        0.4,
    ),
    "resnet50": (("hope", "absorb-no-evict", "l1-joint", "bn-scale", "random"), (), 0.5),
}


def digits() -> nn.Module:
    """The demo's network, trained once and kept."""
    from safetensors.torch import load_file

    from hope.demo import DigitsNet

    net = DigitsNet()
    net.load_state_dict(load_file(HERE / "digits.safetensors"))
    return net.eval()


def real(name: str) -> nn.Module:
    """A trained network, from its checkpoint."""
    from zoo.networks import trained

    key = "keras-resnet50" if name == "resnet50" else f"cifar10-{name}"
    return trained(key, CHECKPOINTS, DATA).eval()


def network(name: str) -> tuple[nn.Module, Any]:
    """A network by its name, and an example."""
    if name == "digits":
        return digits(), torch.zeros(1, 1, 8, 8)
    if name in REAL:
        side = 224 if name == "resnet50" else 32
        return real(name), torch.zeros(1, 3, side, side)
    from zoo.foreign import find

    entry = find(name)
    return randomise(entry.build()), entry.example()


def digest(values: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous()
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            found.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
        else:
            found.update(repr(value).encode())
    return found.hexdigest()[:16]


def weights(model: nn.Module) -> str:
    return digest(part for item in sorted(model.state_dict().items()) for part in item)


def _method(options: dict[str, Any], example: Any) -> hope.methods.Method:
    options = dict(options)
    name = options.pop("method")
    if options.pop("calibration", None):
        generator = torch.Generator().manual_seed(5)
        options["calibration"] = [torch.randn(8, *example.shape[1:], generator=generator)]
    elif name == "absorb":
        options["calibration"] = None  # closed forms only
    made = {"hope": hope.Paper, "absorb": hope.Absorb}.get(name)
    return made(**options) if made is not None else hope.Score(name)


def _encode(model: nn.Module, example: Any, density: float, options: dict[str, Any]) -> Any:
    shared = {name: value for name, value in options.items() if name in ("evict", "multiple_of")}
    own = {name: value for name, value in options.items() if name not in shared}
    method = _method(own, example)
    return hope.encode(model, example, density=density, progress=False, method=method, **shared)


def run(model: nn.Module, example: Any, density: float, options: dict[str, Any]) -> dict[str, Any]:
    """A run in a few numbers."""
    try:
        encoding = _encode(model, example, density, options)
    except hope.InfeasibleBudget as error:
        return {"infeasible": str(error).partition(":")[0]}
    steps = list(encoding.trajectory)[: encoding.steps]
    half = encoding.at(steps=encoding.trajectory.steps_to("steps", encoding.steps // 2))
    return {
        "steps": encoding.steps,
        "actions": digest((s.kind, s.name, tuple(s.neurons)) for s in steps),
        "costs": digest(float(s.cost) for s in steps),
        "releases": digest(int(s.release) for s in steps),
        "cost": sum(float(s.cost) for s in steps),
        "parameters": encoding.size.parameters,
        "macs": encoding.size.macs,
        "weights": weights(encoding.model),
        "half": weights(half),
        "left alone": len(encoding.left_alone),
    }


def split(model: nn.Module, example: Any, options: dict[str, Any]) -> dict[str, Any]:
    """A DEFT partition in a few numbers."""
    part = hope.deft.partition(model, example, progress=False, **{"percentile": 20, **options})
    tunings = {
        sever: hope.deft.prepare(model, part, head=4, sever=sever).model for sever in ("mask", "absorb")
    }
    for tuned in tunings.values():  # the new head is random
        tuned.set_submodule(part.head, nn.Identity())
    return {
        "core": digest(x for name in sorted(part.core) for x in (name, part.core[name])),
        "costs": digest(x for name in sorted(part.costs) for x in (name, part.costs[name])),
        "capacities": digest(x for name in sorted(part.capacities) for x in (name, part.capacities[name])),
        "threshold": part.threshold,
        "merges": len(part.merges),
        "freed": {name: list(freed) for name, freed in sorted(part.freed.items())},
        "bound": part.bounds.cumulative,
        "masked": weights(tunings["mask"]),
        "absorbed": weights(tunings["absorb"]),
    }


def cases() -> Iterator[tuple[str, str, float, dict[str, Any]]]:
    """(network, what, density, options), the networks in turn."""
    plan: dict[str, tuple[tuple[str, ...], tuple[str, ...], float]] = {
        "digits": (tuple(METHODS), tuple(PARTITIONS), 0.3),
        **{name: (FEW, ("deft",) if name == "torchvision/resnet18" else (), 0.6) for name in ZOO},
        **REAL,
    }
    for name, (methods, partitions, density) in plan.items():
        for method in methods:
            yield name, method, density, METHODS[method]
        for partition in partitions:
            yield name, partition, 0.0, PARTITIONS[partition]


def machine() -> dict[str, str]:
    """What bits hang on."""
    model = ""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        model = next(
            (
                line.partition(":")[2].strip()
                for line in info.read_text().splitlines()
                if "model name" in line
            ),
            "",
        )
    return {"torch": torch.__version__, "processor": model or platform.processor()}


def record(keys: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Make the cases whose key begins with one of these, all without any."""
    wanted, at, made = tuple(keys), "", (nn.Module(), None)
    torch.set_num_threads(1)
    for name, what, density, options in cases():
        key = f"{name} {what}"
        if wanted and not key.startswith(wanted):
            continue
        if name != at:
            at, made = name, network(name)
        model, example = made
        yield (
            key,
            split(model, example, options) if what in PARTITIONS else run(model, example, density, options),
        )


def _same(found: Any, wanted: Any) -> bool:
    """Equal; sums up to the order in which they are added up."""
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(found, wanted, rel_tol=1e-12)
    return bool(found == wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("keys", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", type=Path)
    options = parser.parse_args()
    known = {}
    for path in (options.out, options.check):
        if path is not None and path.is_file():
            known = json.loads(path.read_text())["cases"]
    bad = 0
    for key, found in record(options.keys):
        if options.out is not None:
            known[key] = found
            text = json.dumps({"machine": machine(), "cases": known}, indent=1, sort_keys=True)
            options.out.write_text(text + "\n")
            print(key, found.get("steps", found.get("merges", "-")), flush=True)
            continue
        differs = sorted(n for n, value in known.get(key, {}).items() if not _same(found.get(n), value))
        bad += bool(differs) or key not in known
        print(
            f"{key}: {'differs in ' + ', '.join(differs) if differs else 'same' if key in known else 'new'}",
            flush=True,
        )
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main())
