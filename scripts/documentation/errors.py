"""Reference of the errors that a user can meet, from the exceptions themselves."""

from __future__ import annotations

import inspect
from types import ModuleType

from crypto import errors as crypto_errors
from privacy import errors as privacy_errors
from scripts.documentation.text import escaped, from_docstring, table
from secure_client import errors as site_errors
from secure_server import errors as coordinator_errors
from secure_server.service.status import STATUS

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
