"""Text from the other side cannot forge a line of a log, nor act on the terminal that shows it."""

from __future__ import annotations

import io
import logging

import click
import pytest

from agreement import LogLevel
from protoseal.commands.terminal_output import one_line_errors, printable, start_log
from secure_client.errors import RunStopped

HOSTILE = "done\n2026-01-01 INFO forged: all is well\x1b[2K\x1b]0;title\x07\r\x9b31m\u2028\u202egnorw\u200b\x7f\ud800é"


def test_only_what_is_printable_is_left() -> None:
    assert printable(HOSTILE).isprintable()
    assert printable("naïve é 漢字 'quoted' \\n") == "naïve é 漢字 'quoted' \\n"
    assert printable("a\nb\x1b\u202e") == "a\\nb\\x1b\\u202e"


def _raised() -> RunStopped:
    try:
        raise RunStopped(HOSTILE)
    except RunStopped as error:
        return error


@pytest.mark.parametrize("terminal", [False, True])
def test_a_log_has_one_line_for_each_message(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler of commands, for files and for terminals, writes one line a message and indents tracebacks."""
    stream, logger = io.StringIO(), logging.getLogger("protoseal.site")
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", stream)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    start_log(LogLevel.INFO)
    logger.warning("the coordinator stopped the run: %s", HOSTILE)
    logger.error("failed", exc_info=_raised())
    shown = stream.getvalue()
    assert "forged" in shown
    assert not any(line.startswith("2026-01-01") for line in shown.split("\n"))
    assert all(each.isprintable() or each == "\n" for each in shown.replace("\x1b[", "") if not terminal)
    assert "\x1b[2K" not in shown
    assert "\x1b]0;" not in shown


def test_an_error_of_the_other_side_is_one_printable_line() -> None:
    @one_line_errors
    def command() -> None:
        raise RunStopped(HOSTILE)

    with pytest.raises(click.ClickException) as raised:
        command()
    assert raised.value.message.isprintable()
