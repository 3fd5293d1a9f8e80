"""Reader of a private key's passphrase: from a file, the environment, a service's credential or a prompt.

A command-line argument is no source, because every user of the machine can read it.
"""

from __future__ import annotations

import codecs
import os
import stat
import sys
from pathlib import Path

import click

from crypto.errors import MalformedError
from crypto.process_memory import keep_memory_private
from crypto.text_decoding import check_encoding
from protoseal.commands.options import FILE

VARIABLE = "PROTOSEAL_KEY_PASSPHRASE"
CREDENTIALS, CREDENTIAL = "CREDENTIALS_DIRECTORY", "passphrase"
"""Environment variable with the folder of a systemd unit's credentials, and the name of the credential."""

IN_CONFIG = "name a file as passphrase_file in the configuration"

passphrase_option = click.option(
    "--passphrase-file",
    type=FILE,
    help="File with the key's passphrase, readable by you alone. "
    f" [default: ${VARIABLE}, a service's credential, or a prompt]",
)


def read_passphrase(
    file: Path | None, *, what: str, new: bool = False, remedy: str = "give a file with --passphrase-file"
) -> bytes:
    """Return the passphrase of ``what`` (``the CA's key``, say), as bytes.

    The sources are ``file`` if one is given, else the environment variable ``PROTOSEAL_KEY_PASSPHRASE``, else the
    service's credential ``passphrase`` (systemd's ``LoadCredential``, a container's secret), else a hidden prompt,
    which asks twice for a ``new`` one. Raises :class:`click.ClickException` for an empty passphrase, a file that others
    can read, and if none of the four sources has a passphrase (``remedy`` tells the user how to name a file). The
    process's memory is made private first (:mod:`crypto.process_memory`). Limit: processes of the same user can read
    the environment variable until then, and in the program that set it.
    """
    # First: from the next line on, a core dump or a debugger of the same user would find the passphrase.
    keep_memory_private()
    if file is not None:
        return _check_not_empty(_read_secret(file), str(file))
    variable = os.environ.get(VARIABLE)
    if variable is not None:
        return _check_not_empty(os.fsencode(variable).rstrip(b"\r\n"), VARIABLE)
    folder = os.environ.get(CREDENTIALS)
    credential = Path(folder, CREDENTIAL) if folder else None
    if credential is not None and credential.exists():
        # systemd lets the unit's user read a credential by an access control list, whose mask shows where a group's
        # permissions stand: only those of all others tell whether somebody else can read the file.
        return _check_not_empty(_read_secret(credential, shared=stat.S_IRWXO), str(credential))
    if not on_terminal():
        raise click.ClickException(f"the passphrase of {what} is needed: set {VARIABLE} or {remedy}")
    prompt = f"{'New passphrase' if new else 'Passphrase'} of {what}"
    return str(click.prompt(prompt, hide_input=True, confirmation_prompt=new, err=True)).encode()


def on_terminal() -> bool:
    """Return True if the command can prompt."""
    return sys.stdin.isatty()


def _read_secret(file: Path, shared: int = stat.S_IRWXG | stat.S_IRWXO) -> bytes:
    """Return the file's content without a byte order mark and without the line ends at its end.

    Files with a permission among ``shared`` are refused, and text in UTF-16, which a passphrase at a prompt never is.
    """
    try:
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            raise click.ClickException(f"{file} is a folder, not a file")
        if mode & shared:
            raise click.ClickException(f"{file} is open to others on this machine: run chmod 600 {file}")
        content = file.read_bytes()
        check_encoding(content)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read ({error.strerror})") from error
    except MalformedError as error:
        raise click.ClickException(f"{file}: {error}") from error
    # Editors add the mark and the line end, and nobody types them at a prompt.
    return content.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")


def _check_not_empty(passphrase: bytes, source: str) -> bytes:
    if not passphrase:
        raise click.ClickException(f"{source} has an empty passphrase; set a passphrase there")
    return passphrase
