"""Contents of certificates and requests, for people and for ``--json``."""

from __future__ import annotations

import json

import click
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from crypto.errors import VerificationError
from crypto.pki import Request
from crypto.pki.identity import extension, host_names, only_uri
from crypto.pki.trust import fingerprint

Facts = dict[str, str | list[str]]
_USAGES = {ExtendedKeyUsageOID.CLIENT_AUTH: "clientAuth", ExtendedKeyUsageOID.SERVER_AUTH: "serverAuth"}


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


def print_facts(facts: Facts, *, as_json: bool) -> None:
    """Print the facts to standard output, as JSON or as one line for each fact."""
    click.echo(json.dumps(facts, indent=2) if as_json else fact_lines(facts))


def fact_lines(facts: Facts) -> str:
    """Return one aligned line for each fact that is not empty."""
    texts = {name: ", ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    return "\n".join(f"{name.replace('_', ' '):<12} {text}" for name, text in texts.items() if text)


def _usage(certificate: x509.Certificate) -> list[str]:
    try:
        usages = extension(certificate, x509.ExtendedKeyUsage)
    except VerificationError:
        return []
    return [_USAGES.get(usage, usage.dotted_string) for usage in usages]
