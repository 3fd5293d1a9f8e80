"""References in docstrings (``:class:``, ``:func:`` and others) name an object or a module that exists.

The code is read, not imported, except for other projects' modules. The limit: names beside roles are not checked.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
FOLDERS = tuple("proto" if name == "protoseal_wire" else name for name in LINTER["root_packages"])
ROLES = ("attr", "class", "const", "data", "exc", "func", "meth", "mod", "obj")
_ROLE = re.compile(rf":({'|'.join(ROLES)}):`(?:[^`<]*<)?[~!]?([^`<>]+)>?`")
_ANY_ROLE = re.compile(r":(?:py:)?(\w+):`")


@dataclass
class Scope:
    """Names of a module or a class: what each stands for, if it is a scope itself or an import; else None."""

    names: dict[str, Scope | str | None] = field(default_factory=dict)
    bases: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reference:
    """A role's target, and the classes and the module of the docstring that has it, innermost first."""

    target: str
    scopes: tuple[Scope, ...]
    place: str


def scope_of(body: list[ast.stmt]) -> Scope:
    scope = Scope()
    for statement in _statements(body):
        match statement:
            case ast.ClassDef(name=name):
                scope.names[name] = below = scope_of(statement.body)
                below.bases = [ast.unparse(base).partition("[")[0] for base in statement.bases]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                scope.names[name] = None
                for each in ast.walk(statement):
                    match each:
                        case ast.Attribute(value=ast.Name("self"), attr=attribute, ctx=ast.Store()):
                            scope.names.setdefault(attribute, None)
            case ast.Import(names):
                scope.names |= {each.asname or each.name.partition(".")[0]: each.name for each in names}
            case ast.ImportFrom(module=str(module), names=names):
                scope.names |= {each.asname or each.name: f"{module}.{each.name}" for each in names}
            case ast.Assign(targets):
                scope.names |= {each.id: None for target in targets for each in _names(target)}
            case ast.AnnAssign(target):
                scope.names |= {each.id: None for each in _names(target)}
    return scope


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, also those under a condition such as ``TYPE_CHECKING``."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With | ast.For):
            yield from _statements([*statement.body, *getattr(statement, "orelse", [])])
            for handler in getattr(statement, "handlers", []):
                yield from _statements(handler.body)


def _names(target: ast.expr) -> Iterator[ast.Name]:
    return (each for each in ast.walk(target) if isinstance(each, ast.Name))


def files() -> dict[str, Path]:
    """Return every module of the product and its scripts, by name."""
    found = {}
    for package in FOLDERS:
        top = ROOT / package if package == "proto" else ROOT
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.stem.endswith(("_pb2", "_pb2_grpc")):
                parts = path.relative_to(top).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


FILES = files()


@cache
def module(name: str) -> Scope:
    return scope_of(ast.parse(FILES[name].read_text(encoding="utf-8")).body)


def is_package(name: str) -> bool:
    return name in FILES or any(each.startswith(f"{name}.") for each in FILES)


def exists(dotted: str) -> bool:
    """Return whether a dotted name is a module, or an object in one."""
    if is_package(dotted):
        return True
    parts = dotted.split(".")
    for at in range(len(parts) - 1, 0, -1):
        if (name := ".".join(parts[:at])) in FILES:
            return has(module(name), parts[at:])
    return not is_package(parts[0]) and _is_foreign(parts)


def has(scope: Scope, parts: list[str]) -> bool:
    """Return whether a scope, or a base class, has the member that ``parts`` name one after the other."""
    if parts[0] in scope.names:
        found = scope.names[parts[0]]
        if isinstance(found, str):
            return exists(".".join((found, *parts[1:])))
        return len(parts) == 1 or (found is not None and has(found, parts[1:]))
    return any(_base_has(base, scope, parts) for base in scope.bases)


def _base_has(base: str, scope: Scope, parts: list[str]) -> bool:
    home = next(each for each in map(module, FILES) if _holds(each, scope))
    return has(home, [*base.split("."), *parts])


def _holds(outer: Scope, scope: Scope) -> bool:
    return any(
        each is scope or (isinstance(each, Scope) and _holds(each, scope)) for each in outer.names.values()
    )


def _is_foreign(parts: list[str]) -> bool:
    for at in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:at]))
        except ImportError:
            continue
        for part in parts[at:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def docstrings(body: list[ast.stmt], scopes: tuple[Scope, ...]) -> Iterator[tuple[str, tuple[Scope, ...]]]:
    """Yield every string that stands alone, with the classes around it."""
    for statement in _statements(body):
        match statement:
            case ast.Expr(ast.Constant(str(text))):
                yield text, scopes
            case ast.ClassDef(name=name, body=below):
                inner = scopes[0].names.get(name)
                yield from docstrings(below, (inner, *scopes) if isinstance(inner, Scope) else scopes)
            case ast.FunctionDef(body=below) | ast.AsyncFunctionDef(body=below):
                yield from docstrings(below, scopes)


def references(name: str, text: str | None = None) -> Iterator[Reference]:
    """Yield every role in the docstrings of a module."""
    tree = ast.parse(text if text is not None else FILES[name].read_text(encoding="utf-8"))
    for docstring, scopes in docstrings(tree.body, (module(name),)):
        assert {each[1] for each in _ANY_ROLE.finditer(docstring)} <= {*ROLES, "math"}, docstring
        for role in _ROLE.finditer(docstring):
            yield Reference(" ".join(role[2].split()), scopes, name)


def resolves(reference: Reference) -> bool:
    parts = reference.target.removesuffix("()").split(".")
    if any(has(scope, parts) for scope in reference.scopes):
        return True
    if hasattr(builtins, parts[0]):
        return _is_foreign(["builtins", *parts])
    return exists(".".join((reference.place, *parts))) or exists(".".join(parts))


@pytest.mark.parametrize("package", FOLDERS)
def test_every_reference_in_a_docstring_resolves(package: str) -> None:
    top = ROOT / package
    wrong = [
        f"{path.relative_to(ROOT)}: {each.target}"
        for name, path in FILES.items()
        if path.is_relative_to(top)
        for each in references(name)
        if not resolves(each)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("role", "found"),
    [
        (":mod:`crypto.ckks.circuit`", True),
        (":mod:`circuit`", False),
        (":class:`~crypto.errors.MalformedError`", True),
        (":class:`a mask <crypto.pairwise.attempt.MaskKeys>`", True),
        (":class:`crypto.errors.FloodedError`", False),
        (":meth:`ResultDecoding.parts`", False),
        (":class:`Circuit`", True),
        (":meth:`Circuit.nothing`", False),
        (":class:`ValueError`", True),
        (":func:`math.sqrt`", True),
        (":func:`math.nothing`", False),
    ],
)
def test_the_check_tells_references_that_resolve_from_others(role: str, found: bool) -> None:
    (reference,) = references("crypto.ckks.circuit", f'"""See {role}."""')
    assert resolves(reference) is found


def test_a_table_of_modules_names_every_module_of_its_package() -> None:
    for package in ("crypto.ckks", "crypto.pairwise"):
        docstring = ast.get_docstring(ast.parse(FILES[package].read_text(encoding="utf-8"))) or ""
        rows = re.findall(r"^    ([a-z_]+(?:, [a-z_]+)*)  ", docstring, re.MULTILINE)
        listed = sorted(name for row in rows for name in row.split(", "))
        below = f"{package}."
        assert listed == sorted(name.removeprefix(below) for name in FILES if name.startswith(below))
