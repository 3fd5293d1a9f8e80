"""Decoder of text files that people write: UTF-8, with or without a byte order mark; other encodings are named.

Names of files that people see as equal, and that are not, are named too. Limit: a file in an 8-bit encoding whose bytes
happen to be UTF-8 is read as UTF-8.
"""

from __future__ import annotations

import codecs
import os
import unicodedata
from pathlib import Path

from crypto.errors import MalformedError

_WIDE = {"UTF-32": ("utf-32-le", "utf-32-be"), "UTF-16": ("utf-16-le", "utf-16-be")}
"""Encodings with several bytes for each letter, longest first: the mark of UTF-32 begins with that of UTF-16."""


def decode(content: bytes) -> str:
    """Return a text file's content without a byte order mark.

    Raises :class:`MalformedError`, whose message follows a file's name, for UTF-16 and UTF-32, and with the line for a
    byte that is not UTF-8 and for a NUL.
    """
    check_encoding(content)
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line, letter = _line(content, error.start), content[error.start : error.start + 1]
        raise MalformedError(
            f"line {line} has the byte 0x{letter.hex()}, which is not UTF-8 (in Latin-1 it is "
            f"{letter.decode('latin-1')!r}): save the file as UTF-8"
        ) from error
    if "\0" in text:
        raise MalformedError(
            f"line {_line(content, content.index(0))} has a NUL byte, so the file is no text"
        )
    return text


def near_name(path: Path) -> str:
    """Return, for a path that does not exist, a remedy that names an entry which looks like it; empty if there is none.

    Names look equal in another Unicode form (as macOS writes them), in Latin-1 (as old archives do) or in other case.
    """
    missing = next((part for part in (*reversed(path.parents), path) if not os.path.lexists(part)), None)
    if missing is None:
        return ""
    try:
        entries = os.listdir(missing.parent)
    except OSError:
        return ""
    due = _displayed_name(missing.name)
    for entry in sorted(entries):
        if _displayed_name(entry).casefold() == due.casefold():
            differing = (
                "in case"
                if _displayed_name(entry) != due
                else f"in {_form(entry)}, not {_form(missing.name)}"
            )
            return f"; {missing.parent} has {entry!a}, written {differing}: rename it to {missing.name!r}"
    return ""


def _displayed_name(name: str) -> str:
    """Return the name as people see it."""
    content = os.fsencode(name)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return unicodedata.normalize("NFC", text)


def _form(name: str) -> str:
    if not name.isascii() and any("\udc80" <= letter <= "\udcff" for letter in name):
        return "bytes that are not UTF-8"
    return "Unicode form NFC" if unicodedata.is_normalized("NFC", name) else "Unicode form NFD"


def check_encoding(content: bytes) -> None:
    """Raise :class:`MalformedError` for text in UTF-16 or UTF-32, in either byte order, with or without a mark."""
    for name, orders in _WIDE.items():
        for order in orders:
            if _is_text_in(content, order):
                raise MalformedError(f"is text in {name}: save the file as UTF-8")


def _is_text_in(content: bytes, encoding: str) -> bool:
    mark = "\ufeff".encode(encoding)
    if not content.startswith(mark) and b"\0" not in content:  # no line end and no Latin letter
        return False
    try:
        text = content.removeprefix(mark).decode(encoding)
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter.isspace() for letter in text)


def _line(content: bytes, place: int) -> int:
    return content.count(b"\n", 0, place) + 1
