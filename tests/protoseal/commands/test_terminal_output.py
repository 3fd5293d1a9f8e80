"""Text that cannot forge a log or act on a terminal, and failures in one line."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from agreement import LogLevel
from agreement.toml_loading import ConfigError
from protoseal.cli import main
from protoseal.commands.terminal_output import one_line_errors, printable, start_log
from protoseal.simulation.config import load_simulation
from secure_client.errors import RunStopped
from tests.support.processes import environment

HOSTILE = "done\n2026-01-01 INFO forged: all is well\x1b[2K\x1b]0;title\x07\r\x9b31m\u2028\u202egnorw\u200b\x7f\ud800é"


def test_printable_escapes_every_other_character() -> None:
    assert printable(HOSTILE).isprintable()
    assert printable("naïve é 漢字 'quoted' \\n") == "naïve é 漢字 'quoted' \\n"
    assert printable("a\nb\x1b\u202e") == "a\\nb\\x1b\\u202e"


def _raised() -> RunStopped:
    try:
        raise RunStopped(HOSTILE)
    except RunStopped as error:
        return error


@pytest.mark.parametrize("terminal", [False, True])
def test_start_log_message_is_one_line(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler of commands, for files and for terminals, writes one line a message and indents tracebacks."""
    stream, logger = io.StringIO(), logging.getLogger("protoseal.site")
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", stream)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    # start_log sets it, and later tests of this process expect pytest's.
    monkeypatch.setattr(root, "level", root.level)
    start_log(LogLevel.INFO)
    logger.warning("the coordinator stopped the run: %s", HOSTILE)
    logger.error("failed", exc_info=_raised())
    shown = stream.getvalue()
    assert "forged" in shown
    assert not any(line.startswith("2026-01-01") for line in shown.split("\n"))
    assert all(each.isprintable() or each == "\n" for each in shown.replace("\x1b[", "") if not terminal)
    assert "\x1b[2K" not in shown
    assert "\x1b]0;" not in shown


def test_one_line_errors_peers_text_is_escaped() -> None:
    @one_line_errors
    def command() -> None:
        raise RunStopped(HOSTILE)

    with pytest.raises(click.ClickException) as raised:
        command()
    assert raised.value.message.isprintable()


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_output_name_that_the_terminal_lacks_is_printed_by_its_bytes(encoding: str, tmp_path: Path) -> None:
    passphrase = tmp_path / "passphrase"
    passphrase.touch(0o600)
    passphrase.write_bytes(b"word")
    folder = tmp_path / os.fsdecode(b"k\xe4se-\xc3\xb6")
    command = [sys.executable, "-m", "protoseal", "pki", "request", "--federation", "f", "--site", "a"]
    done = subprocess.run(
        [*command, "--dir", folder, "--passphrase-file", passphrase],
        env=environment() | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"fingerprint" in done.stdout
    assert (folder / "key.pem").is_file()


def test_one_line_errors_setting_not_in_utf_8_is_named() -> None:
    with pytest.raises(ConfigError) as refused:
        load_simulation(None, {"dataset": os.fsdecode(b"folder:k\xe4se"), "out": "out"})
    (problem,) = refused.value.problems
    assert problem.startswith("dataset: ")


def test_one_line_errors_traceback_is_logged_at_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for level in (logging.INFO, logging.DEBUG):
        caplog.set_level(level, "protoseal")
        done = CliRunner().invoke(main, ["client", "check", "--config", str(tmp_path / "none.toml")])
        assert done.exit_code == 1
        assert done.stderr.count("\n") == 1
        assert str(tmp_path / "none.toml") in done.stderr
        assert [record.exc_info is not None for record in caplog.records] == [True] * (level == logging.DEBUG)
