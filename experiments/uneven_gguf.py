"""What llama.cpp computes of models whose layers differ, as `hope.export_gguf` writes them.

llama.cpp runs through the package xllamacpp, whose server says the probability of a token that it is forced
to say: a request for each place. Small models with random weights of the families that can be written, and
one real model: perplexity, and tokens per second.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hope
from experiments.language import texts
from hope._util.operators import declare_missing_operators
from hope.errors import HopeError, MissingData, first_line
from hope.geometry.rounding import grid_of, nearest, significant
from hope.rewrite.gguf_blocks import BLOCK
from hope.rewrite.gguf_file import write_gguf
from hope.rewrite.packed_onnx import Grid

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Llama with biases": {"attention_bias": True, "mlp_bias": True},
    "Qwen2": {},
}
PRUNED = (
    hope.Prune("model.layers.0.self_attn.q_proj", [1]),
    hope.Prune("model.layers.1.mlp.gate_proj", range(5)),
    hope.Prune("model.layers.3.mlp.gate_proj", range(9)),
)
CONSTANT = [0.3 * (-1) ** k for k in range(SIZES["hidden_size"])]
EVICTED = (
    hope.Evict("model.layers.0#1", CONSTANT),
    hope.Evict("model.layers.1#2", CONSTANT),
    hope.Evict("model.layers.2#1"),
    hope.Evict("model.layers.2#2", CONSTANT),
)
ABSORBED = 0.7  # of the parameters of the layers
KINDS = ("as it is", "other widths", "evicted branches", "absorbed")
TOKENS, LOUDER = 24, 8.0  # attention has a say in weights that are so much larger
PARAMS = 0.85  # of the real model's parameters
CALIBRATION, WINDOWS, LENGTH = 16, 2, 128  # windows, and tokens of one
SPOKEN, ROUNDS = 32, 3  # tokens that are generated, and how often
CLOSE = 1e-3  # nats
FORCED = 1e4  # added to a token's logit

ASK = """
import json, sys, xllamacpp
file, ask, out = sys.argv[1:]
asked = json.loads(open(ask).read())
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = file, 1024, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup, params.verbosity = False, 0
params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + asked["cache"])
if asked["cache"] == "F32":  # flash attention rounds to half precision
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)

def complete(prompt, **more):
    given = {"prompt": prompt, "n_predict": 1, "temperature": 0.0, "cache_prompt": True, **more}
    return server.handle_completions(given)

def said(prompt, token):
    answer = complete(prompt, n_probs=1, logit_bias=[[token, asked["forced"]]])
    first = answer["choices"][0]["logprobs"]["content"][0]
    assert first["id"] == token
    return first["logprob"]

found = {}
if "last" in asked:
    answer = complete(asked["last"], n_probs=asked["vocabulary"])
    most = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    found["last"] = [[one["id"], one["logprob"]] for one in most]
if "rows" in asked:
    found["rows"] = [[said(row[:k], row[k]) for k in range(1, len(row))] for row in asked["rows"]]
if "speed" in asked:
    row, tokens = asked["speed"]
    found["speed"] = complete(row, n_predict=tokens, cache_prompt=False, ignore_eos=True)["timings"]
with open(out, "w") as file:
    json.dump(found, file)
