"""Escaping of text from other parties before printing, so that it cannot control a terminal or forge a log line.

Reasons, details and names come from the other side of a connection. Unescaped, a line break in them forges a log entry,
and an escape sequence or a change of writing direction hides an entry. Limit: letters that look alike are not escaped.
"""

from __future__ import annotations

import logging


def printable(text: str) -> str:
    r"""Return the text with each unprintable character as its escape: ``\n``, ``\x1b``, ``\u202e``."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def printable_lines(text: str) -> str:
    """Return the text with each line escaped; for this program's own text, such as a traceback."""
    return "\n".join(printable(line) for line in text.split("\n"))


class PrintableRecords(logging.Filter):
    """Logging filter that escapes a record. A traceback keeps its lines, each indented."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the record and return True."""
        record.msg, record.args = printable(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None  # handlers show only its text
        if record.exc_text:
            lines = printable_lines(record.exc_text).split("\n")
            record.exc_text = "\n".join(f"    {line}" for line in lines)
        return True


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
