"""Check that the product's code and its settings stay below ceilings, so that growth is a decision.

    python scripts/size.py

A change that needs more room raises a ceiling below, by a stated number and with the reason in its commit message.
Code lines have neither only blanks, nor only a comment, nor a docstring. Settings are the fields of configuration
sections, of which each one is a choice for every user and a branch in every test.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "agreement",
    "algorithms",
    "crypto",
    "privacy",
    "proto",
    "protoseal",
    "protoseal_files",
    "secure_client",
    "secure_server",
)
"""Packages that are installed."""
CODE_LINES = 42_800
SETTINGS = 212
"""Ceilings: what there was when they were set, and 1 % more."""
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
}
_BASE = "Section"


def sources() -> Iterator[Path]:
    """Yield the product's files, but for generated stubs."""
    for package in PACKAGES:
        yield from (path for path in sorted((ROOT / package).rglob("*.py")) if "_pb2" not in path.name)


def code_lines(source: str) -> int:
    """Return the number of lines with code: neither blank, nor a comment alone, nor part of a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE and token.string:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # A string that is a statement documents what is above it, be it a function or a field.
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count_settings(trees: list[ast.Module]) -> int:
    """Return the number of fields of all sections of configuration files; constants are none."""
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}

    def is_section(name: str) -> bool:
        bases = (
            [ast.unparse(base).partition("[")[0] for base in classes[name].bases] if name in classes else []
        )
        return any(base == _BASE or is_section(base) for base in bases)

    return sum(
        isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation)
        for name, node in classes.items()
        if is_section(name)
        for field in node.body
    )


def main() -> int:
    """Print both sizes beside their ceilings; return 1 if either is too large."""
    texts = [path.read_text(encoding="utf-8") for path in sources()]
    found = {
        "lines of code": (sum(map(code_lines, texts)), CODE_LINES),
        "settings": (count_settings([ast.parse(text) for text in texts]), SETTINGS),
    }
    for name, (size, ceiling) in found.items():
        sys.stdout.write(f"{size} {name}, at most {ceiling}\n")
    return int(any(size > ceiling for size, ceiling in found.values()))


if __name__ == "__main__":
    sys.exit(main())
