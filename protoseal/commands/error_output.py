"""Output of errors and warnings that a user can act on: one line each, and an error's exit code."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from protoseal.commands.terminal_escaping import printable, printable_lines

if TYPE_CHECKING:
    from secure_client.diagnosis.diagnoses import Diagnosis

_log = logging.getLogger("protoseal")
P = ParamSpec("P")
R = TypeVar("R")

SITE_EXTRA = frozenset(
    {
        *("dp_accounting", "jinja2", "matplotlib", "opacus", "PIL"),
        *("safetensors", "scipy", "sklearn", "torch", "torchvision"),
    }
)
"""Modules of the distributions that pyproject.toml lists as the extra ``site``."""


def one_line_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command's expected failures end in one line with the remedy, and with a traceback in the log at debug.

    Other failures keep their traceback.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            text = _remedy(error)
            if text is None:
                raise
            _log.debug("%s", text, exc_info=True)
            raise click.ClickException(text) from error

    return wrapped


def _remedy(error: Exception) -> str | None:
    """Return the text of an expected failure; None for any other."""
    # Imported once a command has failed: they load NumPy and gRPC, for which `--help` need not wait.
    from agreement.errors import UserError
    from crypto.errors import CryptoError
    from privacy.errors import PrivacyError
    from secure_client.errors import SiteError
    from secure_server.errors import CoordinatorError

    if isinstance(error, UserError):  # on this side's own files; may have several lines
        return printable_lines(str(error))
    if isinstance(error, (CryptoError, PrivacyError, SiteError, CoordinatorError)):
        return printable(str(error))
    if isinstance(error, sqlite3.Error):
        return f"the state cannot be stored ({error}){_state_remedy(error)}"
    if isinstance(error, OSError):
        return _system_error_text(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in SITE_EXTRA:
        return f"this command needs the package {error.name}: run pip install 'protoseal[site]'"
    return None


def _state_remedy(error: sqlite3.Error) -> str:
    match (getattr(error, "sqlite_errorname", "") or "").split("_")[1:2]:
        case ["FULL"]:
            return ": free disk space"
        case ["READONLY" | "CANTOPEN" | "PERM"]:
            return ": correct the permissions of the folder and its files"
        case ["NOTADB" | "CORRUPT"]:
            return ": the file is damaged"
        case _:
            return ""


def print_warnings(diagnoses: Iterable[Diagnosis]) -> None:
    """Print a line on standard error for each sign of wrong settings in a result."""
    for each in diagnoses:
        click.echo(printable(f"Warning: {each.text}"), err=True)


def _system_error_text(error: OSError) -> str:
    """Return the file and the reason of an operating system's error (a full disk, an unwritable folder)."""
    place = f"{error.filename}: " if error.filename else ""
    if place and isinstance(error, FileExistsError | NotADirectoryError):
        path = Path(os.fsdecode(error.filename))
        for part in (path, *path.parents):
            if part.is_file():
                return f"{place}{part} is a file, and a folder is needed in its place: name another folder"
    return f"{place}{error.strerror or error}"
