"""Reference of the public Python names, from the modules that list them in ``__all__``."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from scripts.documentation.text import escaped, from_docstring, table

PUBLIC = {
    "agreement": "Agreements, and what registers a method or a protection",
    "agreement.registry.conformance": "Checks for an extension's own tests",
    "agreement.registry.recipe": "How a method trains besides its loss",
    "algorithms.gram_matrix": "Types of a method's weights",
    "algorithms.model_outputs": "What a loss is computed from, and returns",
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
