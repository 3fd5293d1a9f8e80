"""Markdown made from docstrings and help texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_CODE = re.compile(r"(`+[^`]+`+)")
_ACTIVE = re.compile(r"([|<>*_\[\]$])")


def from_docstring(text: str) -> str:
    """Return a docstring as Markdown: cross-references and double backticks become code."""
    return re.sub(r"``([^`]+)``", r"`\1`", _ROLE.sub(r"`\1`", text)).strip()


def escaped(text: str) -> str:
    """Escape every character that Markdown would read, outside of code."""
    parts = _CODE.split(text)
    return "".join(
        part.replace("|", r"\|") if part.startswith("`") else _ACTIVE.sub(r"\\\1", part) for part in parts
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the empty string where there are no rows."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])
