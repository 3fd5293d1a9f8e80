"""Command group ``protoseal pki``: creates a federation's CA and issues the certificates of its parties.

Each party creates its key on its own machine and sends a request; the CA's holder compares fingerprints with the
requester over another channel, approves, and returns the certificate. No private key leaves its machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from crypto.errors import VerificationError
from crypto.pki import Identity, Request, Role, approve, create_authority, create_request, read_request
from crypto.pki.identity import certificates_in, extension, host_names, load_certificate, only_uri
from crypto.pki.issuing import (
    CA_FILE,
    CA_KEY_FILE,
    DEFAULT_CA_DAYS,
    DEFAULT_DAYS,
    KEY_FILE,
    LONGEST_DAYS,
    REQUEST_FILE,
)
from crypto.pki.key_files import check_absent, errors_name_file, read, rewrap, write_public
from crypto.pki.trust import fingerprint
from protoseal.commands.options import FILE, FOLDER, Command, example
from protoseal.commands.passphrase_input import on_terminal, passphrase_option, read_passphrase
from protoseal.commands.terminal_output import Facts, fact_lines, one_line_errors, print_facts, printable

_USAGES = {ExtendedKeyUsageOID.CLIENT_AUTH: "clientAuth", ExtendedKeyUsageOID.SERVER_AUTH: "serverAuth"}
_DAYS = click.IntRange(1, LONGEST_DAYS)
_DEFAULT_DAYS_HELP = f"{DEFAULT_DAYS[Role.SITE]}, a coordinator's {DEFAULT_DAYS[Role.COORDINATOR]}"

_federation_option = click.option(
    "--federation",
    required=True,
    help="Name of the federation, such as 'clinics.example'; the same for every party.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _directory_option(content: str) -> Callable[[Command], Command]:
    return click.option("--dir", "directory", type=FOLDER, required=True, help=f"Folder for {content}.")


def _overwrite_option(loss: str) -> Callable[[Command], Command]:
    return click.option("--overwrite", is_flag=True, help=f"Replace existing files: {loss}.")


@contextmanager
def _refused_arguments() -> Iterator[None]:
    """End in one line for names, hosts and days that no certificate can have: ``crypto.pki`` raises ``ValueError``."""
    try:
        yield
    except ValueError as error:
        raise click.ClickException(printable(str(error))) from error


def request_facts(request: Request) -> Facts:
    """Return the facts of a verified request. ``fingerprint`` is of its public key: the requester reads it out."""
    return {
        "kind": "request",
        "identity": request.identity.uri,
        "hosts": list(request.hosts),
        "fingerprint": request.fingerprint,
    }


def certificate_facts(certificate: x509.Certificate) -> Facts:
    """Return the facts that a certificate states. A peer pins its ``fingerprint``.

    Raises :class:`VerificationError` unless it names one federation's CA or party. The signature is not checked.
    """
    # A certificate says by this extension alone whether it may sign others.
    authority = extension(certificate, x509.BasicConstraints).ca
    return {
        "kind": "CA certificate" if authority else "certificate",
        "identity": only_uri(certificate),
        "hosts": host_names(certificate),
        "usage": _usage(certificate),
        "valid_from": f"{certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}",
        "valid_until": f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}",
        "serial": f"{certificate.serial_number:x}",
        "fingerprint": fingerprint(certificate),
    }


def _usage(certificate: x509.Certificate) -> list[str]:
    try:
        usages = extension(certificate, x509.ExtendedKeyUsage)
    except VerificationError:
        return []
    return [_USAGES.get(usage, usage.dotted_string) for usage in usages]


@click.group(epilog=example("protoseal pki init --dir ca --federation clinics.example"))
def pki() -> None:
    """Create the federation's CA and the certificates of its sites and coordinator."""


