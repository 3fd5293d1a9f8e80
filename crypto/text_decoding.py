"""Decoder of text files that people write: UTF-8, with or without a byte order mark; other encodings are named.

Limit: a file in an 8-bit encoding whose bytes happen to be UTF-8 is read as UTF-8.
"""

from __future__ import annotations

import codecs

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
