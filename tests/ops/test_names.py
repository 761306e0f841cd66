"""Names of heads and of norms are known in `hope.ops` alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hope
from hope.ops.attention import CONFIG_HEADS, HEAD_WIDTH, HEADS, STREAM_WIDTH, WIDTHS

SOURCE = Path(hope.__file__).parent
NAMES = {*HEADS, *CONFIG_HEADS, *WIDTHS, HEAD_WIDTH, STREAM_WIDTH, "normalized_shape"}
NAMES -= {"heads"}  # a word, too
NORM = re.compile(r"(layer|rms|group|instance)_?norm", re.IGNORECASE)
ELSEWHERE = {
    ("trace/adapt.py", "normalized_shape"),  # an argument of torch's own operators
    ("rewrite/gguf_layers.py", "rms_norm_eps"),  # a key of the configurations of transformers
    ("rewrite/gguf_file.py", "add_layer_norm_rms_eps"),  # a method of the package gguf
}


def names(tree: ast.AST) -> set[str]:
    """What code reads by name: attributes, strings of one word, and keywords."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
    return found


def test_attributes_strings_and_keywords_are_names() -> None:
    tree = ast.parse("getattr(config, 'head_dim').num_heads(hidden_size=1)")
    assert {"head_dim", "num_heads", "hidden_size"} <= names(tree)
    assert NORM.search("input_layernorm")


def test_no_other_package_names_heads_or_norms() -> None:
    found = {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        if SOURCE / "ops" not in path.parents
        for name in names(ast.parse(path.read_text()))
        if name in NAMES or NORM.search(name)
    }
    assert found == ELSEWHERE
