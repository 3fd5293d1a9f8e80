"""Escaping of text from others before it is printed, so that it cannot control a terminal or forge a line of a log.

Reasons, details and names come from the other side of a connection. Shown as they are, a line break forges an entry of
the log, and an escape sequence or a change of writing direction hides one. Limit: letters that look alike are shown.
"""

from __future__ import annotations

import logging


def printable(text: str) -> str:
    r"""Return the text with each unprintable character as its escape: ``\n``, ``\x1b``, ``\u202e``."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def printable_lines(text: str) -> str:
    """Return the same of each line; for text that is this program's own, such as a traceback."""
    return "\n".join(printable(line) for line in text.split("\n"))


class PrintableRecords(logging.Filter):
    """Filter that escapes a log record. A traceback stays in lines, each of them indented."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the record, and let it pass."""
        record.msg, record.args = printable(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None  # its text is all that is shown
        if record.exc_text:
            lines = printable_lines(record.exc_text).split("\n")
            record.exc_text = "\n".join(f"    {line}" for line in lines)
        return True


def _escaped(character: str) -> str:
    # A lone surrogate stands for a byte that is not UTF-8.
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
