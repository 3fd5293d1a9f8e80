"""Set-up of logging for the long-running commands: lines for people on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler

from agreement import LogLevel
from protoseal.commands.terminal_escaping import PrintableRecords


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
