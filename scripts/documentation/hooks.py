"""Hooks of mkdocs: generated reference, pages from outside ``docs/``, and formulas without scripts.

Nothing of a page is loaded from another host: formulas become MathML when the site is built.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.documentation.configuration import configuration
from scripts.documentation.reference import command_line, errors, python_api
from scripts.image_forms import image_forms

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "deploy" / "samples"
PROJECT = {name: f"project/{name.lower()}" for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")}
"""Files of the root that are pages of the site as well, and where."""
_LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")
_MATH = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.S)
_MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.M)


def samples() -> str:
    """Return every sample file in full."""
    texts = ((path.name, path.read_text(encoding="utf-8")) for path in sorted(SAMPLES.glob("*.toml")))
    return "\n\n".join(f"## {name}\n\n```toml\n{text}```" for name, text in texts)


def decisions() -> str:
    """Return a list of the pages on decisions."""
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    titles = (page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages)
    return "\n".join(f"- [{title}]({page.name})" for title, page in zip(titles, pages, strict=True))


GENERATED: Mapping[str, Callable[[], str]] = {
    "command_line": command_line,
    "configuration": configuration,
    "decisions": decisions,
    "errors": errors,
    "image_forms": image_forms,
    "python_api": python_api,
    "samples": samples,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the root that are pages."""
    for name, page in PROJECT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Fill in what is generated, and lead links to files outside ``docs/`` to their pages."""
    here = page.file.src_uri
    markdown = _MARKER.sub(lambda found: GENERATED[found[1]](), markdown)
    places = {page: name for name, page in PROJECT.items()}
    source = places.get(here, f"docs/{here}")
    return _LINK.sub(lambda found: _link(found, source, here), markdown)


def _link(found: re.Match[str], source: str, here: str) -> str:
    """Return a link as the site has it; the site's own index for the README."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
    anchor = found[2] or ""
    if target in PROJECT:
        place = PROJECT[target]
    elif target == "README.md":
        place = "index.md"
    elif target.startswith("deploy/samples"):
        name = posixpath.basename(target)
        place, anchor = "reference/samples.md", f"#{name.replace('.', '')}" if name.endswith(".toml") else ""
    elif target.startswith("docs/"):
        place = target.removeprefix("docs/")
    else:
        raise ValueError(
            f"{source}: {found[1]} is no page of the site: name the file in code instead of linking to it"
        )
    return f"]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor})"


def on_page_content(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn formulas into MathML."""
    return _MATH.sub(
        lambda found: convert(html.unescape(found[2]), display="block" if found[1] == "div" else "inline"),
        text,
    )
