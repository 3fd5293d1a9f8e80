"""Files of a run, each replaced in one durable step, and the error for one that is missing or damaged."""

from __future__ import annotations

from pathlib import Path

from agreement.errors import UserError
from crypto import durable_files
from crypto.errors import MalformedError
from crypto.text_decoding import decode


class FileError(UserError):
    """File of a run that is missing or invalid. The message is one line that names the file and the remedy."""


def write_text(path: Path, text: str) -> Path:
    """Replace a file in one durable step, making its folder if need be; returns the path."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Replace a file in one durable step, making its folder if need be; returns the path."""
    durable_files.make_folder(path.parent)
    durable_files.write(path, content)
    return path


def read_text(path: Path, remedy: str) -> str:
    """Return a file's text; raises :class:`FileError` that ends in the ``remedy``."""
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    except MalformedError as error:
        raise FileError(f"{path}: {error}") from error


def first_line(error: Exception) -> str:
    """Return an error's message without its further lines."""
    return (str(error).splitlines() or [type(error).__name__])[0]
