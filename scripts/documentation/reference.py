"""Reference pages that are generated from the code: commands, errors and exit codes, and the Python API."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import click

from crypto import errors as crypto_errors
from privacy import errors as privacy_errors
from protoseal.cli import main
from secure_client import errors as site_errors
from secure_server import errors as coordinator_errors
from secure_server.service.servicer import STATUS

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


def command_line() -> str:
    """Return a section for each command, in the order of ``--help``."""
    return "\n\n".join(_sections(main, click.Context(main, info_name="protoseal"), 2))


def _sections(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    path = context.command_path
    if context.parent is not None:
        yield f"{'#' * level} {path}"
        level += 1
    yield _paragraphs(command.help or "")
    if not isinstance(command, click.Group):
        yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```"
        yield _options(command, context)
    yield _paragraphs(command.epilog or "")
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None:
            yield from _sections(below, click.Context(below, info_name=name, parent=context), level)


def _paragraphs(text: str) -> str:
    """Return help text with its paragraphs; those that click prints as they stand become blocks."""
    parts = (_paragraph(part.lstrip(" ")) for part in re.split(r"\n\s*\n", text.strip()))
    return "\n\n".join(parts)


def _paragraph(text: str) -> str:
    if text.startswith("\b"):
        return f"```text\n{text[1:].strip()}\n```"
    return escaped(" ".join(text.split()))


def _options(command: click.Command, context: click.Context) -> str:
    records = [each.get_help_record(context) for each in command.get_params(context) if each.name != "help"]
    rows = ((f"`{record[0]}`".replace("|", r"\|"), escaped(record[1])) for record in records if record)
    return table(("option", "meaning"), rows)


_PARTS: tuple[tuple[str, ModuleType], ...] = (
    ("At a site", site_errors),
    ("At the coordinator", coordinator_errors),
    ("In cryptography", crypto_errors),
    ("In a privacy budget", privacy_errors),
)


def errors() -> str:
    """Return a table of exceptions for each party, with the gRPC status of those that a peer receives."""
    parts = []
    for title, module in _PARTS:
        kinds = [
            each
            for _, each in inspect.getmembers(module, inspect.isclass)
            if each.__module__ == module.__name__
        ]
        rows = [(f"`{each.__name__}`", _summary(each), _status(each)) for each in kinds]
        parts += [f"### {title}", table(("exception", "meaning", "status that the peer receives"), rows)]
    return "\n\n".join(parts)


def _summary(kind: type) -> str:
    return escaped(" ".join(from_docstring(inspect.getdoc(kind) or "").split()))


def _status(kind: type) -> str:
    return f"`{STATUS[kind].name}`" if kind in STATUS else ""


PUBLIC = {
    "agreement": "Agreements, and what registers a method or a protection",
    "agreement.registry.conformance": "Checks for an extension's own tests",
    "agreement.registry.recipe": "How a method trains besides its loss",
    "algorithms.gram_matrix": "Types of a method's weights",
    "algorithms.losses": "What a loss is computed from, and returns",
    "algorithms.prototypes": "Prototypes that a site receives",
    "crypto.errors": "Exceptions that a protection raises",
    "crypto.fixed_point": "Numbers as words of a ring",
    "crypto.keys": "Keys derived from a secret",
    "crypto.pairwise.masks": "Pads from keys",
    "crypto.protection": "Interface of a protection for `PEERS`, and payloads",
    "crypto.sum_protection": "Interface of a protection for `SUMS`",
}
"""Public modules and their headings. Only the names in their ``__all__`` are public."""


def python_api() -> str:
    """Return a table for each public module: its public names and their first paragraphs."""
    parts = []
    for module, title in PUBLIC.items():
        rows = [(f"`{name}`", escaped(meaning(module, name))) for name in exported(module)]
        parts += [f"## {module}", f"{title}.", table(("name", "meaning"), rows)]
    return "\n\n".join(parts)


def exported(module: str) -> tuple[str, ...]:
    """Return ``__all__`` of a module, without importing it; the empty tuple where there is none."""
    for each in _source(module).body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__":
            return tuple(ast.literal_eval(each.value))
    return ()


def meaning(module: str, name: str) -> str:
    """Return the first paragraph of a name's docstring; LookupError for a name without one."""
    for each, below in pairwise([*_source(module).body, ast.Pass()]):
        match each:
            case ast.ImportFrom(module=str(origin), names=names) if name in {
                n.asname or n.name for n in names
            }:
                return meaning(origin, next(n.name for n in names if name in (n.asname, n.name)))
            case ast.ClassDef(name=found) | ast.FunctionDef(name=found) if found == name:
                text = ast.get_docstring(each)
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if (
                found == name
            ):
                text = _string(below)
            case _:
                continue
        if text:
            return " ".join(from_docstring(text.partition("\n\n")[0]).split())
        break
    raise LookupError(f"{module}.{name} is public and has no docstring")


def _string(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Expr(ast.Constant(str(text))):
            return text
    return None


@cache
def _source(module: str) -> ast.Module:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"no module {module}")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
