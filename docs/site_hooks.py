"""What the site has beyond the pages of docs/: the README, the changelog and the examples (see mkdocs.yml).

On the repository's page links lead to files; on the site the same links lead to the pages made of them.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]*)(#[^)\s]*)?\)")
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
}


def site_links(text: str, folder: str) -> str:
    """The links of a page as the site has them.

    Args:
        text: a page of the repository, as Markdown.
        folder: where it lies in the repository, "" for its root.
    """

    def replaced(match: re.Match[str]) -> str:
        path, anchor = posixpath.normpath(posixpath.join(folder, match[1])), match[2] or ""
        if path.startswith("examples/") and path.endswith((".py", ".ipynb")):
            return f"](examples.md#{Path(path).name.lower().replace('.', '')})"
        return f"]({PAGES.get(path, posixpath.relpath(path, 'docs'))}{anchor})"

    return LINK.sub(replaced, text)


def examples() -> str:
    """All examples on one page, each with its first sentence and its code."""
    parts = [(ROOT / "examples" / "README.md").read_text().strip()]
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text().strip()
        told = (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0]
        parts += [f"## {path.name}", told, f"```python\n{code}\n```"]
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        parts.append(f"## {path.name}")
        for cell in json.loads(path.read_text())["cells"]:
            text = "".join(cell["source"])
            parts.append(
                f"```python\n{text}\n```" if cell["cell_type"] == "code" else text.removeprefix("# ")
            )
    return site_links("\n\n".join(parts), "examples") + "\n"


def made() -> dict[str, str]:
    """Pages of the site that are no files of docs/ -> their Markdown."""
    return {
        "index.md": site_links((ROOT / "README.md").read_text(), ""),
        "changelog.md": site_links((ROOT / "CHANGELOG.md").read_text(), ""),
        "security.md": site_links((ROOT / "SECURITY.md").read_text(), ""),
        "examples.md": examples(),
    }


def on_files(files: Any, config: Any) -> Any:
    """mkdocs calls this when it has looked for files."""
    from mkdocs.structure.files import File

    for name, text in made().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """mkdocs calls this with each page: what is folded is Markdown, too."""
    text = markdown if page.file.src_uri in made() else site_links(markdown, "docs")
    return text.replace("<details>", '<details markdown="1">')