"""


def version(python: str) -> str:
    """Of the package that llama.cpp comes in."""
    asked = "import importlib.metadata as m; print(m.version('xllamacpp'))"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingData(f"{python} has no xllamacpp: pip install xllamacpp there")
    return done.stdout.strip()


def answered(file: Path, python: str, **asked: Any) -> dict[str, Any]:
    """What llama.cpp computes of a file."""
    with tempfile.TemporaryDirectory() as scratch:
        ask, out = Path(scratch, "ask.json"), Path(scratch, "said.json")
        ask.write_text(json.dumps({"cache": "F16", "forced": FORCED, **asked}))
        line = [python, "-c", ASK, str(file), str(ask), str(out)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode or not out.is_file():
            wrong = [one for one in done.stderr.splitlines() if "error" in one.lower()]
            raise HopeError((wrong or ["llama.cpp stopped"])[0].strip()[:200])
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def tried(family: str, kind: str, tokenizer: Path, python: str) -> dict[str, Any]:
    """What became of one model: how far the log-probabilities of the next token are apart."""
    model, vocabulary = built(family, tokenizer)
    ids = torch.randint(2, vocabulary, (40, TOKENS), generator=torch.Generator().manual_seed(0))
    small = changed(model, kind, ids)
    with torch.no_grad():
        wanted: Tensor = small(input_ids=ids[:1]).logits[0, -1].double().log_softmax(dim=-1)
    with tempfile.TemporaryDirectory() as scratch:
        written = hope.export_gguf(small, Path(scratch, "small.gguf"), tokenizer=tokenizer)
        found: dict[str, Any] = {"architecture": written.architecture}
        try:
            said = answered(written.path, python, last=ids[0].tolist(), vocabulary=vocabulary, cache="F32")[
                "last"
            ]
        except HopeError as error:
            return {**found, "not loaded": first_line(error)}
    heard = torch.full_like(wanted, -math.inf)
    for token, chance in said:
        heard[token] = chance
    return {**found, "apart": float((heard - wanted).abs().max())}


def built(family: str, tokenizer: Path) -> tuple[nn.Module, int]:
    """A model with random weights, and how many tokens it knows."""
    declare_missing_operators()
    import transformers

    known = transformers.AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    name = family.split()[0]
    config = getattr(transformers, f"{name}Config")(**SIZES, **FAMILIES[family], vocab_size=len(known))
    model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
        elif "layers" in name:
            parameter.data *= LOUDER
    return model, len(known)


def changed(model: nn.Module, kind: str, ids: Tensor) -> nn.Module:
    """The model, of one kind."""
    if kind == "as it is":
        return model
    if kind == "absorbed":
        method = hope.Absorb(calibration=[{"input_ids": ids}], sensitivity=False, refit=False)
        return hope.encode(model, {"input_ids": ids[:1]}, density=ABSORBED, method=method).model
    anatomy = hope.inspect(model, {"input_ids": ids[:1]})
    return hope.cut(model, anatomy, PRUNED if kind == "other widths" else EVICTED)


def model_served(folder: Path, data: Path, python: str) -> dict[str, Any]:
    """A real model and a smaller one in llama.cpp."""
    model, tokenizer = texts.loaded(folder.name, folder.parent)
    batches = texts.windows(tokenizer, data / "wikitext2-valid.txt", CALIBRATION)
    method = hope.Absorb(calibration=batches, sensitivity=False, refit=False)
    encoding = hope.encode(model, batches[0], params=PARAMS, multiple_of=BLOCK, method=method)
    print(encoding.size, flush=True)
    rows = texts.tokens(tokenizer, data / "wikitext2-test.txt")[: WINDOWS * LENGTH].view(WINDOWS, LENGTH)
    found: dict[str, Any] = {"model": folder.name, "params": PARAMS, "places": WINDOWS * (LENGTH - 1)}
    with tempfile.TemporaryDirectory() as scratch:
        files: dict[str, Path] = {}
        for name, network in {"original": model, "small": encoding.model}.items():
            size = sum(parameter.numel() for parameter in network.parameters())
            loss = statistics.mean(texts.losses(network, rows))
            for parameter in network.parameters():  # not the frequencies of rotary embeddings
                parameter.data = parameter.data.half()
            for kind in ("F16", "Q8_0"):
                file = files[f"{name} {kind}"] = Path(scratch, f"{name}-{kind}.gguf")
                written = write_gguf(network, rounded(network) if kind != "F16" else {}, file, folder)
                found[f"{name} {kind}"] = {
                    "architecture": written.architecture,
                    "bytes": file.stat().st_size,
                    "loss of ours": loss,
                    "parameters": size,
                }
        for name, file in files.items():
            said = answered(file, python, rows=rows.tolist())["rows"]
            found[name]["loss"] = -statistics.mean(one for row in said for one in row)
        for _ in range(ROUNDS):  # in turns, so that what else the machine does meets all alike
            for name, file in files.items():
                timings = answered(file, python, speed=[rows.flatten().tolist(), SPOKEN])["speed"]
                for key in ("prompt_per_second", "predicted_per_second"):
                    found[name].setdefault(key, []).append(timings[key])
    return found


def rounded(model: nn.Module) -> dict[str, Grid]:
    """All matrices in blocks of Q8_0, to nearest, as llama.cpp rounds them."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and parameter.shape[1] % BLOCK == 0:
            weight = parameter.detach().float()
            scale = significant(weight.reshape(len(weight), -1, BLOCK).abs().amax(-1) / 127)
            exact = grid_of(nearest(weight, scale, 8, BLOCK), 8, BLOCK)
            if exact is not None:
                found[name] = Grid(*exact)
    return found


def table(results: dict[str, Any]) -> str:
    """A row per family."""
    lines = [f"| family | {' | '.join(KINDS)} |", "|---|" + "---|" * len(KINDS)]
    for family, entry in results["uneven"].items():
        lines.append(f"| {family} | {' | '.join(_cell(entry[kind]) for kind in KINDS)} |")
    return "\n".join(lines) + "\n"


def _cell(found: dict[str, Any]) -> str:
    if "apart" not in found:
        return f"not loaded: `{found['not loaded']}`"
    same = "same" if found["apart"] < CLOSE else "other"
    return f"{found['architecture']}: {same} ({found['apart']:.0e})"


def model_table(results: dict[str, Any]) -> str:
    """A row per file."""
    served = results["served"]
    heads = (
        "file",
        "parameters",
        "MB",
        "perplexity in llama.cpp",
        "in torch, float32",
        "tokens/s read",
        "written",
    )
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for name in (key for key in served if key.startswith(("original", "small"))):
        one = served[name]
        speeds = [_speed(one[key]) for key in ("prompt_per_second", "predicted_per_second")]
        cells = [
            f"{name} ({one['architecture']})",
            f"{one['parameters'] / 1e6:.1f} M",
            f"{one['bytes'] / 1e6:.0f}",
            f"{math.exp(one['loss']):.2f}",
            f"{math.exp(one['loss of ours']):.2f}",
            *speeds,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _speed(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.0f} ({min(found):.0f} to {max(found):.0f})"
