"""Examples at the end of a command's ``--help``."""

from __future__ import annotations


def example(line: str) -> str:
    """Return an epilog that shows the command line as it stands, without wrapping."""
    return f"\b\nExample:\n  {line}"