@pki.command("init", epilog=example("protoseal pki init --dir ca --federation clinics.example"))
@_directory_option("the CA, which must not be on the coordinator")
@_federation_option
@click.option(
    "--days",
    type=_DAYS,
    default=DEFAULT_CA_DAYS,
    show_default=True,
    help="Number of days that the certificate is valid.",
)
@passphrase_option
@_overwrite_option("the certificates of the old CA become void")
@_json_option
@one_line_errors
@_refused_arguments()
def init_command(
    *,
    directory: Path,
    federation: str,
    days: int,
    passphrase_file: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Create the federation's CA: ca.key.pem, which its holder guards, and ca.pem, which every party gets."""
    if not overwrite:
        # Checked before the prompt, so that nobody chooses a passphrase for a key that is then refused.
        check_absent(directory / CA_KEY_FILE, directory / CA_FILE)
    passphrase = read_passphrase(passphrase_file, what="the CA's key", new=True)
    trust = create_authority(directory, federation, passphrase, days, overwrite=overwrite)
    facts = certificate_facts(load_certificate(trust.certificate_pem))
    files: Facts = {"certificate": str(directory / CA_FILE), "key": str(directory / CA_KEY_FILE)}
    print_facts(facts | files, as_json=as_json)


@pki.command(
    "request", epilog=example("protoseal pki request --dir north --federation clinics.example --site north")
)
@_directory_option("the key and the request")
@_federation_option
@click.option("--site", help="Name of the site, as the coordinator lists it.")
@click.option(
    "--coordinator", is_flag=True, help="Request the coordinator's certificate instead of a site's."
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="DNS name or IP address at which sites reach the coordinator; may be repeated.",
)
@passphrase_option
@_overwrite_option("the old private key is destroyed")
@_json_option
@one_line_errors
@_refused_arguments()
def request_command(
    *,
    directory: Path,
    federation: str,
    site: str | None,
    coordinator: bool,
    hosts: tuple[str, ...],
    passphrase_file: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Create a private key and a request for its certificate.

    Send the request to the CA's holder, and read out its fingerprint to them over a channel that they know to be yours.
    """
    if coordinator == (site is not None):
        raise click.UsageError("give either --site NAME or --coordinator")
    identity = Identity.coordinator(federation) if site is None else Identity.site(federation, site)
    if not overwrite:
        check_absent(directory / KEY_FILE, directory / REQUEST_FILE)
    passphrase = read_passphrase(passphrase_file, what=f"the key of {identity}", new=True)
    request = create_request(directory, identity, passphrase, hosts, overwrite=overwrite)
    files: Facts = {"request": str(directory / REQUEST_FILE), "key": str(directory / KEY_FILE)}
    print_facts(request_facts(request) | files, as_json=as_json)


@pki.command(
    "approve", epilog=example("protoseal pki approve --ca ca --request request.pem --out certificate.pem")
)
@click.option(
    "--ca", "authority", type=FOLDER, required=True, help="Folder of the CA, as `pki init` made it."
)
@click.option(
    "--request", "request_path", type=FILE, required=True, help="File with the certificate request."
)
@click.option("--out", type=FILE, required=True, help="File for the certificate.")
@click.option(
    "--days",
    type=_DAYS,
    help=f"Number of days that the certificate is valid.  [default: {_DEFAULT_DAYS_HELP}]",
)
@click.option("--fingerprint", help="Fingerprint of the request, as the requester read it out.")
@click.option(
    "--yes-without-checking",
    is_flag=True,
    help="Approve without comparing the fingerprint: anybody may have made the request.",
)
@passphrase_option
@_overwrite_option("an old certificate stays valid until it expires")
@_json_option
@one_line_errors
@_refused_arguments()
def approve_command(
    *,
    authority: Path,
    request_path: Path,
    out: Path,
    days: int | None,
    fingerprint: str | None,
    yes_without_checking: bool,
    passphrase_file: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Sign the certificate that a request asks for, after its fingerprint was compared with the requester."""
    if not overwrite:
        check_absent(out)
    content = read(request_path)
    with errors_name_file(request_path):
        request = read_request(content)
    # The request proves that its sender has the key, not that the sender is the party it names: the comparison over
    # another channel is all that keeps somebody else from getting a certificate in that name.
    _confirm_fingerprint(request, fingerprint, yes_without_checking)
    passphrase = read_passphrase(passphrase_file, what="the CA's key")
    certificate = approve(authority, passphrase, content, days)
    write_public(out, certificate, overwrite=overwrite)
    facts = certificate_facts(load_certificate(certificate))
    print_facts(facts | {"certificate": str(out)}, as_json=as_json)


@pki.command("passphrase", epilog=example("protoseal pki passphrase key.pem state/storage.key"))
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option(
    "--new-passphrase-file",
    type=FILE,
    help="File with the new passphrase, readable by you alone.  [default: a prompt]",
)
@passphrase_option
@one_line_errors
@_refused_arguments()
def passphrase_command(
    *, files: tuple[Path, ...], new_passphrase_file: Path | None, passphrase_file: Path | None
) -> None:
    """Change the passphrase of key files.

    A site has two such files during a run: key.pem, and storage.key in its state_dir. Each file is replaced as a whole.
    If one cannot be opened, the command stops there; the files before it have the new passphrase.
    """
    old = read_passphrase(passphrase_file, what="these keys")
    new = _new_passphrase(new_passphrase_file)
    for path in files:
        rewrap(path, old, new)
        click.echo(f"{path}: passphrase changed")


def _new_passphrase(file: Path | None) -> bytes:
    """Read the new passphrase from a file or a prompt; the environment has the old passphrase."""
    if file is not None:
        return read_passphrase(file, what="these keys")
    if not on_terminal():
        raise click.ClickException("no terminal to prompt for the new passphrase: give --new-passphrase-file")
    text = click.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True)
    return str(text).encode()


@pki.command("show", epilog=example("protoseal pki show certificate.pem"))
@click.argument("file", type=FILE)
@_json_option
@one_line_errors
@_refused_arguments()
def show_command(*, file: Path, as_json: bool) -> None:
    """Print what a certificate or request contains. Nothing is verified against a CA."""
    content = read(file)
    is_request = b"CERTIFICATE REQUEST" in content
    with errors_name_file(file):
        facts = (
            [request_facts(read_request(content))]
            if is_request
            else list(map(certificate_facts, certificates_in(content)))
        )
    for certificate_or_request in facts:
        print_facts(certificate_or_request, as_json=as_json)


def _confirm_fingerprint(request: Request, fingerprint: str | None, unchecked: bool) -> None:
    """Compare the fingerprint with the one given, or ask the CA's holder; raise unless it is confirmed."""
    if fingerprint is not None:
        if fingerprint.replace(":", "").replace(" ", "").lower() != request.fingerprint:
            raise VerificationError(
                f"the request's fingerprint is {request.fingerprint}, not the --fingerprint given: another party "
                f"may have made the request in the name of {request.identity}"
            )
    elif unchecked:
        click.echo(
            f"warning: the request of {request.identity} is approved without comparing fingerprints", err=True
        )
    elif on_terminal():
        click.echo(fact_lines(request_facts(request)), err=True)
        click.confirm("Did the requester read out this fingerprint?", abort=True, err=True)
    else:
        raise click.ClickException(
            f"the fingerprint of the request of {request.identity} was not compared: give --fingerprint as the "
            "requester reads it out, or --yes-without-checking"
        )
