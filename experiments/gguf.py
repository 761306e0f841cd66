"""Which uniform models llama.cpp reads: `python -m experiments.gguf LLAMA_CPP --tokenizer FOLDER`.

Small models with random weights, one of each family, as they are, with fewer MLP neurons and with fewer
heads: saved by transformers, converted by llama.cpp's own script, and their logits compared. Needs
llama.cpp's sources, for the script, and a Python that has torch, transformers and llama-cpp-python, and
nothing of ours.

`python -m experiments.gguf --uneven --tokenizer FOLDER --texts DATA` tries what `hope.export_gguf` writes
(`experiments/uneven_gguf.py`). It needs a Python that has xllamacpp, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hope
from experiments import readme, uneven_gguf
from experiments.command import RESULTS as FOLDER
from experiments.command import call
from hope._util.operators import declare_missing_operators
from hope.bench.results import check_out, versions, write_results
from hope.errors import HopeError, MissingData, first_line

RESULTS = FOLDER / "gguf.json"
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "intermediate_size": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": SIZES,
    "Mistral": SIZES,
    "Qwen2": SIZES,
    "Qwen3": {**SIZES, "head_dim": 16},
    "Olmo2": SIZES,
    "Phi3": SIZES,
    "GPTNeoX": {**SIZES, "rotary_pct": 0.25},
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_ctx": 128},
    "Mixtral": {**SIZES, **EXPERTS, "num_local_experts": 4},
    "Qwen3Moe": {
        **SIZES,
        **EXPERTS,
        "num_experts": 4,
        "moe_intermediate_size": 64,
        "head_dim": 16,
        "norm_topk_prob": True,
    },
}
KINDS = {"as it is": "", "MLP neurons": "att", "heads": "mlp"}  # and what the modules that stay are called
KEPT = 0.7  # of the neurons
TOKENS = 24
CLOSE = 1e-3  # of the largest logit


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.gguf",
        description="Convert uniform models to GGUF, load them with llama.cpp, and compare logits.",
        epilog="example: python -m experiments.gguf llama.cpp/ --tokenizer models/smollm2-135m",
    )
    top.add_argument("sources", nargs="?", metavar="LLAMA_CPP", help="folder with convert_hf_to_gguf.py")
    top.add_argument(
        "--tokenizer", metavar="FOLDER", help="any model's, with a tokenizer.json of the kind of GPT-2's"
    )
    top.add_argument(
        "--python",
        metavar="FILE",
        default=sys.executable,
        help="with llama-cpp-python or xllamacpp (default: this one)",
    )
    top.add_argument("--uneven", action="store_true", help="layers that differ, by xllamacpp")
    top.add_argument(
        "--texts", metavar="FOLDER", help="WikiText's: --uneven tries the --tokenizer's model, too"
    )
    top.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="default: all")
    top.add_argument("--out", metavar="FILE", default=str(RESULTS), help="default: the committed results")
    readme.add_arguments(top)
    return top


def run(options: argparse.Namespace) -> None:
    """Try every family."""
    if readme.shown(options, {"gguf": table, "gguf-uneven": uneven}):
        return
    if options.uneven:
        run_uneven(options)
        return
    if options.sources is None or options.tokenizer is None:
        raise MissingData("give the folder of llama.cpp's sources, and --tokenizer a model's folder")
    script, out = Path(options.sources) / "convert_hf_to_gguf.py", Path(options.out)
    if not script.is_file():
        raise MissingData(f"there is no {script}: give the folder of llama.cpp's sources")
    check_out(out)
    results = json.loads(out.read_text()) if out.is_file() else {}
    asked = "import importlib.metadata as m; print(m.version('llama_cpp_python'))"
    reported = subprocess.run([options.python, "-c", asked], capture_output=True, text=True, check=False)
    if reported.returncode:
        raise MissingData(f"{options.python} has no llama-cpp-python: pip install llama-cpp-python there")
    results |= {"versions": {**versions("transformers"), "llama_cpp_python": reported.stdout.strip()}}
    for family in options.families:
        entry = results.setdefault("families", {}).setdefault(family, {})
        for kind, stays in KINDS.items():
            entry[kind] = tried(family, stays, script, Path(options.tokenizer), options.python)
            print(family, kind, entry[kind], flush=True)
            write_results(out, results)


def run_uneven(options: argparse.Namespace) -> None:
    """Try what `hope.export_gguf` writes."""
    if options.tokenizer is None:
        raise MissingData("give --tokenizer a model's folder")
    out = Path(options.out)
    check_out(out)
    results = json.loads(out.read_text()) if out.is_file() else {}
    found = {**versions("transformers", "gguf"), "xllamacpp": uneven_gguf.version(options.python)}
    results["versions of uneven"] = found
    folder = Path(options.tokenizer)
    for family in uneven_gguf.FAMILIES:
        entry = results.setdefault("uneven", {}).setdefault(family, {})
        for kind in uneven_gguf.KINDS:
            entry[kind] = uneven_gguf.tried(family, kind, folder, options.python)
            print(family, kind, entry[kind], flush=True)
            write_results(out, results)
    if options.texts is not None:
        results["served"] = uneven_gguf.model_served(folder, Path(options.texts), options.python)
        write_results(out, results)


def tried(family: str, stays: str, script: Path, tokenizer: Path, python: str) -> dict[str, Any]:
    """What became of one model: how far logits are apart, or what went wrong where."""
    model, vocabulary = built(family, tokenizer)
    ids = torch.randint(2, vocabulary, (40, TOKENS), generator=torch.Generator().manual_seed(0))
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    if stays:
        try:
            model = smaller(model, ids, stays)
        except HopeError as error:
            return {**found, "stays": first_line(error)}
        found["parameters"] = sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        wanted = model(input_ids=ids[:1]).logits[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder, file = Path(scratch, "model"), Path(scratch, "model.gguf")
        model.save_pretrained(folder)  # type: ignore[operator]
        shutil.copy(tokenizer / "tokenizer.json", folder)
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
        line = [python, "-c", CONVERT, str(script), str(folder), "--outfile", str(file), "--outtype", "f32"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            return {**found, "not converted": last(done.stderr)}
        code = [python, "-c", LOAD, str(file), json.dumps(ids[0].tolist()), str(Path(scratch, "said.pt"))]
        done = subprocess.run(code, capture_output=True, text=True, check=False)
        if done.returncode:
            return {**found, "not loaded": last(done.stderr)}
        said: Tensor = torch.load(Path(scratch, "said.pt"), weights_only=True)
    return {**found, "apart": float((said - wanted).abs().max() / wanted.abs().max())}


CONVERT = """
import runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "smollm"  # words are not what is tried
runpy.run_path(sys.argv[0], run_name="__main__")
"""

LOAD = """
import json, sys, torch
from llama_cpp import Llama
tokens = json.loads(sys.argv[2])
model = Llama(sys.argv[1], logits_all=True, n_ctx=64, n_threads=1, flash_attn=False)
model.eval(tokens)
torch.save(torch.from_numpy(model.scores[: len(tokens)].copy()), sys.argv[3])
"""


def built(family: str, tokenizer: Path) -> tuple[nn.Module, int]:
    """A model with random weights, and how many tokens it knows."""
    declare_missing_operators()
    try:
        import transformers
    except ImportError as error:
        raise MissingData("this needs transformers: pip install transformers") from error
    known = transformers.AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    words = {"vocab_size": len(known), "bos_token_id": known.bos_token_id, "eos_token_id": known.eos_token_id}
    config = getattr(transformers, f"{family}Config")(**{**FAMILIES[family], **words})
    make: Any = transformers.AutoModelForCausalLM.from_config
    model: nn.Module = make(config).eval()
    for name, parameter in model.named_parameters():  # biases and norms that tell one channel from another
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 1.0 if "norm" in name and "bias" not in name else 0.0, 0.1)
    return model, len(known)


def smaller(model: nn.Module, ids: Tensor, stays: str) -> nn.Module:
    """With fewer neurons or heads, all layers alike."""
    opened = hope.unstack_experts(model)
    mixture = opened is not model
    encoding = hope.encode(
        opened,
        {"input_ids": ids[:1]},
        **(
            {"density": KEPT} if stays != "mlp" else {"steps": SIZES["num_hidden_layers"]}
        ),  # a group of heads
        uniform=True,
        exclude=[f"*{stays}*"],
        multiple_of=4 if mixture and stays != "mlp" else None,
        method=hope.Absorb(calibration=[{"input_ids": ids}], sensitivity=False, refit=False),
        progress=False,
    )
    return hope.stack_experts(encoding.model) if mixture else encoding.model


def last(reported: str) -> str:
    """The line of what a program said that tells of its error."""
    lines = [line.strip() for line in reported.splitlines() if "error" in line.lower()]
    plain = [line for line in lines if not line.startswith(("raise ", "File ", "except "))]
    loading = [line for line in plain if "error loading model:" in line]  # what follows it tells less
    return (loading[:1] or plain[-1:] or reported.splitlines()[-1:] or [""])[0][:200]


def table() -> str:
    """A row per family."""
    results = json.loads(RESULTS.read_text())
    lines = [f"| family | {' | '.join(KINDS)} |", "|---|" + "---|" * len(KINDS)]
    for family, entry in results["families"].items():
        lines.append(f"| {family} | {' | '.join(_cell(entry[kind]) for kind in KINDS)} |")
    return "\n".join(lines) + "\n"


def uneven() -> str:
    """A row per family whose layers may differ."""
    return uneven_gguf.table(json.loads(RESULTS.read_text()))


def _cell(found: dict[str, Any]) -> str:
    if "apart" in found:
        return "same logits" if found["apart"] < CLOSE else f"loads, other logits ({found['apart']:.2g})"
    if "stays" in found:
        return "kept"
    return next(f"{how}: {_short(found[how])}" for how in ("not converted", "not loaded") if how in found)


def _short(error: str) -> str:
    return f"`{error.rpartition('check_tensor_dims: ')[2].partition(';')[0]}`"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
