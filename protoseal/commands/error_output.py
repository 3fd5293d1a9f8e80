"""Output of errors that a user can act on: one line and an exit code."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import click

from agreement.errors import UserError
from crypto.errors import CryptoError
from privacy.errors import PrivacyError
from protoseal.commands.terminal_escaping import printable, printable_lines
from secure_client.errors import SiteError
from secure_server.errors import CoordinatorError

P = ParamSpec("P")
R = TypeVar("R")

SITE_EXTRA = frozenset(
    {
        *("dp_accounting", "jinja2", "matplotlib", "opacus", "PIL"),
        *("safetensors", "sklearn", "torch", "torchvision"),
    }
)
"""Modules of the distributions that pyproject.toml lists as the extra ``site``."""


def one_line_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command's expected failures end in one line with the remedy. Other failures keep their traceback."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserError as error:  # on this side's own files; may have several lines
            raise click.ClickException(printable_lines(str(error))) from error
        except (CryptoError, PrivacyError, SiteError, CoordinatorError) as error:
            raise click.ClickException(printable(str(error))) from error
        except sqlite3.Error as error:
            raise click.ClickException(
                f"the state cannot be stored ({error}): free disk space or correct the folder's permissions"
            ) from error
        except OSError as error:
            raise click.ClickException(_system_error_text(error)) from error
        except ModuleNotFoundError as error:
            if error.name and error.name.partition(".")[0] in SITE_EXTRA:
                raise click.ClickException(
                    f"this command needs the package {error.name}: run pip install 'protoseal[site]'"
                ) from error
            raise

    return wrapped


def _system_error_text(error: OSError) -> str:
    """Return the file and the reason of an operating system's error (a full disk, an unwritable folder)."""
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}"
