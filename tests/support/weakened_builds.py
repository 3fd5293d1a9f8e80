"""Weakened builds: the product without one of its checks, to show which attack the check holds off.

A *layer* says what a build lacks. ``"crypto.roster.verify_roster: own not in statements"`` is the function
``verify_roster`` in which this condition never holds; a call that stands there does nothing. A layer without a colon is
an attribute, and the build has a function in its place that accepts everything, or the test's own double.

The expression must stand in the function exactly once, so that no check moves away from its test unnoticed.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import textwrap
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import pytest

_SOURCE = "__weakened_source__"


def weaken(layer: str, monkeypatch: pytest.MonkeyPatch, doubles: Mapping[str, Any] | None = None) -> None:
    """Take one layer away. ``doubles`` maps a layer to what stands in its place: an object, or an expression."""
    place, colon, expression = layer.partition(": ")
    double = (doubles or {}).get(layer)
    if colon:
        _replace(_function(place), expression, double or "None", monkeypatch)
    else:
        monkeypatch.setattr(place, double or (lambda *_args, **_named: None))


def _function(place: str) -> FunctionType:
    found = pkgutil.resolve_name(place)
    function: Any = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    unwrapped: FunctionType = inspect.unwrap(function)
    return unwrapped


def _replace(function: FunctionType, expression: str, double: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchange the function's code, which reaches every module that imported the function by name."""
    # A function that lacks one layer already keeps its changed source, so that it can lack a second one.
    source = getattr(function, _SOURCE, None) or textwrap.dedent(inspect.getsource(function))
    tree = ast.parse(source)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    exchange = _Exchange(expression, double)
    tree = ast.fix_missing_locations(exchange.visit(tree))
    assert exchange.count == 1, f"{expression!r} stands {exchange.count} times in {function.__qualname__}"
    weakened: dict[str, Any] = {}
    text = f"from __future__ import annotations\n{ast.unparse(tree)}"
    code = compile(text, f"<weakened {function.__qualname__}>", "exec")
    exec(code, dict(function.__globals__), weakened)  # noqa: S102 - the product's own source, but for one expression
    monkeypatch.setattr(function, _SOURCE, ast.unparse(tree), raising=False)
    monkeypatch.setattr(function, "__code__", weakened[definition.name].__code__)


class _Exchange(ast.NodeTransformer):
    """Exchange of each expression with a given text, written in any layout, for another."""

    def __init__(self, expression: str, double: str) -> None:
        self._expression = ast.unparse(ast.parse(expression, mode="eval"))
        self._double = ast.parse(double, mode="eval").body
        self.count = 0

    def visit(self, node: ast.AST) -> Any:
        """Return the double for the expression, and other nodes with their parts visited."""
        if isinstance(node, ast.expr) and ast.unparse(node) == self._expression:
            self.count += 1
            return self._double
        return self.generic_visit(node)
