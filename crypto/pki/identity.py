"""Identity of a party, a SPIFFE-style URI in its certificate, and host names of a coordinator.

Readers of the fields of certificates and requests, which check that a field is present, single and well-formed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from crypto.errors import MalformedError, VerificationError
from crypto.pki import pem

NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_SCHEME = "spiffe://"
_HOST_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_HOST_LABEL}(\.{_HOST_LABEL})*")


class Role(StrEnum):
    """Role that a certificate gives its owner."""

    SITE = "site"
    COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Identity:
    """Party of a federation; the coordinator's ``name`` is always ``coordinator``.

    Names are 1 to 63 lower-case letters, digits, dots and hyphens, the first a letter or digit; other names raise
    ``ValueError``.
    """

    federation: str
    role: Role
    name: str

    def __post_init__(self) -> None:
        check_name("federation", self.federation)
        check_name("site", self.name)
        if self.role is Role.COORDINATOR and self.name != Role.COORDINATOR.value:
            raise ValueError("a coordinator's name must be 'coordinator'")

    @classmethod
    def site(cls, federation: str, name: str) -> Identity:
        """Return the identity of a site."""
        return cls(federation, Role.SITE, name)

    @classmethod
    def coordinator(cls, federation: str) -> Identity:
        """Return the identity of the federation's coordinator."""
        return cls(federation, Role.COORDINATOR, Role.COORDINATOR.value)

    @classmethod
    def from_uri(cls, uri: str) -> Identity:
        """Parse the form of :attr:`uri`; raise :class:`VerificationError` for any other form."""
        federation, _, path = uri.removeprefix(_SCHEME).partition("/")
        try:
            identity = (
                cls.coordinator(federation)
                if path == Role.COORDINATOR.value
                else cls.site(federation, path.removeprefix("site/"))
            )
        except ValueError as error:
            raise VerificationError(f"{uri!r} names no site and no coordinator") from error
        if identity.uri != uri:
            raise VerificationError(f"{uri!r} names no site and no coordinator")
        return identity

    @property
    def uri(self) -> str:
        """URI ``spiffe://<federation>/site/<name>`` or ``spiffe://<federation>/coordinator``."""
        path = self.name if self.role is Role.COORDINATOR else f"site/{self.name}"
        return f"{federation_uri(self.federation)}/{path}"

    def __str__(self) -> str:
        return self.uri


def check_name(kind: str, name: str) -> None:
    """Raise ``ValueError`` unless ``name`` is a permitted name of a federation or site."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{kind} name {name!r} is not 1 to 63 of a-z, 0-9, '.' and '-', starting with a letter or digit"
        )


def federation_uri(federation: str) -> str:
    """Return the URI of the federation's CA."""
    return f"{_SCHEME}{federation}"


def parse_federation(uri: str) -> str:
    """Return the federation whose CA has this URI; raise :class:`VerificationError` for any other form."""
    federation = uri.removeprefix(_SCHEME)
    if federation_uri(federation) != uri or not NAME.fullmatch(federation):
        raise VerificationError(f"{uri!r} names no federation")
    return federation


def host_name(host: str) -> x509.DNSName | x509.IPAddress:
    """Return a DNS name or IP address for a certificate; raise ``ValueError`` for other text, wildcards included."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        name = host.lower()
    if len(name) > 253 or not _HOST.fullmatch(name):
        raise ValueError(f"host {host!r} is neither a DNS name nor an IP address")
    return x509.DNSName(name)


Extension = TypeVar("Extension", bound=x509.ExtensionType)
Holder = x509.Certificate | x509.CertificateSigningRequest
_LONGEST_NAME = 200


def load_certificate(content: bytes) -> x509.Certificate:
    """Load a certificate from PEM or DER; raise :class:`MalformedError` for other bytes."""
    try:
        if content.startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(content)
        return x509.load_der_x509_certificate(content)
    except (ValueError, x509.InvalidVersion) as error:
        raise MalformedError("these bytes are not an X.509 certificate") from error


def certificates_in(content: bytes) -> list[x509.Certificate]:
    """Return the certificates of a file that people handle: a DER certificate, or PEM with one or several.

    Raises :class:`MalformedError`, whose message follows the file's name.
    """
    try:
        return [x509.load_der_x509_certificate(der) for der in pem.read_blocks(content, pem.CERTIFICATE)]
    except (ValueError, x509.InvalidVersion) as error:
        raise MalformedError("is damaged: what it calls a certificate is none") from error


def extension(holder: Holder, kind: type[Extension]) -> Extension:
    """Return the value of an extension; raise :class:`VerificationError` if it is absent, repeated or malformed."""
    try:
        return holder.extensions.get_extension_for_class(kind).value
    except (
        x509.ExtensionNotFound,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
        ValueError,
    ) as error:
        raise VerificationError(f"a {_noun(holder)} has no usable {kind.__name__}") from error


def only_uri(holder: Holder) -> str:
    """Return the URI among the alternative names; raise :class:`VerificationError` unless there is exactly one."""
    names = extension(holder, x509.SubjectAlternativeName)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise VerificationError(f"a {_noun(holder)} names {len(uris)} identities, not one")
    return uris[0]


def p256_key(holder: Holder) -> ec.EllipticCurvePublicKey:
    """Return the public key; raise :class:`VerificationError` unless it is ECDSA P-256."""
    try:
        key = holder.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise VerificationError(
            f"the {_noun(holder)} of {subject_text(holder)} has a key that cannot be read"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise VerificationError(
            f"the {_noun(holder)} of {subject_text(holder)} has a key that is not ECDSA P-256, so 'protoseal pki' did "
            "not make it"
        )
    return key


def host_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names and IP addresses; raise :class:`VerificationError` without alternative names."""
    names = extension(certificate, x509.SubjectAlternativeName)
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def subject_text(holder: Holder) -> str:
    """Return the name of the owner of a certificate or request, for people to read and not for any check."""
    try:
        return holder.subject.rfc4514_string()[:_LONGEST_NAME] or "(no name)"
    except ValueError:
        return "(a name that cannot be read)"


def issuer_text(certificate: x509.Certificate) -> str:
    """Return the name that the certificate gives its signer, for people to read and not for any check."""
    try:
        return certificate.issuer.rfc4514_string()[:_LONGEST_NAME] or "(no name)"
    except ValueError:
        return "(a name that cannot be read)"


def _noun(holder: Holder) -> str:
    return "certificate" if isinstance(holder, x509.Certificate) else "request"
