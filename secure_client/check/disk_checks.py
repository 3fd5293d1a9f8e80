"""Checks of the site's own disk for ``client check``: its folders, and the stored state of its run.

The checks change no file of a run: the journal is opened as a copy in a temporary folder beside the journal.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from protoseal_files.durable_files import make_state_folder, refuse_link
from secure_client.app import JOURNAL, check_out, open_journal_of, rounds_received
from secure_client.config import SiteConfig
from secure_client.errors import StateError
from secure_client.protocol.journal import Journal
from secure_client.protocol.setup import Party

_LOCKED_FROM, _LOCKED_BYTES = 0x40000002, 510
"""The bytes that SQLite locks while a process uses a database (SQLite's file format: the shared range)."""


def check_folders(config: SiteConfig) -> str:
    """Return the folders that a run writes to; raise :class:`StateError` for a folder that cannot be written.

    Raises ``OSError`` if others may write to ``state_dir``.
    """
    for folder in (config.state_dir, config.out):
        _check_writable(folder)
    if config.state_dir.exists():
        make_state_folder(config.state_dir)  # refuses a folder that others may write to
    return f"{config.state_dir} and {config.out} can be written"


def check_state(config: SiteConfig, party: Party) -> str:
    """Return the number of rounds that this site has completed, as text.

    Raises :class:`StateError` for the state or results of another run, and while another process uses the state;
    :class:`crypto.errors.CryptoError` where this site's key does not decrypt the stored secrets, ``OSError`` for a
    symbolic link.
    """
    journal = config.state_dir / JOURNAL
    if not journal.exists():
        check_out(config, begun=False)
        return f"no round yet; the run will store its state in {config.state_dir}"
    _check_free(journal)
    with tempfile.TemporaryDirectory(dir=config.state_dir, prefix=".check-") as copies:
        for path in config.state_dir.glob(f"{JOURNAL}*"):  # and the log that a killed process leaves
            refuse_link(path)
            shutil.copy2(path, copies)
        with open_journal_of(config, Path(copies) / JOURNAL, party) as copy:
            return _progress(config, copy)


def _progress(config: SiteConfig, journal: Journal) -> str:
    check_out(config, begun=not journal.unused)
    secrets, last = journal.check_secrets(), rounds_received(journal)
    return f"{last} of {config.agreement.rounds} rounds; {secrets} stored secrets can be decrypted"


def _check_writable(folder: Path) -> None:
    """Check that a missing folder can be made: the nearest existing folder above it must be writable."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise StateError(
            f"{folder} cannot be written ({error.strerror}): name another folder, or correct its permissions"
        ) from error


def _check_free(path: Path) -> None:
    with path.open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, _LOCKED_BYTES, _LOCKED_FROM, os.SEEK_SET)
        except OSError as error:
            raise StateError(
                f"{path} is in use: is `client run` of this site running? Stop it first"
            ) from error
