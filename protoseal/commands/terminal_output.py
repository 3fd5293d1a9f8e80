"""Output of commands on a terminal: errors in one line, names without control characters, and logs."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.logging import RichHandler

if TYPE_CHECKING:
    from agreement import LogLevel
    from secure_client.diagnosis.diagnoses import Diagnosis


def printable(text: str) -> str:
    r"""Return the text with each unprintable character as its escape: ``\n``, ``\x1b``, ``\u202e``."""
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def printable_lines(text: str) -> str:
    """Return the text with each line escaped; for this program's own text, such as a traceback."""
    return "\n".join(printable(line) for line in text.split("\n"))


class PrintableRecords(logging.Filter):
    """Logging filter that escapes a record. A traceback keeps its lines, each indented.

    Records quote peers: without the escapes a peer could forge lines of the log, or move a terminal's cursor.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the record and return True."""
        record.msg = printable(record.getMessage())
        record.args = None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None  # handlers show only its text
        if record.exc_text:
            lines = printable_lines(record.exc_text).split("\n")
            # Indented, so that no line of it looks like a record of its own.
            record.exc_text = "\n".join(f"    {line}" for line in lines)
        return True


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def start_log(level: LogLevel) -> None:
    """Log to standard error: formatted on a terminal, one plain line an entry elsewhere (a file, journald)."""
    console = Console(stderr=True)
    handler = (
        RichHandler(console=console, show_path=False) if console.is_terminal else logging.StreamHandler()
    )
    if not console.is_terminal:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(PrintableRecords())
    logging.basicConfig(level=level.value.upper(), handlers=[handler])


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
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            text = _describe_expected(error)
            if text is None:
                raise
            _log.debug("%s", text, exc_info=True)
            raise click.ClickException(text) from error

    return run


def _describe_expected(error: Exception) -> str | None:
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
        return f"the state cannot be stored ({error}){_find_state_remedy(error)}"
    if isinstance(error, OSError):
        return _describe_system_error(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in SITE_EXTRA:
        return f"this command needs the package {error.name}: run pip install 'protoseal[site]'"
    return None


def _find_state_remedy(error: sqlite3.Error) -> str:
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
    for diagnosis in diagnoses:
        click.echo(printable(f"Warning: {diagnosis.text}"), err=True)


def _describe_system_error(error: OSError) -> str:
    """Return the file and the reason of an operating system's error (a full disk, an unwritable folder)."""
    place = f"{error.filename}: " if error.filename else ""
    if place and isinstance(error, FileExistsError | NotADirectoryError):
        path = Path(os.fsdecode(error.filename))
        # Python names the folder that it could not make, not the file in its way.
        for part in (path, *path.parents):
            if part.is_file():
                return f"{place}{part} is a file, and a folder is needed in its place: name another folder"
    return f"{place}{error.strerror or error}"


Facts = dict[str, str | list[str]]


def print_facts(facts: Facts, *, as_json: bool) -> None:
    """Print the facts to standard output, as JSON or as one line for each fact."""
    click.echo(json.dumps(facts, indent=2) if as_json else fact_lines(facts))


def fact_lines(facts: Facts) -> str:
    """Return one aligned line for each fact that is not empty."""
    texts = {name: ", ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    return "\n".join(f"{name.replace('_', ' '):<12} {text}" for name, text in texts.items() if text)
