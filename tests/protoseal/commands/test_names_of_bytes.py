"""Failures in one line: names of files that are not UTF-8, terminals that lack letters, and tracebacks at debug."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agreement.toml_loading import ConfigError
from protoseal.cli import main
from protoseal.simulation.config import load_simulation
from tests.support.processes import environment


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_a_name_that_the_terminal_lacks_is_printed_by_its_bytes(encoding: str, tmp_path: Path) -> None:
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


def test_a_setting_that_is_not_utf_8_is_named() -> None:
    with pytest.raises(ConfigError) as refused:
        load_simulation(None, {"dataset": os.fsdecode(b"folder:k\xe4se"), "out": "out"})
    (problem,) = refused.value.problems
    assert problem.startswith("dataset: ")


def test_an_expected_failure_is_one_line_with_its_traceback_at_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for level in (logging.INFO, logging.DEBUG):
        caplog.set_level(level, "protoseal")
        done = CliRunner().invoke(main, ["client", "check", "--config", str(tmp_path / "none.toml")])
        assert done.exit_code == 1
        assert done.stderr.count("\n") == 1
        assert str(tmp_path / "none.toml") in done.stderr
        assert [record.exc_info is not None for record in caplog.records] == [True] * (level == logging.DEBUG)
